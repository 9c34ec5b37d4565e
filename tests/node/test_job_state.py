"""What an agent keeps of a job, and what of it others are told."""

from __future__ import annotations

from dataclasses import replace

from node.care_states import Care, Phase
from node.formation import Formation, Member
from node.job_state import JobState

RUNNING = Care(Phase.RUNNING, 2, generation=4, formed=True, running=frozenset((0, 1)))
STATE = JobState("job", ("train",), "boot", 0.0, RUNNING, formation=Formation(4, (Member("n1", 2, "h"),)))


def test_a_generation_is_told_of_once_its_nodes_are_settled() -> None:
    assert STATE.told.generation == 4
    forming = replace(STATE, care=replace(RUNNING, phase=Phase.STARTING, generation=6, formed=False, running=frozenset()))
    assert (forming.told.generation, forming.told.attempt) == (4, 5), "another half of the job may form it, or a later one, first"
    formed = replace(forming, care=replace(forming.care, formed=True), formation=Formation(6, (Member("n1", 2, "h"),)))
    assert formed.told.generation == 6
    begins = replace(forming, formation=None)
    assert begins.told.generation == 6
