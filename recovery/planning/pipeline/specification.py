"""SPEC.json of `pitstop pipeline`: what is asked of the planner, and the document it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recovery.planning.pipeline.bounds import Bounds, one_f_one_b
from recovery.planning.pipeline.model import Durations, Mode, PipelineError, Problem, Routing
from recovery.planning.pipeline.planner import Plan, moves_to, plan, plan_failures

__all__ = ["Specification", "answer", "document_of", "find_plan", "parse_specification", "without_failures"]

KEYS = {"replicas", "stages", "microbatches", "durations", "activation_cap", "mode", "failed", "failures", "routing"}


@dataclass(frozen=True, slots=True)
class Specification:
    """A problem with its failed workers, or with a number of `failures` for normalisation to place."""

    problem: Problem
    failures: int | None = None


def _whole(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PipelineError(f"{key}: a whole number is needed, not {value!r}")
    return value


def parse_specification(document: object, routing: Routing = Routing.OWN) -> Specification:
    """`routing` is what holds where the document names none. Raises PipelineError, which names the key that is wrong."""
    if not isinstance(document, dict):
        raise PipelineError(
            "a specification is a JSON object with replicas, stages, microbatches, durations, mode, failed or failures"
        )
    unknown = set(document) - KEYS
    if unknown:
        raise PipelineError(f"unknown key {sorted(unknown)[0]!r}; known are {', '.join(sorted(KEYS))}")
    if "failed" in document and "failures" in document:
        raise PipelineError("give failed (where they are) or failures (how many), not both")
    times = document.get("durations", {"F": 1, "B": 1, "W": 1, "hop": 0})
    if not isinstance(times, dict) or set(times) - {"F", "B", "W", "hop"}:
        raise PipelineError('durations: {"F": n, "B": n, "W": n, "hop": n} in whole units is needed')
    durations = Durations(_whole(times, "F"), _whole(times, "B"), _whole(times, "W"), _whole({"hop": 0, **times}, "hop"))
    failed = document.get("failed", [])
    workers = set()
    if not isinstance(failed, list):
        raise PipelineError("failed: a list of [replica, stage] is needed")
    for worker in failed:
        if not (isinstance(worker, list) and len(worker) == 2 and all(type(part) is int for part in worker)):
            raise PipelineError(f"failed: [replica, stage] is needed, not {worker!r}")
        workers.add((worker[0], worker[1]))
    try:
        mode = Mode(document.get("mode", "staggered"))
        routing = Routing(document.get("routing", routing))
    except ValueError as error:
        raise PipelineError(f"{error}; modes are {', '.join(Mode)}, routings {', '.join(Routing)}") from None
    cap = None if document.get("activation_cap") is None else _whole(document, "activation_cap")
    sizes = [_whole(document, key) for key in ("replicas", "stages", "microbatches")]
    problem = Problem(sizes[0], sizes[1], sizes[2], durations, mode, cap, frozenset(workers), routing)
    if "failures" not in document:
        return Specification(problem)
    failures = _whole(document, "failures")
    Bounds(problem).least(failures)
    return Specification(problem, failures)


def document_of(problem: Problem) -> dict[str, Any]:
    """A specification without failures, as parse_specification reads it."""
    times = problem.durations
    return {
        "replicas": problem.replicas,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "durations": {"F": times.forward, "B": times.backward, "W": times.weight, "hop": times.hop},
        "activation_cap": problem.activation_cap,
        "mode": problem.mode,
        "routing": problem.routing,
    }


def find_plan(specification: Specification, seconds: float) -> Plan:
    """Raises PipelineError."""
    if specification.failures is None:
        return plan(specification.problem, seconds)
    return plan_failures(specification.problem, specification.failures, seconds)


def answer(specification: Specification, found: Plan, fault_free: Plan) -> dict[str, Any]:
    """The document of `pitstop pipeline plan`.

    `normalised` are the failed workers that the schedule is for. Where `failed` was given it is for those, and `normalisation`
    says how they would best be moved and what period the bound then allows.
    """
    problem = found.schedule.problem
    document: dict[str, Any] = {
        "mode": problem.mode,
        "period": found.period,
        "lower_bound": found.bound,
        "proven": found.proven,
        "fault_free": fault_free.period,
        "one_f_one_b": one_f_one_b(problem),
        "normalised": sorted([replica, stage] for replica, stage in problem.failed),
        "ops": [
            [replica, stage, "FBW"[kind], batch, start] for replica, stage, kind, batch, start in found.schedule.table().tolist()
        ],
    }
    if specification.failures is None and problem.failed:
        bounds = Bounds(problem)
        moves = moves_to(problem, bounds.spread(len(problem.failed)))
        document["normalisation"] = {
            "lower_bound": bounds.least(len(problem.failed)),
            "moves": [{"worker": list(move.worker), "place": list(move.place)} for move in moves],
        }
    return document


def without_failures(specification: Specification) -> Problem:
    return replace(specification.problem, failed=frozenset())
