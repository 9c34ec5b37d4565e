"""The plans of pipelines for every number of lost workers: computed ahead by a duty, kept in a folder, looked up at a failure."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.planning.pipeline.bounds import Bounds
from recovery.planning.pipeline.cost import PipelineProfile, period_with
from recovery.planning.pipeline.model import PipelineError, Problem
from recovery.planning.pipeline.plan_set import PlanSet, compute_plan_set, load_plan_set, save_plan_set
from recovery.planning.pipeline.specification import document_of

__all__ = ["PipelinePlans"]

log = logging.getLogger("pitstop.pipeline_plans")


@dataclass(slots=True)
class PipelinePlans:
    """One set of plans for each pipeline that a job declares, None where there can be none.

    `folder`: where they are kept; what is there is not computed.
    """

    folder: Path
    _sets: dict[Problem, PlanSet | None] = field(default_factory=dict)

    def prepare(self, profiles: Iterable[PipelineProfile]) -> None:
        """Have the sets of these pipelines, and forget those of others. Slow for one that is new."""
        wanted = {replace(profile.problem, failed=frozenset()) for profile in profiles}
        for problem in wanted - set(self._sets):
            try:
                self._sets[problem] = self._find(problem)
            except PipelineError as error:
                log.warning("no plans for a pipeline of %s x %s: %s", problem.replicas, problem.stages, error)
                self._sets[problem] = None
        for problem in set(self._sets) - wanted:
            del self._sets[problem]

    def _find(self, problem: Problem) -> PlanSet:
        name = hashlib.sha256(json.dumps(document_of(problem)).encode()).hexdigest()[:16]
        folder = self.folder / name
        if (folder / "index.json").exists():
            try:
                return load_plan_set(folder)
            except PipelineError as error:
                log.warning("%s", error)
        plans = compute_plan_set(problem, min(max(1, problem.replicas * problem.stages // 4), Bounds(problem).most))
        try:
            save_plan_set(plans, folder)
        except OSError as error:
            log.warning("plans of a pipeline are not kept: %s", error)
        return plans

    def period(self, problem: Problem, failures: int) -> int:
        """Of the plan that serves with so many lost workers; a quick search where none is kept. Raises PipelineError."""
        plans = self._sets.get(replace(problem, failed=frozenset()))
        if plans is None or failures >= len(plans.entries):
            return period_with(problem, failures)
        return plans.entries[failures].period
