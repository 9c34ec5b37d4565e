"""Who carries the ranks of a generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.formation import Formation, Member, NodeBounds, choose_members, parse_bounds

NODES = ("n1", "n2", "n3")
PRESENT = {node: Member(node, 2, "10.0.0.1", 1) for node in NODES}


def names(members: tuple[Member, ...] | None) -> tuple[str, ...] | None:
    return None if members is None else tuple(member.node for member in members)


def test_ranks_are_numbered_through_the_members_in_order() -> None:
    formation = Formation(3, (Member("b", 2, "h"), Member("a", 3, "h")))
    assert formation.world == 5 and list(formation.ranks_of("a")) == [2, 3, 4]
    assert formation.place("a").group_rank == 1 and formation.place("a").world == 5
    assert [formation.node_of(rank) for rank in range(5)] == ["b", "b", "a", "a", "a"]
    assert list(formation.ranks_of("elsewhere")) == []


@given(st.integers(1, 7), st.data())
def test_of_two_halves_that_do_not_reach_each_other_at_most_one_may_go_on(size: int, data: st.DataObject) -> None:
    """The one with the leader by itself, or the other by command: the two rules never agree to both."""
    nodes = tuple(f"n{number}" for number in range(size))
    formation = Formation(3, tuple(Member(node, 1, "h") for node in nodes))
    beside = data.draw(st.sets(st.sampled_from(nodes)), label="beside the leader") | {"n0"}
    others = [node for node in nodes if node not in beside]
    by_itself = NodeBounds(1, size).allow(len(beside), size)
    assert by_itself == (formation.hindrance([*others, "spare"], ()) is not None)
    # A leader that is told goes on with however few, and the others without a leader that is off.
    assert formation.hindrance(sorted(beside), ()) is None
    assert formation.hindrance(others, sorted(beside)) is None


def test_the_first_start_waits_for_all_that_the_bounds_take_and_then_for_enough() -> None:
    two = {node: PRESENT[node] for node in ("n1", "n2")}
    bounds = NodeBounds(2, 3)
    assert choose_members(two, "n2", bounds) is None
    assert names(choose_members(two, "n2", bounds, waited=True)) == ("n2", "n1"), "the leader comes first"
    assert names(choose_members(PRESENT, "n2", bounds)) == ("n2", "n1", "n3")
    assert choose_members({"n1": PRESENT["n1"]}, "n1", bounds, waited=True) is None


def test_nodes_stand_in_the_order_that_they_ask_for() -> None:
    present = {node: Member(node, 1, "h", 1, order) for node, order in (("a", 2), ("b", 0), ("c", 1))}
    assert names(choose_members(present, "b", NodeBounds(3, 3))) == ("b", "c", "a")


def test_a_command_gets_exactly_the_nodes_that_it_names_or_waits_for_them() -> None:
    assert names(choose_members(PRESENT, "n1", NodeBounds(3, 3), wanted=("n1", "n3"))) == ("n1", "n3")
    assert choose_members(PRESENT, "n1", NodeBounds(1, 3), wanted=("n1", "n9"), waited=True) is None


def test_two_halves_of_a_job_never_both_go_on_by_themselves() -> None:
    bounds = NodeBounds(1, 2)
    assert choose_members({"n1": PRESENT["n1"]}, "n1", bounds, previous=("n1", "n2"), waited=True) is None
    three = {node: PRESENT[node] for node in ("n1", "n3")}
    assert names(choose_members(three, "n1", NodeBounds(1, 3), previous=NODES, waited=True)) == ("n1", "n3")


@given(
    present=st.sets(st.sampled_from(NODES)),
    previous=st.permutations(NODES).map(tuple),
    waited=st.booleans(),
    least=st.integers(1, 3),
)
def test_what_is_chosen_is_there_leads_and_keeps_the_bounds(
    present: set[str], previous: tuple[str, ...], waited: bool, least: int
) -> None:
    chosen = names(
        choose_members({node: PRESENT[node] for node in present}, "n1", NodeBounds(least, 3), previous=previous, waited=waited)
    )
    if chosen is not None:
        assert chosen[0] == "n1" and set(chosen) <= present and len(set(chosen)) == len(chosen) >= least
        assert 2 * len(chosen) > len(previous)


@pytest.mark.parametrize("text", ["0", "2:1", "a", "1:2:3", ""])
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bounds(text)


def test_bounds_are_a_number_or_a_range() -> None:
    assert parse_bounds("4") == NodeBounds(4, 4) and parse_bounds("1:8") == NodeBounds(1, 8)
