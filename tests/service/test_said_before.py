"""What a renewal says is known where only the clock at its end is new, and in no other case."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.api.nodes import Lease, said_in
from service.said_before import MOST_OF_A_NODE, SaidBefore

DOCUMENT: dict[str, Any] = {"boot_id": "b", "agent_id": "a", "aliases": ["x"], "gpus": [{"serial": "S", "celsius": 61.0}]}


def body(clock: object, **fields: Any) -> bytes:
    return json.dumps(DOCUMENT | fields | {"clock": clock}).encode()


def taken(known: SaidBefore, sent: bytes, node: str = "n1") -> None:
    known.remember(node, sent, said_in(node, Lease.model_validate_json(sent)))


def test_only_the_clock_may_be_another() -> None:
    known = SaidBefore()
    taken(known, body(1.5))
    said, clock = known.read("n1", body(1796053371.196978)) or pytest.fail("this was said before")
    assert (said, clock) == (said_in("n1", Lease.model_validate_json(body(2.0))), 1796053371.196978)
    assert said.celsius == 61.0
    assert known.read("n2", body(2.0)) is None
    assert known.read("n1", body(2.0, boot_id="c")) is None
    assert known.read("n1", body(2.0, gpus=[{"serial": "S", "celsius": 62.0}])) is None


@pytest.mark.parametrize("clock", [-1.0, 1e11 + 1, math.nan, math.inf, 1e300, "5", None, True, [5], {"clock": 5}])
def test_a_clock_that_is_no_plain_number_is_looked_at(clock: object) -> None:
    known = SaidBefore()
    taken(known, body(1.5))
    assert known.read("n1", body(clock)) is None


def test_agents_of_several_jobs_on_one_node_are_known_and_old_words_forgotten() -> None:
    known = SaidBefore()
    for agent in range(MOST_OF_A_NODE + 1):
        taken(known, body(1.0, agent_id=str(agent)))
    assert [known.read("n1", body(2.0, agent_id=str(agent))) is not None for agent in range(MOST_OF_A_NODE + 1)] == [
        False,
        *[True] * MOST_OF_A_NODE,
    ]


VALUES = st.recursive(st.none() | st.floats() | st.text(max_size=3), lambda inner: st.dictionaries(st.just("clock"), inner))


@given(st.lists(st.tuples(st.sampled_from(["clock", "versions", "more"]), VALUES), max_size=4), st.floats(0, 1e11))
def test_what_is_known_is_what_reading_it_would_give(members: list[tuple[str, Any]], clock: float) -> None:
    known = SaidBefore()
    start = '{"boot_id": "b", "agent_id": "a", ' + "".join(
        f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in members
    )
    for first in (f'{start}"clock": 7.5}}', f'{start}"x": {{"clock": 7.5}}}}'):
        try:
            taken(known, first.encode())
        except ValidationError:
            continue
        again = first.replace("7.5", json.dumps(clock)).encode()
        found = known.read("n1", again)
        if found is not None:
            lease = Lease.model_validate_json(again)
            assert found == (said_in("n1", lease), lease.clock)
