"""What an agent says that it waits for."""

from __future__ import annotations

from node.care_states import Care, Command, Phase
from node.formation import Formation, Member, NodeBounds
from node.job_state import JobState
from node.waiting import QUIET_SECONDS, Wait, followed, missing

BEGINS = JobState("job", ("train",), "boot", 0.0, Care(Phase.STARTING, 1))
RUNS = JobState("job", ("train",), "boot", 0.0, Care(Phase.RUNNING, 2, formed=True, running=frozenset((1,))))
AT = [("10.0.0.1", 29400), ("10.0.0.2", 29400)]
FORMATION = Formation(0, (Member("n1", 1, "10.0.0.1"), Member("n2", 1, "10.0.0.2")))


def test_what_is_waited_for_is_said_once_and_something_else_again() -> None:
    wait = Wait()
    assert wait.look("n1", 10.0) is None and wait.look("n1", 9.9 + QUIET_SECONDS) is None and wait.said is None
    assert wait.look("n1", 10.0 + QUIET_SECONDS) == "n1" == wait.said
    assert wait.look("n1", 100.0) is None and wait.said == "n1"
    assert wait.look("n2", 101.0) is None and wait.said is None
    assert wait.look("n2", 101.0 + QUIET_SECONDS) == "n2"
    assert wait.look(None, 110.0) is None and wait.said is None


def test_a_follower_waits_for_a_leader_for_ranks_or_for_the_leader_that_a_command_names() -> None:
    none_answers = followed(BEGINS, None, None, AT)
    assert none_answers == "the agent that leads the job, which does not answer at 10.0.0.1:29400, 10.0.0.2:29400"
    no_ranks = followed(BEGINS, "10.0.0.1", None, AT)
    assert no_ranks is not None and no_ranks.startswith("the agent at 10.0.0.1, which leads the job, to give ranks")
    assert followed(RUNS, "10.0.0.1", None, AT) is None and followed(RUNS, None, None, AT) is None
    restart = Command(3, "restart_ranks", 1, {"nodes": ["n1", "n2"]})
    out_of_reach = followed(RUNS, None, restart, AT)
    assert out_of_reach == "node n1, which is to lead generation 1 by command 3, and does not answer"
    assert followed(RUNS, "10.0.0.1", restart, AT) is None, "it does what it is told by its leader"
    assert followed(RUNS, None, Command(4, "stop_ranks", 1), AT) is None


def test_a_leader_waits_for_the_nodes_of_a_command_of_the_generation_before_or_for_as_many_as_the_job_takes() -> None:
    bounds = NodeBounds(1, 3)
    assert missing(("n1",), ("n1", "n3"), FORMATION, bounds) == "the agents of n3"
    assert missing(("n1",), (), FORMATION, bounds) == "the agents of n2"
    assert missing(("n1",), (), None, bounds) == "the agents of more nodes: 1 of 3 are here"
