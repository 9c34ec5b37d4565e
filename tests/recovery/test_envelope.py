"""The safety envelope: what may be taken out, and that its limits hold over every sequence."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.envelope import BreakerLimits, Fleet, Maintenance, NodeFacts, Removal, free_spares, review

DAY = 86_400.0
NODES = {f"n{number}": NodeFacts(f"n{number}", rack=f"rack{number // 4}") for number in range(40)}
FLEET = Fleet(NODES, limits=BreakerLimits(share=0.1, per_rack=2))


def test_a_node_in_service_may_be_taken_out_while_there_is_room():
    verdict = review(["n1"], FLEET, 1000.0)
    assert (verdict.allowed, verdict.take) == (True, ("n1",))
    assert verdict.sentence == "1 of at most 4 nodes out within the window"


def test_the_breaker_stops_at_its_share_of_the_fleet():
    out = tuple(Removal(f"n{number}", 900.0) for number in (0, 4, 8, 12))
    verdict = review(["n16"], replace(FLEET, removals=out), 1000.0)
    assert not verdict.allowed
    assert "5 nodes would be out" in verdict.sentence


def test_the_breaker_stops_at_two_nodes_of_one_rack():
    verdict = review(["n2"], replace(FLEET, removals=(Removal("n0", 900.0), Removal("n1", 900.0))), 1000.0)
    assert not verdict.allowed
    assert "3 nodes of rack0" in verdict.sentence


def test_returned_nodes_leave_the_breaker_after_the_window_and_those_still_out_do_not():
    back = tuple(Removal(f"n{number}", 900.0, returned_at=950.0) for number in (0, 4, 8, 12))
    assert not review(["n16"], replace(FLEET, removals=back), 1000.0).allowed
    assert review(["n16"], replace(FLEET, removals=back), 901.0 + DAY).allowed
    still = tuple(Removal(f"n{number}", 900.0) for number in (0, 4, 8, 12))
    assert not review(["n16"], replace(FLEET, removals=still), 901.0 + DAY).allowed


def test_a_small_fleet_may_lose_one_node():
    small = Fleet({name: NODES[name] for name in ("n0", "n1")})
    assert review(["n0"], small, 1000.0).allowed
    assert not review(["n0", "n1"], small, 1000.0).allowed


def test_planned_maintenance_leaves_its_nodes_alone_and_ends_with_its_time():
    planned = Maintenance(500.0, 2000.0, "driver upgrade", racks=frozenset({"rack0"}))
    fleet = replace(FLEET, maintenance=(planned,))
    assert "driver upgrade" in review(["n1"], fleet, 1000.0).sentence
    assert review(["n5"], fleet, 1000.0).allowed
    assert review(["n1"], fleet, 2000.0).allowed
    assert not review(["n5"], replace(FLEET, maintenance=(Maintenance(0, 2000, "move"),)), 1000.0).allowed


def test_a_node_that_others_cordoned_is_left_alone_and_not_counted():
    fleet = replace(FLEET, nodes={**NODES, "n1": replace(NODES["n1"], cordoned_by="ann")})
    verdict = review(["n1"], fleet, 1000.0)
    assert (verdict.allowed, verdict.take) == (True, ())
    assert "cordoned by ann already" in verdict.sentence


def test_a_node_put_back_by_hand_is_not_taken_out_again():
    fleet = replace(FLEET, removals=(Removal("n1", 900.0, cancelled_by="ann"),))
    assert "ann put n1 back by hand" in review(["n1"], fleet, 1000.0).sentence
    assert review(["n1"], fleet, 901.0 + DAY).allowed


def test_a_name_that_resolves_to_no_node_is_never_a_target():
    assert not review(["gpu-node"], FLEET, 1000.0).allowed
    assert not review([], FLEET, 1000.0).allowed


def test_frozen_nothing_is_taken_out():
    assert "frozen (by ann)" in review(["n1"], FLEET, 1000.0, frozen="by ann").sentence


def test_spares_are_those_that_could_work_now():
    nodes = {
        "a": NodeFacts("a", is_spare=True),
        "b": NodeFacts("b", is_spare=True, cordoned_by="ann"),
        "c": NodeFacts("c", is_spare=True, is_alive=False),
        "d": NodeFacts("d", is_spare=True),
        "e": NodeFacts("e"),
    }
    assert free_spares(Fleet(nodes), {"d"}, 1000.0) == ("a",)
    assert free_spares(Fleet(nodes, maintenance=(Maintenance(0, 2000, "x"),)), (), 1000.0) == ()


acts = st.lists(
    st.tuples(
        st.sampled_from(["isolate", "return", "cancel", "freeze", "unfreeze", "others"]),
        st.lists(st.sampled_from(sorted(NODES)), min_size=1, max_size=3, unique=True),
        st.floats(0, DAY / 3),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(acts, st.booleans())
def test_no_sequence_of_isolations_returns_and_freezes_passes_the_breaker(sequence, maintenance):
    planned = (Maintenance(0.0, DAY, "x", racks=frozenset({"rack1"})),) if maintenance else ()
    fleet, now, frozen = replace(FLEET, maintenance=planned), 1000.0, None
    for act, names, later in sequence:
        now += later
        if act in ("freeze", "unfreeze"):
            frozen = "by ann" if act == "freeze" else None
        elif act == "others":
            nodes = {name: replace(fleet.nodes[name], cordoned_by="ann") for name in names if not fleet.nodes[name].cordoned_by}
            fleet = replace(fleet, nodes={**fleet.nodes, **nodes})
        elif act == "isolate":
            verdict = review(names, fleet, now, frozen)
            if verdict.allowed:
                assert frozen is None
                assert not any(fleet.nodes[name].cordoned_by for name in verdict.take)
                assert not any(planned and planned[0].covers(fleet.nodes[name], now) for name in verdict.take)
                nodes = {name: replace(fleet.nodes[name], cordoned_by="pitstop") for name in verdict.take}
                fleet = replace(
                    fleet,
                    nodes={**fleet.nodes, **nodes},
                    removals=(*fleet.removals, *(Removal(name, now) for name in verdict.take)),
                )
        else:
            out = {removal.node for removal in fleet.removals if removal.returned_at is None and not removal.cancelled_by}
            back = out & set(names)
            change = {"returned_at": now} if act == "return" else {"cancelled_by": "ann"}
            fleet = replace(
                fleet,
                removals=tuple(
                    replace(removal, **change)
                    if removal.node in back and removal.returned_at is None and not removal.cancelled_by
                    else removal
                    for removal in fleet.removals
                ),
                nodes={**fleet.nodes, **{name: replace(fleet.nodes[name], cordoned_by=None) for name in back}},
            )
        counted = fleet.counted(now)
        assert len(counted) <= fleet.limits.overall(len(NODES))
        for rack in {node.rack for node in NODES.values()}:
            assert sum(fleet.nodes[name].rack == rack for name in counted) <= fleet.limits.per_rack
