"""Localisation on simulated clusters: which probes are asked for, and what their results prove."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.localization.judgement import judge
from recovery.localization.probes import Localization, Outcome, Pool, Probe, ProbeResult, Verdict, link_of
from recovery.localization.rounds import Effort, next_probes
from recovery.localization.simulation import Cluster, FaultKind, draw_cluster, localize, named, truth
from recovery.localization.standing import Ledger

Shows = Callable[[Probe], Outcome]


def explore(pool: Pool, shows: Shows, seconds_of_batch: float = 0.5) -> tuple[Localization, Ledger]:
    """Probe until nothing more is asked; passed worlds take 0.1 s."""
    ledger, elapsed = Ledger(pool), 0.0
    while batch := next_probes(ledger, elapsed=elapsed):
        ledger.add(ProbeResult(probe, shows(probe), 0.1) for probe in batch)
        elapsed += seconds_of_batch
    return judge(ledger), ledger


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{index}" for index in range(count))


def broken_nodes(*broken: str) -> Shows:
    return lambda probe: Outcome.TIMED_OUT if len(probe.members) > 1 and set(broken) & set(probe.members) else Outcome.PASSED


def broken_link(a: str, b: str) -> Shows:
    return lambda probe: Outcome.TIMED_OUT if {a, b} <= set(probe.members) else Outcome.PASSED


def alone_broken(*broken: str) -> Shows:
    return lambda probe: Outcome.ERROR if set(broken) & set(probe.members) else Outcome.PASSED


def test_everybody_is_tried_alone_before_anybody_meets_another() -> None:
    assert next_probes(Ledger(Pool(names(4), ("s0",)))) == tuple(Probe(0, 0, (node,)) for node in (*names(4), "s0"))


def test_who_fails_alone_never_enters_a_pair() -> None:
    found, ledger = explore(Pool(names(6)), alone_broken("n2"))
    assert found.isolate == ("n2",)
    assert all(result.alone or "n2" not in result.probe.members for result in ledger.results)


def test_who_failed_alone_once_is_undecided_and_never_enters_a_pair() -> None:
    times = iter((Outcome.ERROR, Outcome.PASSED, Outcome.PASSED))
    found, ledger = explore(Pool(names(6)), lambda probe: next(times) if probe.members == ("n2",) else Outcome.PASSED)
    assert found.nodes["n2"].verdict is Verdict.UNDECIDED
    assert all(result.alone or "n2" not in result.probe.members for result in ledger.results)


def test_silence_alone_proves_nothing() -> None:
    found, _ = explore(Pool(names(6)), lambda probe: Outcome.SILENT if probe.members == ("n1",) else Outcome.PASSED)
    assert found.nodes["n1"].verdict is Verdict.UNDECIDED
    assert found.isolate == ()


def test_a_node_that_cannot_be_probed_is_undecided_and_enters_no_pair() -> None:
    found, ledger = explore(Pool(names(6)), lambda probe: Outcome.VOID if probe.members == ("n1",) else Outcome.PASSED)
    assert found.nodes["n1"].verdict is Verdict.UNDECIDED
    assert "could not be probed" in found.nodes["n1"].why
    assert all(result.alone or "n1" not in result.probe.members for result in ledger.results)


def test_an_agent_that_falls_silent_in_the_middle_is_not_waited_for_again_and_again() -> None:
    found, ledger = explore(
        Pool(names(8)), lambda probe: Outcome.SILENT if "n3" in probe.members and probe.turn > 1 else Outcome.PASSED
    )
    assert not found.isolate
    assert sum(result.outcome is Outcome.SILENT for result in ledger.results) <= 6


@pytest.mark.parametrize("count", [4, 5, 8, 9])
def test_every_link_of_the_jobs_ring_is_tried_first(count: int) -> None:
    ledger = Ledger(Pool(names(count)))
    for _ in range(3):
        ledger.add(ProbeResult(probe, Outcome.PASSED, 0.1) for probe in next_probes(ledger))
    met = {link_of(*pair) for result in ledger.results for pair in combinations(result.probe.members, 2)}
    assert {link_of(f"n{index}", f"n{(index + 1) % count}") for index in range(count)} <= met


def test_an_odd_number_makes_one_world_of_three() -> None:
    ledger = Ledger(Pool(names(7)))
    ledger.add(ProbeResult(probe, Outcome.PASSED, 0.1) for probe in next_probes(ledger))
    assert sorted(len(probe.members) for probe in next_probes(ledger)) == [2, 2, 3]


def test_a_bad_link_between_good_nodes_is_told_from_its_ends() -> None:
    found, _ = explore(Pool(names(8)), broken_link("n3", "n4"))
    assert set(found.links) == {("n3", "n4")}
    assert found.named(Verdict.GOOD) == names(8)
    assert found.isolate == ()


def test_one_broken_link_that_the_ring_does_not_use_is_found_among_64_nodes() -> None:
    rng = random.Random(3)
    for _ in range(3):
        cluster = Cluster(Pool(names(64)), links=frozenset({link_of(*rng.sample(names(64), 2))}))
        measured = localize(cluster, rng)
        assert named(measured.localization) == truth(cluster)
        assert measured.seconds < 45


def test_a_broken_link_of_the_ring_ends_the_search_before_every_pair_has_met() -> None:
    found, ledger = explore(Pool(names(64)), broken_link("n3", "n4"))
    assert set(found.links) == {("n3", "n4")}
    assert ledger.turns < 20


def test_links_that_no_probe_crossed_are_called_undecided() -> None:
    found, ledger = explore(Pool(names(64)), lambda probe: Outcome.PASSED, seconds_of_batch=5.0)
    assert found.undecided_links == 64 * 63 // 2 - len(
        {link_of(*result.probe.members) for result in ledger.results if not result.alone}
    )
    assert f"{found.undecided_links} of 2016 links undecided" in found.summary
    assert explore(Pool(names(8)), lambda probe: Outcome.PASSED)[0].undecided_links == 0


def test_a_probe_that_was_killed_once_blames_nobody() -> None:
    times = iter([Outcome.VOID])
    found, _ = explore(Pool(names(8)), lambda probe: next(times, Outcome.PASSED) if "n3" in probe.members else Outcome.PASSED)
    assert found.named(Verdict.GOOD) == names(8)


def test_a_node_whose_probes_are_always_killed_is_undecided() -> None:
    found, ledger = explore(Pool(names(8)), lambda probe: Outcome.VOID if "n3" in probe.members else Outcome.PASSED)
    assert found.nodes["n3"].verdict is Verdict.UNDECIDED
    assert sum("n3" in result.probe.members for result in ledger.results) < 12


def test_one_disturbance_that_does_not_come_again_blames_nobody() -> None:
    times = iter([Outcome.TIMED_OUT])
    found, _ = explore(Pool(names(8)), lambda probe: next(times, Outcome.PASSED) if probe.round == 1 else Outcome.PASSED)
    assert found.named(Verdict.GOOD) == names(8)
    assert not found.links


def test_of_two_nodes_that_fail_together_neither_is_blamed() -> None:
    found, _ = explore(Pool(names(2)), broken_nodes("n0"))
    assert found.named(Verdict.UNDECIDED) == names(2)


def test_a_spare_tells_which_of_two_nodes_is_broken() -> None:
    found, _ = explore(Pool(names(2), ("s0",)), broken_nodes("n0"))
    assert found.isolate == ("n0",)
    assert found.nodes["n1"].verdict is Verdict.GOOD


def test_of_three_nodes_the_broken_one_is_named() -> None:
    found, _ = explore(Pool(names(3)), broken_nodes("n1"))
    assert found.isolate == ("n1",)
    assert found.named(Verdict.GOOD) == ("n0", "n2")


def test_of_three_nodes_a_bad_link_is_named() -> None:
    found, _ = explore(Pool(names(3)), broken_link("n0", "n1"))
    assert set(found.links) == {("n0", "n1")}
    assert found.isolate == ()


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_where_no_two_nodes_pass_together_nobody_is_blamed(count: int) -> None:
    found, _ = explore(Pool(names(count)), broken_nodes(*names(count)))
    assert found.named(Verdict.UNDECIDED) == names(count)
    assert "the network" in found.nodes["n0"].why


def test_where_all_fail_alone_all_are_named_and_none_is_isolated() -> None:
    found, _ = explore(Pool(names(4)), alone_broken(*names(4)))
    assert found.named(Verdict.FAULTY) == names(4)
    assert found.isolate == ()
    assert "a cause that they share" in found.caution


def test_two_good_nodes_of_eight_name_the_six_and_isolate_none() -> None:
    bad = names(8)[2:]
    found, _ = explore(Pool(names(8)), broken_nodes(*bad))
    assert found.named(Verdict.FAULTY) == bad
    assert found.isolate == ()


def test_a_lone_node_is_tried_alone_only() -> None:
    found, ledger = explore(Pool(names(1)), broken_nodes())
    assert [result.probe.members for result in ledger.results] == [("n0",)]
    assert found.isolate == ()


def test_a_whole_rack_is_one_fault() -> None:
    groups = {node: (f"rack{index // 2}",) for index, node in enumerate(names(8))}
    found, _ = explore(Pool(names(8), groups=groups), broken_nodes("n2", "n3"))
    assert set(found.groups) == {"rack1"}
    assert found.isolate == ()


def test_two_broken_nodes_of_a_rack_of_four_are_not_the_rack() -> None:
    groups = {node: (f"rack{index // 4}",) for index, node in enumerate(names(12))}
    found, _ = explore(Pool(names(12), groups=groups), broken_nodes("n4", "n6"))
    assert found.isolate == ("n4", "n6")
    assert not found.groups


def test_a_rail_that_crosses_the_racks_is_one_fault() -> None:
    groups = {node: (f"rack{index // 4}", f"rail{index % 4}") for index, node in enumerate(names(16))}
    rail = [node for node in names(16) if "rail2" in groups[node]]
    found, _ = explore(Pool(names(16), groups=groups), broken_nodes(*rail))
    assert set(found.groups) == {"rail2"}


def test_the_time_limit_ends_the_search_and_leaves_the_open_undecided() -> None:
    found, ledger = explore(Pool(names(8)), broken_nodes("n2"), seconds_of_batch=20.0)
    assert ledger.turns == 3
    assert found.nodes["n2"].verdict in (Verdict.UNDECIDED, Verdict.FAULTY)


LASTING = [kind for kind in FaultKind if not kind.value.startswith("intermittent")]


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [(kind, nodes) for kind in LASTING for nodes in (8, 13, 64) if kind is not FaultKind.FAR_LINK or nodes < 64],
)
def test_a_lasting_fault_of_each_kind_is_found_exactly(kind: FaultKind, nodes: int) -> None:
    rng = random.Random(7)
    for _ in range(3):
        cluster = draw_cluster(kind, nodes, 0.05, rng)
        assert named(localize(cluster, rng).localization) == truth(cluster)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(FaultKind)),
    nodes=st.integers(2, 24),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_batches_are_disjoint_finite_and_every_node_gets_a_verdict(kind: FaultKind, nodes: int, share: float, seed: int) -> None:
    rng = random.Random(seed)
    cluster = draw_cluster(kind, nodes, share, rng)
    measured = localize(cluster, rng)
    assert measured.seconds <= Effort().seconds + 1.0
    assert set(measured.localization.nodes) == set(cluster.pool.everyone)
    by_turn: dict[int, list[str]] = {}
    for result in measured.localization.results:
        by_turn.setdefault(result.probe.turn, []).extend(result.probe.members)
    assert all(len(members) == len(set(members)) for members in by_turn.values())


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(4, 24), seed=st.integers(0, 2**32 - 1))
def test_every_blame_quotes_worlds_that_went_badly_for_it(nodes: int, seed: int) -> None:
    rng = random.Random(seed)
    found = localize(draw_cluster(FaultKind.INTERMITTENT_60, nodes, 0.2, rng), rng).localization
    for node in found.named(Verdict.FAULTY):
        evidence = found.nodes[node].evidence
        assert len(evidence) >= 2
        assert all(result.failed and node in result.probe.members for result in evidence)
