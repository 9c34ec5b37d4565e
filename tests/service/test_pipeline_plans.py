"""Plans of pipelines for every number of lost workers, as the service keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

import service.pipeline_plans as kept
from recovery.planning.pipeline.cost import PipelineProfile
from recovery.planning.pipeline.model import PipelineError, Problem
from service.pipeline_plans import PipelinePlans

PROFILE = PipelineProfile(Problem(4, 2, 4, activation_cap=3, failed=frozenset({(0, 0)})), 0.1)


def test_plans_are_computed_once_kept_on_disk_and_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = PipelinePlans(tmp_path)
    plans.prepare([PROFILE, PROFILE])
    # A quarter of eight workers; beyond that a quick search says it.
    periods = [plans.period(PROFILE.problem, failures) for failures in range(4)]
    assert periods == sorted(periods) and periods[0] < periods[3]
    monkeypatch.setattr(kept, "compute_plan_set", lambda *_: pytest.fail("computed again"))
    plans.prepare([PROFILE])
    again = PipelinePlans(tmp_path)
    again.prepare([PROFILE])
    assert [again.period(PROFILE.problem, failures) for failures in range(3)] == periods[:3]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_set_is_computed_again_and_one_that_cannot_be_kept_serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PipelinePlans(tmp_path).prepare([PROFILE])
    (index,) = tmp_path.glob("*/index.json")
    index.write_text("{}")
    plans = PipelinePlans(tmp_path)
    plans.prepare([PROFILE])
    assert index.read_text() != "{}" and plans.period(PROFILE.problem, 1) >= plans.period(PROFILE.problem, 0)
    full = PipelinePlans(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("no folder")
    full.prepare([PROFILE])
    monkeypatch.setattr(kept, "period_with", lambda *_: pytest.fail("searched for"))
    assert full.period(PROFILE.problem, 1) == plans.period(PROFILE.problem, 1)


def test_a_pipeline_that_fits_into_no_memory_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*_: object) -> None:
        raise PipelineError("no order of operations fits into this memory; raise activation_cap")

    monkeypatch.setattr(kept, "compute_plan_set", impossible)
    plans = PipelinePlans(tmp_path)
    plans.prepare([PROFILE])
    monkeypatch.setattr(kept, "compute_plan_set", lambda *_: pytest.fail("tried again"))
    plans.prepare([PROFILE])
    assert plans.period(PROFILE.problem, 1) > 0
