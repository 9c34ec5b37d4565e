"""`pitstop doctor` says what is off, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from cli.doctor import examine

READY = {"checks": {"database": "ok", "writer": "ok"}}


def source(**fields: Any) -> dict[str, Any]:
    return {"name": "ndjson/n1", "silent_seconds": 1.0, "lag_seconds": 0.5, "lines": 10, "errors": 0, "last_error": None} | fields


def node(silent: bool = False, offset: float = 0.1) -> dict[str, Any]:
    return {"node": "n1", "clock_offset_seconds": offset, "lease": {"until": "2026-01-01T00:00:00.000Z", "silent": silent}}


def test_a_sound_cluster_has_nothing_off() -> None:
    assert all(finding.well for finding in examine(READY, [source()], [node()]))


@pytest.mark.parametrize(
    ("ready", "sources", "nodes", "part", "advice"),
    [
        ({"checks": {"database": "does not answer"}}, [source()], [], "database", "log"),
        (READY, [], [], "sources", "point an agent"),
        (READY, [source(silent_seconds=900.0)], [], "ndjson/n1", "is its sender running"),
        (READY, [source(lag_seconds=120.0)], [], "ndjson/n1", "it is behind"),
        (READY, [source(errors=1, last_error="not JSON")], [], "ndjson/n1", "not JSON"),
        (READY, [source()], [node(silent=True)], "node n1", "silent"),
        (READY, [source()], [node(offset=-30.0)], "node n1", "clock is off"),
    ],
)
def test_what_is_off_is_named_with_what_to_do(ready: Any, sources: Any, nodes: Any, part: str, advice: str) -> None:
    (off,) = [finding for finding in examine(ready, sources, nodes) if not finding.well]
    assert off.part == part and advice in off.advice
