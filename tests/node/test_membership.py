"""Who may lead nodes that stood in a generation it knew nothing of, and what a follower answers by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from node.answering import answer_at_once
from node.care_states import Care, Command, CommandArrived, Event, Exited, NewerFormed, Phase
from node.channel import Listener, dial
from node.crew import Crew
from node.formation import Formation, Member
from node.job_state import JobState
from node.leader_line import join_message
from node.membership import leads_after
from node.rank_group import Launch
from node.reforming import Marks
from tests.node.peer import wait_for

N1, N2, N3 = (Member(f"n{number}", 1, "127.0.0.1") for number in (1, 2, 3))
# Of n1, n2 and n3 in generation 0, n1 and n3 went on without n2.
FORMED = Formation(1, (N1, N3))
FORMING = Care(Phase.STARTING, 3, generation=1)


def restart(generation: int, *nodes: str, **args: Any) -> Command:
    return Command(7, "restart_ranks", generation, {"nodes": list(nodes), **args})


def test_a_command_of_before_the_newest_generation_lets_nobody_lead_the_nodes_of_it() -> None:
    assert leads_after(FORMED, "n2", FORMING, restart(1, "n2", "n3")) is None
    assert leads_after(FORMED, "n2", replace(FORMING, generation=2), restart(2, "n2", "n3")) == 2


def test_a_later_command_neither_does_where_more_than_half_of_the_newest_generation_may_go_on() -> None:
    formed = Formation(1, (N1, N3, Member("n4", 1, "h")))
    care = replace(FORMING, generation=2)
    assert leads_after(formed, "n2", care, restart(2, "n2", "n3")) is None
    assert leads_after(formed, "n2", care, restart(2, "n2", "n3", off=["n1", "n4"])) == 2


def test_who_led_it_and_has_lost_what_it_kept_goes_on_above_it_and_nobody_else_does_so_by_itself() -> None:
    assert leads_after(FORMED, "n1", FORMING, None) == 2
    assert leads_after(FORMED, "n1", replace(FORMING, generation=6), None) == 6
    assert leads_after(FORMED, "n2", FORMING, None) is None
    running = replace(FORMING, phase=Phase.RUNNING, formed=True, running=frozenset((0,)))
    assert leads_after(FORMED, "n1", running, None) is None


@pytest.fixture
def led() -> Iterator[tuple[Listener, list[Event]]]:
    """Where a leader listens whose last generation is 0, and what it hears."""
    heard: list[Event] = []
    crew = Crew("job", heard.append, lambda: None, lambda _: None)
    listener = Listener("127.0.0.1", 0, crew.accept)
    crew.listen(listener)
    crew.expect(Formation(0, (N2, N3)), "n2", 0)
    yield listener, heard
    crew.close()


@pytest.mark.parametrize("formed", [True, False], ids=["its ranks stood in it", "it only remembers it"])
def test_a_node_that_joins_tells_of_the_newest_generation_in_which_its_ranks_stood(
    led: tuple[Listener, list[Event]], formed: bool
) -> None:
    listener, heard = led
    care = replace(FORMING, formed=formed, running=frozenset((1,)))
    state = JobState("job", ("train",), "boot", 0.0, care, formation=FORMED)
    line = dial("127.0.0.1", listener.port)
    line.start(lambda *_: None, lambda *_: None)
    line.send(join_message(Launch("job", ("train",), 1, 3, "n3", None), state, 1, Marks()))
    wait_for(lambda: any(isinstance(event, Exited) for event in heard), 20)
    assert [event for event in heard if isinstance(event, NewerFormed)] == ([NewerFormed(FORMED)] if formed else [])
    ended = [event.exit.rank for event in heard if isinstance(event, Exited)]
    assert ended == [1], "what it carried of the older one is gone, whatever bears that number now"
    line.close()


def test_a_command_for_the_generation_that_a_follower_runs_is_done_where_it_means_the_same_group() -> None:
    care = Care(Phase.RUNNING, 2, generation=1, formed=True, running=frozenset((1,)))
    state = JobState("job", ("train",), "boot", 0.0, care, formation=FORMED)
    answers = [answer_at_once(CommandArrived(restart(1, *nodes), 0.0), state) for nodes in (("n1", "n3"), ("n2", "n3"))]
    assert [answer[0] for answer in answers if answer is not None] == ["done", "refused"]
    assert answer_at_once(CommandArrived(restart(2, "n2", "n3"), 0.0), state) is None
