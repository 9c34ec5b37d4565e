"""The set-ups of Unicron's evaluation (arXiv 2401.00134, section 7) as far as its text says; the rest: parameters.yaml."""

from __future__ import annotations

from pathlib import Path

from simulator.engine import Setting
from simulator.faults import DAY, counted, others_beside, recorded
from simulator.parameters import Parameters
from simulator.workloads import case

__all__ = ["PUBLISHED", "recorded_trace", "trace_a", "trace_b"]

# Accumulated WAF of Unicron over each of the others (figure 11).
PUBLISHED = {
    "trace-a": {"megatron": 1.2, "bamboo": 4.6, "oobleck": 3.7, "varuna": 4.8},
    "trace-b": {"megatron": 1.9, "bamboo": 4.8, "oobleck": 3.8, "varuna": 5.8},
}
# The mix of figure 11 is not readable: sizes mixed, weights equal.
MIX = 3


def of_trace(parameters: Parameters, seed: int, trace: str, repair_scale: float) -> Setting:
    nodes, days = int(parameters["cluster.nodes"]), parameters[f"traces.{trace}_days"]
    faults = counted(
        nodes,
        days,
        int(parameters[f"traces.{trace}_node_faults"]),
        int(parameters[f"traces.{trace}_other_faults"]),
        (parameters["traces.repair_low_days"] * repair_scale, parameters["traces.repair_high_days"] * repair_scale),
        parameters,
        seed,
    )
    tasks = case(MIX, nodes, parameters, tasks=int(parameters["cluster.tasks"]))
    return Setting(nodes, tuple(tasks), tuple(faults), days * DAY)


def trace_a(parameters: Parameters, seed: int) -> Setting:
    """Eight weeks, 10 lost nodes, 33 other faults."""
    return of_trace(parameters, seed, "a", 1.0)


def trace_b(parameters: Parameters, seed: int) -> Setting:
    """Seven days, 26 lost nodes, 80 other faults."""
    return of_trace(parameters, seed, "b", parameters["traces.b_repair_scale"])


def recorded_trace(path: Path, nodes: int, number: int, copies: int, parameters: Parameters, seed: int) -> Setting:
    """Faults of a recorded trace on `nodes` nodes, with other faults beside them, under `copies` times the tasks of a case."""
    faults = recorded(path, nodes, seed)
    return Setting(
        nodes,
        tuple(case(number, nodes, parameters, copies)),
        tuple(others_beside(faults, nodes, parameters, seed + 1)),
        max(fault.at for fault in faults),
    )
