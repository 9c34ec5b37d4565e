"""Pitstop's own metrics, prefix `pitstop_`. No label ever holds a job, a fingerprint or log text."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from service.store import Store
from service.store.incidents import Incident
from service.store.jobs import Node, count_jobs

__all__ = ["Metrics"]


class StoreCollector(Collector):
    """Figures that the database holds: the same from every replica."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        open_incidents = GaugeMetricFamily("pitstop_incidents_open", "Open incidents.", labels=["severity"])
        jobs = GaugeMetricFamily("pitstop_jobs", "Registered jobs.", labels=["state"])
        nodes = GaugeMetricFamily("pitstop_nodes", "Nodes whose agent has ever reported.")
        with self._store.reading() as session:
            counted = session.execute(
                select(Incident.severity, func.count()).where(Incident.open_key.is_not(None)).group_by(Incident.severity)
            )
            found = {row[0]: row[1] for row in counted}
            for severity in ("SEV1", "SEV2", "SEV3", "NONE"):
                open_incidents.add_metric([severity], found.get(severity, 0))
            for state, count in count_jobs(session).items():
                jobs.add_metric([state], count)
            nodes.add_metric([], session.scalar(select(func.count()).select_from(Node)) or 0)
        yield from (open_incidents, jobs, nodes)


class Metrics:
    """The registry of one application; several may live in one process."""

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(StoreCollector(store))
        Info("pitstop_build", "The running version.", registry=self.registry).info({"version": version("pitstop")})
        self.lines = Counter("pitstop_ingest_lines_total", "Lines accepted.", ["protocol"], registry=self.registry)
        self.bytes = Counter("pitstop_ingest_bytes_total", "Bytes of lines accepted.", ["protocol"], registry=self.registry)
        self.dropped = Counter(
            "pitstop_ingest_dropped_lines_total", "Routine lines counted, not kept.", ["protocol"], registry=self.registry
        )
        self.refused = Counter("pitstop_ingest_refused_total", "Requests refused.", ["protocol", "why"], registry=self.registry)
        self.notifications = Counter(
            "pitstop_notifications_total", "Messages to channels, by outcome.", ["outcome"], registry=self.registry
        )
        self.alerts = Counter("pitstop_alerts_total", "Alerts received.", ["status"], registry=self.registry)
        self.diagnosis = Histogram(
            "pitstop_diagnosis_duration_seconds", "Time from failure to diagnosis.", ["stage"], registry=self.registry
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)
