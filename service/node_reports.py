"""What the agent of a node says of it with each renewal of its lease: compared with what the store has, and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.events import publish_event
from service.store.jobs import GpuRow, Node, NodeAlias

__all__ = ["NodeReport", "ReportedGpu", "adds_nothing", "store_report", "stored_report"]

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


def stored_report(session: Session, node: str) -> NodeReport | None:
    """What the store has of `node`, of all its agents together; None where none has reported."""
    row = session.get(Node, node)
    if row is None:
        return None
    aliases = session.scalars(select(NodeAlias.alias).where(NodeAlias.node == node, NodeAlias.learnt_from == LEARNT_FROM))
    gpus = session.scalars(select(GpuRow).where(GpuRow.node == node))
    return NodeReport(
        node,
        row.agent_id,
        row.boot_id,
        row.versions,
        frozenset(aliases),
        {gpu.id: ReportedGpu(gpu.uuid, gpu.serial, gpu.pci, gpu.index) for gpu in gpus},
        row.probes,
    )


def store_report(session: Session, report: NodeReport, now: float) -> None:
    """Store what `report` says; that a node joined, or booted anew, is published."""
    node = report.node
    row = session.get(Node, node)
    if row is None:
        row = Node(id=node, state="ready", versions={}, seen_at=now)
        session.add(row)
        publish_event(session, "node.joined", node, {"agent_id": report.agent_id}, now)
    elif row.boot_id is not None and row.boot_id != report.boot_id:
        publish_event(session, "node.rebooted", node, {"boot_id": report.boot_id}, now)
    row.boot_id = report.boot_id
    row.agent_id = report.agent_id
    row.versions = dict(report.versions)
    if report.probes is not None:
        row.probes = report.probes
    session.flush()
    of_agents = (NodeAlias.node == node, NodeAlias.learnt_from == LEARNT_FROM)
    held = set(session.scalars(select(NodeAlias.alias).where(*of_agents)))
    if held - report.aliases:
        session.execute(delete(NodeAlias).where(*of_agents, NodeAlias.alias.in_(held - report.aliases)))
    for alias in sorted(report.aliases - held):
        session.merge(NodeAlias(alias=alias, node=node, learnt_from=LEARNT_FROM))
    for identity, gpu in (report.gpus or {}).items():
        # A GPU that was moved is told by its serial: the row follows it to the new node.
        session.merge(GpuRow(id=identity, node=node, seen_at=now, uuid=gpu.uuid, serial=gpu.serial, pci=gpu.pci, index=gpu.index))
    session.flush()
