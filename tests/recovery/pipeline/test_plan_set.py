import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from pitstop.pipeline import PipelinePlan, PlanError, PlanSet
from recovery.planning.pipeline.checker import check_plan
from recovery.planning.pipeline.drawing import chrome_trace, svg
from recovery.planning.pipeline.model import Durations, PipelineError, Problem, Routing
from recovery.planning.pipeline.plan_set import compute_plan_set, load_plan_set, save_plan_set
from recovery.planning.pipeline.planner import plan

PROBLEM = Problem(8, 8, 8, Durations(2, 2, 1, 1), activation_cap=8, routing=Routing.FREE)


def test_a_set_of_plans_never_takes_longer_for_fewer_failures_and_each_plan_serves_its_count(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    plans = compute_plan_set(PROBLEM, 16, progress=lambda done, of: told.append((done, of)))
    periods = [entry.period for entry in plans.entries]
    assert periods == sorted(periods)
    assert told[-1] == (16, 16)
    for failures, entry in enumerate(plans.entries):
        schedule = plans.schedule(failures)
        assert entry.bound <= entry.period == schedule.period
        assert len(schedule.problem.failed) == entry.plan >= failures
        assert check_plan(schedule.problem, schedule.table(), entry.period) == []
        assert entry.period <= 1.1 * entry.bound
    with pytest.raises(PipelineError, match="0 to 16"):
        plans.schedule(17)


def test_what_was_saved_is_loaded_and_checked_again(tmp_path: Path) -> None:
    plans = compute_plan_set(PROBLEM, 3)
    save_plan_set(plans, tmp_path)
    loaded = load_plan_set(tmp_path)
    assert loaded.entries == plans.entries
    assert (loaded.schedule(2).starts == plans.schedule(2).starts).all()
    # What an executor reads, without the planner, is the same plan.
    read = PlanSet(str(tmp_path))
    assert (read.workers, PipelinePlan.from_document(read.document(2)).failed) == (64, loaded.schedule(2).problem.failed)
    rows = sorted(read.document(2)["ops"])
    assert rows == sorted([row[0], row[1], "FBW"[row[2]], row[3], row[4]] for row in loaded.schedule(2).table().tolist())
    with pytest.raises(PlanError, match="0 to 3"):
        read.document(4)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"activation_cap": 1}))
    with pytest.raises(PipelineError, match="activations"):
        load_plan_set(tmp_path)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(PipelineError, match="compute it again"):
        load_plan_set(tmp_path)


def test_a_set_is_not_computed_for_more_failures_than_leave_every_stage_a_worker() -> None:
    with pytest.raises(PipelineError, match="56"):
        compute_plan_set(PROBLEM, 57)


def test_a_drawing_and_a_trace_hold_every_operation_and_the_failed_workers() -> None:
    problem = replace(PROBLEM, failed=frozenset({(1, 2)}))
    schedule = plan(problem, seconds=0).schedule
    drawn = ElementTree.fromstring(svg(schedule, "a < b"))
    boxes = list(drawn.iter("{http://www.w3.org/2000/svg}rect"))
    operations = 3 * problem.stages * problem.total
    assert sum(element.get("stroke") == "white" for element in boxes) == operations
    assert sum(element.get("fill") == "#c9c9c9" for element in boxes) == 1
    events = [event for event in chrome_trace(schedule)["traceEvents"] if event["ph"] == "X"]
    assert len(events) == operations
    assert max(event["ts"] + event["dur"] for event in events) == (schedule.starts[-1] + problem.lengths[-1]).max()
