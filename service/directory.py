"""The directory of names, as agents reported them and the site configured them."""

from __future__ import annotations

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from rules.identity import Directory, Gpu, host_of
from service.store.jobs import GpuRow, Node, NodeAlias

__all__ = ["directory_for"]


def directory_for(session: Session, node: str | None = None, gpu: str | None = None) -> Directory:
    """What is known of these two names: enough to resolve them, and no more of a large fleet than that."""
    if node is None and gpu is None:
        return Directory()
    nodes: set[str] = set()
    aliases: dict[str, frozenset[str]] = {}
    if node is not None:
        host = host_of(node)
        nodes = set(session.scalars(select(Node.id).where(func.lower(Node.id) == host.lower())))
        for row in session.execute(select(NodeAlias.alias, NodeAlias.node).where(func.lower(NodeAlias.alias) == host.lower())):
            aliases[host] = aliases.get(host, frozenset()) | {row.node}
    gpus: list[Gpu] = []
    if gpu is not None:
        names = {gpu.lower(), gpu.lower().removeprefix("gpu-"), "gpu-" + gpu.lower().removeprefix("gpu-")}
        places = nodes | {name for claimed in aliases.values() for name in claimed}
        rows = session.scalars(
            select(GpuRow).where(
                or_(func.lower(GpuRow.uuid).in_(names), func.lower(GpuRow.serial).in_(names), GpuRow.node.in_(places))
            )
        )
        gpus = [Gpu(row.node, row.uuid, row.serial, row.pci, row.index) for row in rows]
    return Directory(frozenset(nodes), aliases, gpus)
