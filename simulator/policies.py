"""Ways of recovering: how soon each notices, what a change costs it, and who gives way when nodes are lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from simulator.faults import FaultKind
from simulator.parameters import Parameters

__all__ = ["POLICIES", "Policy", "Reach", "policies"]


class Reach(StrEnum):
    """What happens to sizes when a node is lost or comes back.

    `PLAN`, `EQUAL`, `WEIGHT`, `SIZE`: all tasks are allotted anew, by the planner or a rule of thumb. `HIT`: only the task that
    was hit shrinks, and grows again. `SPARE`: the task takes a spare, or waits for one. `WAIT`: it waits for a repair.
    """

    PLAN = "plan"
    EQUAL = "equal"
    WEIGHT = "weight"
    SIZE = "size"
    HIT = "hit"
    SPARE = "spare"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Policy:
    """`detection`: seconds by kind of fault. `node_transition`, `restart`: seconds from there to work, for a change of nodes and
    for a restart on the same ones. `healthy`: throughput without failures, as a share of Megatron's. `spares`: nodes kept out."""

    name: str
    reach: Reach
    detection: Mapping[FaultKind, float]
    node_transition: float
    restart: float
    healthy: float = 1.0
    spares: int = 0


def in_band(parameters: Parameters) -> dict[FaultKind, float]:
    return {
        FaultKind.NODE: parameters["detection.node"],
        FaultKind.PROCESS: parameters["detection.process"],
        FaultKind.EXCEPTION: parameters["detection.exception"],
        FaultKind.HANG: parameters["detection.hang_steps"] * parameters["detection.iteration"],
    }


def by_timeout(parameters: Parameters) -> dict[FaultKind, float]:
    timeout = parameters["detection.timeout"]
    return {FaultKind.NODE: parameters["detection.node_without"]} | dict.fromkeys(
        (FaultKind.PROCESS, FaultKind.EXCEPTION, FaultKind.HANG), timeout
    )


def elastic(parameters: Parameters) -> dict[FaultKind, float]:
    others = parameters["detection.elastic_others"]
    return {FaultKind.NODE: parameters["detection.node_without"]} | dict.fromkeys(
        (FaultKind.PROCESS, FaultKind.EXCEPTION, FaultKind.HANG), others
    )


def grown(seconds: float, parameters: Parameters, gpus: float) -> float:
    """A restart from a checkpoint on a cluster beyond 128 GPUs."""
    return seconds * (1 + parameters["transition.restart_growth"] * max(0.0, math.log2(gpus / 128)))


def ours(parameters: Parameters, _gpus: float, name: str = "unicron", reach: Reach = Reach.PLAN) -> Policy:
    return Policy(name, reach, in_band(parameters), parameters["transition.ours"], parameters["transition.in_place"])


def pitstop(parameters: Parameters, _gpus: float) -> Policy:
    """Ours with what Pitstop itself measured."""
    crash = parameters["measured.process"]
    seen = {
        FaultKind.NODE: parameters["measured.node"],
        FaultKind.PROCESS: crash,
        FaultKind.EXCEPTION: crash,
        FaultKind.HANG: parameters["measured.hang_steps"] * parameters["detection.iteration"],
    }
    return Policy("pitstop", Reach.PLAN, seen, parameters["measured.transition"], parameters["measured.transition"])


def megatron(parameters: Parameters, gpus: float) -> Policy:
    restart = grown(parameters["transition.megatron_restart"], parameters, gpus) + parameters["transition.megatron_recompute"]
    spares = int(parameters["cluster.spares"])
    return Policy("megatron", Reach.SPARE, by_timeout(parameters), restart, restart, spares=spares)


def varuna(parameters: Parameters, gpus: float) -> Policy:
    restart = grown(parameters["transition.varuna_restart"], parameters, gpus) + parameters["transition.varuna_recompute"]
    return Policy("varuna", Reach.HIT, by_timeout(parameters), restart, restart, parameters["healthy.varuna"])


def oobleck(parameters: Parameters, _gpus: float) -> Policy:
    seconds = parameters["transition.oobleck"]
    return Policy("oobleck", Reach.HIT, elastic(parameters), seconds, seconds, parameters["healthy.oobleck"])


def bamboo(parameters: Parameters, _gpus: float) -> Policy:
    seconds = parameters["transition.bamboo"]
    return Policy("bamboo", Reach.HIT, elastic(parameters), seconds, seconds, parameters["healthy.bamboo"])


def allotting(reach: Reach, name: str) -> Callable[[Parameters, float], Policy]:
    return lambda parameters, gpus: ours(parameters, gpus, name, reach)


POLICIES: dict[str, Callable[[Parameters, float], Policy]] = {
    "unicron": ours,
    "megatron": megatron,
    "oobleck": oobleck,
    "bamboo": bamboo,
    "varuna": varuna,
    "equal": allotting(Reach.EQUAL, "equal"),
    "by weight": allotting(Reach.WEIGHT, "by weight"),
    "by size": allotting(Reach.SIZE, "by size"),
    "hit task only": allotting(Reach.HIT, "hit task only"),
    "no reconfiguration": allotting(Reach.WAIT, "no reconfiguration"),
    "pitstop": pitstop,
}


def policies(names: list[str], parameters: Parameters, gpus: float) -> list[Policy]:
    """Raises KeyError on a name that is not among `POLICIES`."""
    return [POLICIES[name](parameters, gpus) for name in names]
