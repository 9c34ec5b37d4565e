import copy
import subprocess
import sys
from typing import Any

import pytest

from pitstop.pipeline import Membership, PipelinePlan, PlanError, regrouped
from recovery.planning.pipeline.model import Mode, Problem
from recovery.planning.pipeline.planner import plan
from recovery.planning.pipeline.specification import Specification, answer


def document(mode: Mode = Mode.STAGGERED) -> dict[str, Any]:
    problem = Problem(3, 4, 6, mode=mode, activation_cap=6, failed=frozenset({(1, 2)}))
    found = plan(problem)
    return answer(Specification(problem), found, found)


@pytest.mark.parametrize("mode", Mode)
def test_the_planners_document_is_read_and_its_order_has_no_cycle(mode: Mode) -> None:
    read = PipelinePlan.from_document(document(mode))
    assert read.coupled == (mode is Mode.COUPLED)
    assert read.staggered == (mode is Mode.STAGGERED)
    assert (read.stages, read.total) == (4, 18)
    assert (1, 2) not in read.orders
    received = sum(len(read.messages((replica, 1), (target, 2))) for replica in range(3) for target in range(3))
    assert received == 18


def test_an_order_in_which_two_workers_would_wait_for_one_another_is_refused() -> None:
    crossed = document()
    # Forwards of one worker in reverse: it would wait for the last micro-batch before it lets the first go on.
    rows = crossed["ops"]
    mine = [index for index, row in enumerate(rows) if row[:3] == [0, 1, "F"]]
    starts = [rows[index][4] for index in mine]
    for index, start in zip(mine, reversed(starts), strict=True):
        rows[index] = [*rows[index][:4], start]
    with pytest.raises(PlanError, match="cycle"):
        PipelinePlan.from_document(crossed)


def test_what_is_no_plan_is_refused_in_words() -> None:
    good = document()
    for broken, message in (
        ({}, "no pipeline plan"),
        ({**good, "ops": good["ops"][:-1]}, "are there"),
        ({**good, "normalised": [[0, 0]]}, "failed worker"),
        ({**good, "ops": [*good["ops"], good["ops"][0]]}, "twice"),
    ):
        with pytest.raises(PlanError, match=message):
            PipelinePlan.from_document(copy.deepcopy(broken))


def test_a_membership_without_a_source_of_parameters_is_refused() -> None:
    read = PipelinePlan.from_document(document())
    workers = {f"w{replica}{stage}": (replica, stage) for replica in range(3) for stage in range(4) if (replica, stage) != (1, 2)}
    Membership(1, read, workers, {"w00": "w10"}).check()
    for sources, message in (
        ({"w00": "w01"}, "peer of its stage"),
        ({"w00": "w10", "w10": "w00"}, "peer of its stage"),
        ({"w00": "w10", "w10": "w20", "w20": "w00"}, "peer of its stage"),
    ):
        with pytest.raises(PlanError, match=message):
            Membership(1, read, workers, sources).check()
    with pytest.raises(PlanError, match=r"nobody is at \(0, 0\)"):
        Membership(1, read, {name: worker for name, worker in workers.items() if worker != (0, 0)}, {}).check()


def planned(*failed: tuple[int, int]) -> dict[str, Any]:
    problem = Problem(3, 2, 2, failed=frozenset(failed))
    found = plan(problem, seconds=0)
    return answer(Specification(problem), found, found)


def whole() -> Membership:
    workers = {f"w{replica}{stage}": (replica, stage) for replica in range(3) for stage in range(2)}
    return Membership(1, PipelinePlan.from_document(planned()), workers, {})


def test_a_lost_worker_is_made_up_for_by_its_own_stage_without_a_copy_whichever_row_the_plan_leaves_out() -> None:
    found = regrouped(whole(), planned((0, 1)), lost={"w21"})
    assert (found.generation, dict(found.sources)) == (2, {})
    assert {found.workers["w01"], found.workers["w11"]} == {(1, 1), (2, 1)}
    assert "w21" not in found.workers


def test_normalisation_moves_one_worker_by_one_copy_and_one_that_comes_back_takes_the_open_place() -> None:
    moved = regrouped(whole(), planned((2, 0)), lost={"w11"})
    ((member, source),) = moved.sources.items()
    assert moved.workers[member] == (1, 1) and member in ("w00", "w10", "w20") and moved.workers[source][1] == 1
    back = regrouped(moved, planned(), joined=["new"])
    assert back.workers["new"] == (2, 0) and list(back.sources) == ["new"]
    assert back.workers[back.sources["new"]][1] == 0
    assert {name: place for name, place in back.workers.items() if name != "new"} == dict(moved.workers)


def test_a_plan_for_more_failures_leaves_the_others_idle_at_their_stage() -> None:
    found = regrouped(whole(), planned((0, 0), (0, 1)), lost={"w10"})
    assert dict(found.sources) == {} and len(found.workers) == 5
    idle = [place for place in found.workers.values() if place not in found.plan.orders]
    assert [stage for _, stage in idle] == [1]


@pytest.mark.parametrize(
    ("lost", "message"),
    [({"w01", "w11", "w21"}, "parameters of stage 1"), ({"w00", "w01", "w11", "w10"}, "more workers")],
)
def test_what_too_few_workers_are_left_for_is_refused(lost: set[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        regrouped(whole(), planned((0, 1), (1, 1), (0, 0)) if "more" not in message else planned((0, 1)), lost=lost)


def test_reading_a_plan_loads_no_torch() -> None:
    code = "import sys; from pitstop.pipeline import PipelinePlan, publish; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
