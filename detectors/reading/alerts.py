"""Alerts in Alertmanager's forms: a stored webhook (version 4), or the answer of its API."""

from __future__ import annotations

from typing import Any

from detectors.reading.timestamps import Stamps
from rules.signal import Line, Trust

__all__ = ["alert_lines"]

MAX_ALERTS = 10_000
NODE_LABELS = ("node", "Hostname", "hostname", "host", "nodename", "instance")
TEXTS = ("summary", "description", "message")


def alert_lines(document: Any, path: str, stamps: Stamps) -> tuple[Line, ...] | None:
    """Each firing alert as one line; None where `document` holds no alerts."""
    alerts = document.get("alerts") if isinstance(document, dict) else document
    if not isinstance(alerts, list) or not alerts or not all(isinstance(alert, dict) for alert in alerts[:MAX_ALERTS]):
        return None
    if isinstance(document, dict) and "receiver" not in document and "groupKey" not in document:
        return None
    if not all(isinstance(alert.get("labels"), dict) and "startsAt" in alert for alert in alerts[:MAX_ALERTS]):
        return None
    lines = []
    for alert in alerts[:MAX_ALERTS]:
        labels = {name: value for name, value in alert["labels"].items() if isinstance(value, str)}
        if alert.get("status") == "resolved":
            continue
        node = next((labels[name].rsplit(":", 1)[0] for name in NODE_LABELS if labels.get(name)), None)
        annotations = alert.get("annotations")
        said = [value for name in TEXTS if isinstance(annotations, dict) and isinstance(value := annotations.get(name), str)]
        rank = labels.get("rank", "")
        text = f"alert {labels.get('alertname', 'without a name')} firing{f' on {node}' if node else ''}: {'; '.join(said)}"
        starts = alert["startsAt"]
        lines.append(
            Line(
                " ".join(text.split()),
                1,
                path,
                int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 7 else None,
                node,
                stamps.read(starts) if isinstance(starts, str) else None,
                Trust.CLUSTER,
            )
        )
    return tuple(lines)
