import copy
import subprocess
import sys
from typing import Any

import pytest

from pitstop.pipeline import Membership, PipelinePlan, PlanError
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


def test_reading_a_plan_loads_no_torch() -> None:
    code = "import sys; from pitstop.pipeline import PipelinePlan, publish; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
