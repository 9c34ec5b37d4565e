"""The directory of names, as agents reported them and the site configured them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.identity import Directory, Gpu, host_of
from service.store.database import select_in
from service.store.jobs import GpuRow, Node, NodeAlias

__all__ = ["Names", "directories_for", "directory_for"]

# What a record calls a node and a GPU; either may be missing.
Names = tuple[str | None, str | None]


def directory_for(session: Session, node: str | None = None, gpu: str | None = None) -> Directory:
    """What is known of these two names: enough to resolve them, and no more of a large fleet than that."""
    return directories_for(session, [(node, gpu)])[node, gpu]


def directories_for(session: Session, named: Collection[Names]) -> dict[Names, Directory]:
    """What is known of each pair of a node's and a GPU's name, read with the same few statements however many there are."""
    hosts = {node: host_of(node).lower() for node, _ in named if node is not None}
    ids: dict[str, set[str]] = defaultdict(set)
    claimed: dict[str, set[str]] = defaultdict(set)
    for name in select_in(session, select(Node.id), func.lower(Node.id), set(hosts.values())):
        ids[name.lower()].add(name)
    for alias in select_in(session, select(NodeAlias), func.lower(NodeAlias.alias), set(hosts.values())):
        claimed[alias.alias.lower()].add(alias.node)
    places = {node: ids[host] | claimed[host] for node, host in hosts.items()}
    gpus = gpus_of(
        session,
        {name for _, gpu in named if gpu is not None for name in serials_of(gpu)},
        {place for node, gpu in named if node is not None and gpu is not None for place in places[node]},
    )
    directories = {}
    for node, gpu in named:
        aliases = {} if node is None or not claimed[hosts[node]] else {host_of(node): frozenset(claimed[hosts[node]])}
        keys = [] if gpu is None else [*serials_of(gpu), *(places[node] if node is not None else ())]
        candidates = {one.id: one for key in keys for one in gpus.get(key, ())}
        directories[node, gpu] = Directory(
            frozenset(ids[hosts[node]] if node is not None else ()), aliases, list(candidates.values())
        )
    return directories


def serials_of(gpu: str) -> set[str]:
    """How the serial or UUID that a name may be can be written, in lower case."""
    bare = gpu.lower().removeprefix("gpu-")
    return {bare, f"gpu-{bare}"}


def gpus_of(session: Session, serials: Collection[str], nodes: Collection[str]) -> dict[str, list[Gpu]]:
    """GPUs by their UUIDs and serials (in lower case) and by their nodes, as far as those are asked for."""
    found: dict[str, list[Gpu]] = defaultdict(list)
    sought = ((func.lower(GpuRow.uuid), serials), (func.lower(GpuRow.serial), serials), (GpuRow.node, nodes))
    rows = {row.id: row for column, wanted in sought for row in select_in(session, select(GpuRow), column, wanted)}
    for row in rows.values():
        gpu = Gpu(row.node, row.uuid, row.serial, row.pci, row.index)
        for key in {row.node, *(name.lower() for name in (row.uuid, row.serial) if name)}:
            found[key].append(gpu)
    return found
