"""What breaks when: lost nodes with their repairs, and faults that a restart heals. Seeded; times in seconds from a start."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from simulator.parameters import Parameters

__all__ = ["DAY", "Fault", "FaultKind", "TraceError", "bursts", "counted", "others_beside", "recorded"]

DAY = 86_400.0


class TraceError(ValueError):
    """A fault trace that cannot be used; one line that says why."""


class FaultKind(StrEnum):
    """How it shows itself. A lost node is away until it is repaired; the others leave the node as it is."""

    NODE = "node"
    PROCESS = "process"
    EXCEPTION = "exception"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Fault:
    """`node`: by number. `repair`: how long a lost node is away; 0 for the others."""

    at: float
    node: int
    kind: FaultKind
    repair: float = 0.0


def other_kind(chance: random.Random, parameters: Parameters) -> FaultKind:
    drawn = chance.random()
    if drawn < parameters["causes.hang"]:
        return FaultKind.HANG
    return FaultKind.PROCESS if drawn < parameters["causes.hang"] + parameters["causes.process"] else FaultKind.EXCEPTION


def counted(
    nodes: int, days: float, node_faults: int, other_faults: int, repair: tuple[float, float], parameters: Parameters, seed: int
) -> list[Fault]:
    """A Poisson process given how many faults there were: that many, at uniform moments on uniform nodes. Repairs are uniform."""
    chance = random.Random(seed)
    faults = [
        Fault(chance.uniform(0, days * DAY), chance.randrange(nodes), FaultKind.NODE, chance.uniform(*repair) * DAY)
        for _ in range(node_faults)
    ]
    faults += [
        Fault(chance.uniform(0, days * DAY), chance.randrange(nodes), other_kind(chance, parameters)) for _ in range(other_faults)
    ]
    return sorted(faults, key=lambda fault: fault.at)


def bursts(nodes: int, days: float, groups: int, size: int, within: float, repair: tuple[float, float], seed: int) -> list[Fault]:
    """Nodes that fail together (a switch, a rack's power): `groups` times `size` neighbours within so many seconds."""
    chance = random.Random(seed)
    faults = []
    for _ in range(groups):
        begun, first = chance.uniform(0, days * DAY), chance.randrange(nodes)
        for offset in range(min(size, nodes)):
            at = begun + chance.uniform(0, within)
            faults.append(Fault(at, (first + offset) % nodes, FaultKind.NODE, chance.uniform(*repair) * DAY))
    return sorted(faults, key=lambda fault: fault.at)


def recorded(path: Path, nodes: int, seed: int) -> list[Fault]:
    """A trace in the form of InfiniteHBD's (github.com/stepfun-ai/InfiniteHBD-Trace): starts and ends of faults in days.

    Its servers are given numbers below `nodes` by lot. Raises TraceError.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
        servers = sorted({event["node_id"] for event in events})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TraceError(f"{path} is no fault trace: {error}") from None
    if len(servers) > nodes:
        raise TraceError(f"{path} has faults of {len(servers)} servers, more than {nodes} nodes")
    places = dict(zip(servers, random.Random(seed).sample(range(nodes), len(servers)), strict=True))
    begun: dict[tuple[str, str], list[float]] = {}
    faults = []
    for event in sorted(events, key=lambda item: (item["event_time"], item["event_type"] != "fault_start")):
        key = event["node_id"], json.dumps(event["fault_type"], sort_keys=True)
        if event["event_type"] == "fault_start":
            begun.setdefault(key, []).append(event["event_time"])
        elif begun.get(key):
            start = begun[key].pop(0)
            faults.append(
                Fault(start * DAY, places[event["node_id"]], FaultKind.NODE, max(0.0, event["event_time"] - start) * DAY)
            )
    faults += [
        Fault(start * DAY, places[server], FaultKind.NODE, 365 * DAY) for (server, _), starts in begun.items() for start in starts
    ]
    return sorted(faults, key=lambda fault: fault.at)


def others_beside(faults: Sequence[Fault], nodes: int, parameters: Parameters, seed: int) -> list[Fault]:
    """The faults and, where a trace tells of nodes only, as many of the other kinds beside them as are known of elsewhere."""
    chance = random.Random(seed)
    end = max((fault.at for fault in faults), default=0.0)
    count = round(len(faults) * parameters["traces.others_per_node_fault"])
    others = [Fault(chance.uniform(0, end), chance.randrange(nodes), other_kind(chance, parameters)) for _ in range(count)]
    return sorted([*faults, *others], key=lambda fault: fault.at)
