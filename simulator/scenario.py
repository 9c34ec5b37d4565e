"""SCENARIO.yaml: a cluster, its tasks, its faults and the policies to compare, read and run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.comparison import paired, stories
from simulator.engine import Setting
from simulator.faults import DAY, Fault, bursts, counted, others_beside, recorded
from simulator.parameters import ParameterError, Parameters, load_parameters
from simulator.policies import POLICIES
from simulator.workloads import SHAPES, Workload, curve

__all__ = ["Scenario", "ScenarioError", "read_scenario", "run_scenario"]

KEYS = frozenset({"nodes", "days", "tasks", "faults", "policies", "seeds", "parameters"})
FAULT_KEYS = frozenset({"node_faults", "other_faults", "repair_days", "bursts", "trace"})
MOST_NODES, MOST_SEEDS = 4096, 1000


class ScenarioError(ValueError):
    """A scenario that cannot be simulated; one line that names what is wrong."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`faults`: of one seed. `policies`: the first is what the others are compared with."""

    nodes: int
    seconds: float
    tasks: tuple[Workload, ...]
    faults: Callable[[int], list[Fault]]
    policies: tuple[str, ...]
    seeds: int
    parameters: Parameters

    def setting(self, seed: int) -> Setting:
        faults = tuple(fault for fault in self.faults(seed) if fault.at < self.seconds)
        return Setting(self.nodes, self.tasks, faults, self.seconds)


def read_scenario(document: object, folder: Path) -> Scenario:
    """A scenario from its document; paths in it are relative to `folder`. Raises ScenarioError."""
    top = mapping("the scenario", document, KEYS)
    try:
        parameters = load_parameters().changed(
            {str(name): float(value) for name, value in dict(top.get("parameters") or {}).items()}
        )
    except (ParameterError, TypeError, ValueError) as error:
        raise ScenarioError(f"parameters: {error}") from None
    nodes = whole("nodes", top.get("nodes", 16), MOST_NODES)
    days = number("days", top.get("days", 7))
    policies = tuple(top.get("policies") or ("unicron", "megatron", "oobleck", "bamboo", "varuna"))
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise ScenarioError(f"no policy {unknown[0]!r}: there are {', '.join(POLICIES)}")
    tasks = tuple(workload(item, index, nodes, parameters) for index, item in enumerate(top.get("tasks") or ()))
    if not tasks or len({task.name for task in tasks}) != len(tasks):
        raise ScenarioError("tasks: at least one is needed, and their names must differ")
    told = mapping("faults", top.get("faults") or {}, FAULT_KEYS)
    return Scenario(
        nodes,
        days * DAY,
        tasks,
        faults_of(told, nodes, days, parameters, folder),
        policies,
        whole("seeds", top.get("seeds", 10), MOST_SEEDS),
        parameters,
    )


def mapping(what: str, value: object, keys: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{what} is a mapping of names to values")
    strange = sorted(str(key) for key in value if key not in keys)
    if strange:
        raise ScenarioError(f"{what} knows {', '.join(sorted(keys))}, not {strange[0]!r}")
    return value


def number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ScenarioError(f"{what} is a number above 0, not {value!r}")
    return float(value)


def whole(what: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ScenarioError(f"{what} is a whole number up to {most}, not {value!r}")
    return value


def workload(item: object, index: int, nodes: int, parameters: Parameters) -> Workload:
    """{"model": a size of GPT-3} or {"throughput": [0, FLOP/s on 1 node, ...]}, with name and weight where wanted."""
    told = mapping(f"task {index}", item, frozenset({"name", "model", "throughput", "weight", "size"}))
    name, weight = str(told.get("name", f"task-{index}")), number("weight", told.get("weight", 1.0))
    if "throughput" in told:
        try:
            values = tuple(float(value) for value in told["throughput"])
        except (TypeError, ValueError):
            raise ScenarioError(f"task {name}: throughput is a list of numbers, beginning with 0") from None
        if not values or values[0] != 0 or min(values) < 0 or max(values) == float("inf"):
            raise ScenarioError(f"task {name}: throughput is a list of numbers from 0 up, beginning with 0")
        return Workload(name, values, weight, number("size", told.get("size", 1.0)))
    model = told.get("model")
    if model not in SHAPES:
        raise ScenarioError(f"task {name}: model is one of {', '.join(SHAPES)}, or give throughput")
    batch, mfu = int(parameters["cluster.global_batch"]), parameters["cluster.mfu"]
    return Workload(name, curve(model, nodes, batch, mfu), weight, number("size", told.get("size", float(model[:-1]))))


def faults_of(
    told: Mapping[str, Any], nodes: int, days: float, parameters: Parameters, folder: Path
) -> Callable[[int], list[Fault]]:
    if "trace" in told:
        path = folder / os.path.expandvars(str(told["trace"]))
        # Read once here, so that a bad path is told before anything is simulated.
        recorded(path, nodes, 0)
        return lambda seed: others_beside(recorded(path, nodes, seed), nodes, parameters, seed + 1)
    repair = told.get("repair_days", [1, 7])
    if not isinstance(repair, Sequence) or len(repair) != 2:
        raise ScenarioError("repair_days is a pair of numbers: the shortest and the longest repair")
    span = number("repair_days", repair[0]), number("repair_days", repair[1])
    node_faults = whole("node_faults", told.get("node_faults", 0), 10**6)
    others = whole("other_faults", told.get("other_faults", 0), 10**6)
    grouped = mapping("bursts", told.get("bursts") or {}, frozenset({"groups", "size", "within_seconds"}))
    groups, size = whole("groups", grouped.get("groups", 0), 10**4), whole("size", grouped.get("size", 4), nodes)
    within = number("within_seconds", grouped.get("within_seconds", 60))

    def drawn(seed: int) -> list[Fault]:
        alone = counted(nodes, days, node_faults, others, span, parameters, seed)
        together = bursts(nodes, days, groups, size, within, span, seed + 1)
        return sorted([*alone, *together], key=lambda fault: fault.at)

    return drawn


def run_scenario(scenario: Scenario, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Every policy over all seeds: means, and the first policy's accumulated WAF over each other's with paired intervals."""
    told = []
    for seed in range(max(1, scenario.seeds)):
        told.append(stories(lambda _parameters, number: scenario.setting(number), scenario.policies, scenario.parameters, seed))
        progress()
    rows, first = [], scenario.policies[0]
    for name in scenario.policies:
        runs = [each[name] for each in told]
        full = sum(run.full for run in runs)
        shares = {cause: sum(run.lost[cause] for run in runs) / full for cause in runs[0].lost} if full else {}
        over = [each[first].worth / each[name].worth for each in told if each[name].worth > 0]
        ratio = paired(over) if name != first and len(over) == len(told) else None
        rows.append(
            {
                "policy": name,
                "accumulated_waf": sum(run.worth for run in runs) / len(runs),
                "of_its_own_without_failures": sum(run.worth for run in runs) / full if full else 0.0,
                "lost": shares,
                "ettr": sum(run.ettr for run in runs) / len(runs),
                "changes": sum(run.changes for run in runs) / len(runs),
                "ratio": None if ratio is None else {"mean": ratio.mean, "low": ratio.low, "high": ratio.high},
            }
        )
    return {
        "version": 1,
        "nodes": scenario.nodes,
        "seconds": scenario.seconds,
        "seeds": len(told),
        "policies": rows,
        "waf": {name: [list(point) for point in told[0][name].waf] for name in scenario.policies},
    }
