"""Nodes stay where they are, replicas stay whole behind a switch, and what is not to be used is not used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.planning.placement import Move, Site, place, whole_replicas
from recovery.planning.tasks import PlanError


def cluster(switches: int, each: int, **named: Site) -> dict[str, Site]:
    sites = {f"n{s}{i}": Site(f"n{s}{i}", f"s{s}") for s in range(switches) for i in range(each)}
    return sites | named


def test_nothing_moves_where_the_sizes_stay() -> None:
    found = place({"a": 2, "b": 1}, {"a": ["n00", "n10"], "b": ["n01"]}, cluster(2, 2))
    assert found.nodes == {"a": ("n00", "n10"), "b": ("n01",)} and found.moves == ()


def test_a_lost_node_is_replaced_and_the_others_stay_in_their_order() -> None:
    sites = cluster(1, 4) | {"n01": Site("n01", "s0", usable=False)}
    found = place({"a": 3}, {"a": ["n02", "n01", "n00"]}, sites)
    assert found.nodes["a"] == ("n02", "n00", "n03")
    assert found.moves == (Move("n01", "a", None), Move("n03", None, "a"))


def test_a_spare_is_taken_only_where_nothing_else_is_free() -> None:
    sites = cluster(1, 2) | {"n00": Site("n00", "s0", is_spare=True), "x": Site("x")}
    assert place({"a": 2}, {"a": ["n01"]}, sites).nodes["a"] == ("n01", "x")
    assert place({"a": 3}, {"a": ["n01"]}, sites).nodes["a"] == ("n01", "x", "n00")


def test_a_shrinking_task_gives_up_the_broken_replica_first() -> None:
    # Replicas of two nodes: s0 holds one and a half, s1 holds one.
    current = {"a": ["n00", "n01", "n02", "n10", "n11"]}
    found = place({"a": 4}, current, cluster(2, 3), {"a": 2})
    assert whole_replicas(found.nodes["a"], cluster(2, 3), 2) == 2


def test_a_growing_task_completes_a_replica_before_it_begins_another() -> None:
    sites = cluster(3, 4)
    found = place({"a": 4, "b": 3}, {"a": ["n00", "n01", "n10"], "b": ["n20", "n21", "n22"]}, sites, {"a": 2})
    assert found.nodes["a"] == ("n00", "n01", "n10", "n11")


def test_a_new_task_of_whole_replicas_is_put_behind_switches_that_hold_them() -> None:
    sites = cluster(4, 3)
    found = place({"a": 1, "b": 4}, {"a": ["n00"]}, sites, {"b": 2})
    assert whole_replicas(found.nodes["b"], sites, 2) == 2


def test_too_few_nodes_and_shared_nodes_are_said() -> None:
    with pytest.raises(PlanError, match="only 2 are there"):
        place({"a": 3}, {"a": ["n00"]}, cluster(1, 2))
    with pytest.raises(PlanError, match="n00: more than one task"):
        place({"a": 1, "b": 1}, {"a": ["n00"], "b": ["n00"]}, cluster(1, 2))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_moves_are_the_fewest_and_no_node_is_used_twice_or_wrongly(data: st.DataObject) -> None:
    names = [f"n{index}" for index in range(12)]
    sites = {
        name: Site(name, f"s{index // 4}", data.draw(st.integers(0, 5)) > 0, data.draw(st.booleans()))
        for index, name in enumerate(names)
    }
    owner = {name: data.draw(st.sampled_from(["a", "b", "c", None])) for name in names}
    current = {task: [name for name in names if owner[name] == task] for task in "abc"}
    left = sum(site.usable for site in sites.values())
    targets = {}
    for task in "abc":
        targets[task] = data.draw(st.integers(0, left))
        left -= targets[task]
    replicas = {task: data.draw(st.integers(1, 3)) for task in "abc"}
    found = place(targets, current, sites, replicas)
    used = [node for nodes in found.nodes.values() for node in nodes]
    assert len(used) == len(set(used)) and all(sites[node].usable for node in used)
    assert {task: len(nodes) for task, nodes in found.nodes.items()} == targets
    own = {task: sum(sites[node].usable for node in current[task]) for task in "abc"}
    assert sum(move.taker is not None for move in found.moves) == sum(max(0, targets[task] - own[task]) for task in "abc")
