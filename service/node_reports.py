"""What the agent of a node says of it with each renewal of its lease: compared with what the store has, and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database import select_in
from service.store.events import publish_event
from service.store.jobs import GpuRow, Node, NodeAlias

__all__ = ["NodeReport", "ReportedGpu", "adds_nothing", "store_reports", "stored_reports"]

LEARNT_FROM = "agent"


@dataclass(frozen=True, slots=True)
class ReportedGpu:
    """One GPU as its driver names it."""

    uuid: str | None = None
    serial: str | None = None
    pci: str | None = None
    index: int | None = None

    @property
    def identity(self) -> str | None:
        """What stays with it when it is moved."""
        return self.serial or self.uuid


@dataclass(frozen=True, slots=True)
class NodeReport:
    """`gpus` by their identity; `probes`: the backend on which the agent offers probes, None where it offers none."""

    node: str
    agent_id: str | None
    boot_id: str | None
    versions: Mapping[str, str]
    aliases: frozenset[str] = frozenset()
    gpus: Mapping[str, ReportedGpu] | None = None
    probes: str | None = None


def adds_nothing(report: NodeReport, stored: NodeReport | None) -> bool:
    """Whether all of `report` is stored, whichever agent said it. GPUs and probes that it is silent about stay as they are."""
    return (
        stored is not None
        and (report.boot_id, report.versions, report.aliases) == (stored.boot_id, stored.versions, stored.aliases)
        and report.probes in (None, stored.probes)
        and (report.gpus or {}).items() <= (stored.gpus or {}).items()
    )


def stored_reports(session: Session, nodes: Iterable[str]) -> dict[str, NodeReport]:
    """What the store has of those of `nodes` that have reported, of all their agents together."""
    names = sorted(set(nodes))
    aliases: dict[str, set[str]] = {name: set() for name in names}
    for alias in select_in(session, select(NodeAlias).where(NodeAlias.learnt_from == LEARNT_FROM), NodeAlias.node, names):
        aliases[alias.node].add(alias.alias)
    gpus: dict[str, dict[str, ReportedGpu]] = {name: {} for name in names}
    for gpu in select_in(session, select(GpuRow), GpuRow.node, names):
        gpus[gpu.node][gpu.id] = ReportedGpu(gpu.uuid, gpu.serial, gpu.pci, gpu.index)
    return {
        row.id: NodeReport(row.id, row.agent_id, row.boot_id, row.versions, frozenset(aliases[row.id]), gpus[row.id], row.probes)
        for row in select_in(session, select(Node), Node.id, names)
    }


def store_reports(session: Session, reports: Sequence[tuple[NodeReport, float]]) -> None:
    """Store what each says at its time; that a node joined, or booted anew, is published."""
    names = sorted({report.node for report, _ in reports})
    rows = {row.id: row for row in select_in(session, select(Node), Node.id, names)}
    for report, now in reports:
        node = report.node
        row = rows.get(node)
        if row is None:
            row = rows[node] = Node(id=node, state="ready", seen_at=now)
            session.add(row)
            publish_event(session, "node.joined", node, {"agent_id": report.agent_id}, now)
        elif row.boot_id is not None and row.boot_id != report.boot_id:
            publish_event(session, "node.rebooted", node, {"boot_id": report.boot_id}, now)
        row.boot_id, row.agent_id, row.versions = report.boot_id, report.agent_id, dict(report.versions)
        if report.probes is not None:
            row.probes = report.probes
    session.flush()
    store_aliases(session, {report.node: report.aliases for report, _ in reports})
    store_gpus(session, reports)
    session.flush()


def store_aliases(session: Session, named: Mapping[str, frozenset[str]]) -> None:
    """Make the names that agents told of nodes those of `named`, by node."""
    stored = {(row.node, row.alias): row for row in select_in(session, select(NodeAlias), NodeAlias.node, named)}
    for (node, alias), row in stored.items():
        if row.learnt_from == LEARNT_FROM and alias not in named[node]:
            session.delete(row)
    for node, alias in sorted((node, alias) for node, aliases in named.items() for alias in aliases):
        known = stored.get((node, alias))
        if known is not None:
            known.learnt_from = LEARNT_FROM
        else:
            session.add(NodeAlias(alias=alias, node=node, learnt_from=LEARNT_FROM))


def store_gpus(session: Session, reports: Iterable[tuple[NodeReport, float]]) -> None:
    """A GPU that was moved is told by its serial: the row follows it to the new node."""
    found = {identity: (report.node, gpu, now) for report, now in reports for identity, gpu in (report.gpus or {}).items()}
    stored = {row.id: row for row in select_in(session, select(GpuRow), GpuRow.id, found)}
    for identity, (node, gpu, now) in sorted(found.items()):
        fields = {"node": node, "seen_at": now, "uuid": gpu.uuid, "serial": gpu.serial, "pci": gpu.pci, "index": gpu.index}
        row = stored.get(identity)
        if row is None:
            session.add(GpuRow(id=identity, **fields))
        else:
            for name, value in fields.items():
                setattr(row, name, value)
