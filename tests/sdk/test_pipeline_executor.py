import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.pipeline import Membership, PipelinePlan, publish, regrouped
from recovery.planning.pipeline.model import Mode, Problem
from recovery.planning.pipeline.planner import plan
from recovery.planning.pipeline.specification import Specification, answer
from tests.sdk.pipeline_job import Job, Reference

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

REPLICAS, STAGES, MICROBATCHES = 3, 2, 3
TOTAL = REPLICAS * MICROBATCHES


def document(failed: set[tuple[int, int]], mode: Mode = Mode.STAGGERED, cap: int = 3) -> dict[str, Any]:
    problem = Problem(REPLICAS, STAGES, MICROBATCHES, mode=mode, activation_cap=cap, failed=frozenset(failed))
    found = plan(problem)
    return answer(Specification(problem), found, found)


def places(*missing: tuple[int, int]) -> dict[str, tuple[int, int]]:
    workers = [(replica, stage) for replica in range(REPLICAS) for stage in range(STAGES)]
    return {f"w{replica}{stage}": (replica, stage) for replica, stage in workers if (replica, stage) not in missing}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.stop()


def assert_same(found: dict[str, Any], reference: Reference, iterations: int) -> None:
    for record in found.values():
        module = reference.modules[record["worker"][1]]
        for ours, theirs in zip(record["parameters"], module.parameters(), strict=True):
            assert (ours - theirs).abs().max() <= 1e-9
        for ours, theirs in zip(record["gradients"], module.parameters(), strict=True):
            assert (ours - theirs.grad).abs().max() <= 1e-10 * max(1.0, float(theirs.grad.abs().max()))
    losses = [
        sum(loss for record in found.values() for loss in record["losses"].get(index, {}).values()) for index in range(iterations)
    ]
    assert losses[-1] == pytest.approx(reference.losses[-1], abs=1e-12)


@pytest.mark.parametrize(("mode", "failed"), [(Mode.STAGGERED, {(1, 1)}), (Mode.COUPLED, set())])
def test_gradients_and_parameters_are_those_of_one_process(
    tmp_path: Path, jobs: list[Job], mode: Mode, failed: set[tuple[int, int]]
) -> None:
    job = Job(tmp_path, (STAGES, TOTAL), 5)
    jobs.append(job)
    members = places(*failed)
    publish(job.store, 1, document(failed, mode), members)
    job.start(*members)
    found = job.wait()
    reference = Reference(STAGES, TOTAL)
    reference.run(5)
    assert_same(found, reference, 5)
    for record in found.values():
        assert max(record["peaks"].values()) <= 3


def test_a_step_that_one_stage_could_not_take_is_taken_back_everywhere(tmp_path: Path, jobs: list[Job]) -> None:
    poison = (1, 4)
    job = Job(tmp_path, (STAGES, TOTAL), 4, poison=poison)
    jobs.append(job)
    publish(job.store, 1, document(set()), places())
    job.start(*places())
    found = job.wait()
    reference = Reference(STAGES, TOTAL, poison)
    reference.run(4)
    assert_same(found, reference, 4)
    assert all(record["skipped"] == [1] for record in found.values())


def test_a_worker_that_dies_while_a_generation_forms_holds_nobody_up(tmp_path: Path, jobs: list[Job]) -> None:
    job = Job(tmp_path, (STAGES, TOTAL), 2)
    jobs.append(job)
    publish(job.store, 1, document(set()), places())
    left = places((1, 1))
    job.start(*left)
    deadline = time.monotonic() + 120
    while job.store.add("pitstop/pipeline/forming/1/here", 0) < len(left):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    publish(job.store, 2, document({(1, 1)}), left)
    found = job.wait()
    reference = Reference(STAGES, TOTAL)
    reference.run(2)
    assert_same(found, reference, 2)
    assert all(set(record["generations"].values()) == {2} for record in found.values())


def test_training_goes_on_through_two_kills_and_a_repair(tmp_path: Path, jobs: list[Job]) -> None:
    # w11 is killed in the middle of iteration 2 and w20 moves to its place; w10 is killed in iteration 5; w11b comes back for
    # stage 0 before iteration 8 is over.
    job = Job(tmp_path, (STAGES, TOTAL), 11, hangs=[("w11", 2), ("w10", 5)], waits={8: 4})
    jobs.append(job)
    publish(job.store, 1, document(set()), places())
    job.start(*places())
    present = Membership(1, PipelinePlan.from_document(document(set())), places(), {})

    def go_on(failed: set[tuple[int, int]], **change: Collection[str]) -> Membership:
        told = document(failed)
        found = regrouped(present, told, **change)  # type: ignore[arg-type]
        publish(job.store, found.generation, told, found.workers, found.sources)
        return found

    job.store.wait(["hangs/w11"])
    job.kill("w11")
    present = go_on({(2, 0)}, lost=["w11"])
    job.store.wait(["hangs/w10"])
    job.kill("w10")
    present = go_on({(2, 0), (1, 0)}, lost=["w10"])
    job.start("w11b")
    present = go_on({(1, 0)}, joined=["w11b"])

    found = job.wait()
    assert set(found) == {"w00", "w01", "w20", "w21", "w11b"}
    reference = Reference(STAGES, TOTAL)
    reference.run(11)
    assert_same(found, reference, 11)
    # One copy for the move, one for the worker that came back, none otherwise.
    assert {member: record["copies"] for member, record in found.items()} == {"w00": 0, "w01": 0, "w20": 1, "w21": 0, "w11b": 1}
    losses = found["w21"]["losses"]
    assert sorted(losses) == list(range(11))
