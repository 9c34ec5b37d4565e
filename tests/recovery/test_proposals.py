"""What is proposed after something happened: from the table as from scratch, beside its alternatives, within bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.planning.alternatives import Adapted, AlternativeKind
from recovery.planning.cluster import ClusterState, TaskState, Trigger, TriggerKind, happen, parse_trigger, table_of
from recovery.planning.document import expand, parse_state, proposal_document
from recovery.planning.placement import Site
from recovery.planning.proposal import propose
from recovery.planning.tasks import ClusterRates, PlanError

HOUR = 3600.0


def names(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"n{index:02d}" for index in range(first, last + 1))


def cluster(
    *tasks: TaskState, nodes: int, spares: int = 0, mtbf_hours: float = 1_000.0, repair_hours: float = 10.0
) -> ClusterState:
    sites = {name: Site(name, f"s{index // 4}") for index, name in enumerate(names(1, nodes))}
    sites |= {f"x{index}": Site(f"x{index}", None, is_spare=True) for index in range(spares)}
    return ClusterState(sites, tasks, ClusterRates(mtbf_hours * HOUR), repair_hours * HOUR)


def linear(name: str, nodes: tuple[str, ...], **fields: float | str | None) -> TaskState:
    return TaskState(name, tuple(float(units) for units in range(33)), nodes, **fields)  # type: ignore[arg-type]


def alternative(state: ClusterState, what: str, kind: AlternativeKind):  # type: ignore[no-untyped-def]
    found = propose(state, [parse_trigger(what)])
    return next(item for item in found.alternatives if item.kind is kind)


def test_a_spare_takes_the_place_of_a_lost_node() -> None:
    state = cluster(linear("a", names(1, 4)), linear("b", names(5, 8)), nodes=8, spares=1)
    found = propose(state, [parse_trigger("node n02 lost")])
    assert found.placement.nodes == {"a": ("n01", "n03", "n04", "x0"), "b": names(5, 8)}
    assert found.changed == ("a",) and found.waf_undone == 4.0 and found.waf_proposed == 8.0


def test_a_spare_is_not_used_to_grow() -> None:
    state = cluster(linear("a", names(1, 4)), nodes=4, spares=2)
    assert propose(state, []).chosen.targets == {"a": 4}
    assert propose(state, [parse_trigger("node n99 new")]).placement.nodes["a"] == (*names(1, 4), "n99")


def test_waf_over_time_of_each_alternative_is_what_one_computes_by_hand() -> None:
    tasks = (
        linear("a", names(1, 4), transition_seconds=HOUR, restart_seconds=3 * HOUR),
        linear("b", names(5, 8), transition_seconds=2 * HOUR),
    )
    state = cluster(*tasks, nodes=8, mtbf_hours=700.0, repair_hours=10.0)  # 7 nodes are left: 100 h
    shrink = alternative(state, "node n01 lost", AlternativeKind.SHRINK)
    # An hour away, 9 h on 3 nodes, an hour away when the node is back, then as before; b runs on 4 throughout.
    assert shrink.accumulated == pytest.approx((100 * 4 + 9 * 3 + 89 * 4) * HOUR)
    wait = alternative(state, "node n01 lost", AlternativeKind.WAIT_FOR_REPAIR)
    assert wait.accumulated == pytest.approx((100 * 4 + 89 * 4) * HOUR)
    taken = alternative(state, "node n01 lost", AlternativeKind.TAKE_FROM_OTHER)
    # a away 1 h, then 4; b away 2 h, then 3 until the node is back at 10 h, away 2 h, then 4.
    assert taken.accumulated == pytest.approx((99 * 4 + 8 * 3 + 88 * 4) * HOUR)
    assert alternative(state, "node n01 lost", AlternativeKind.RESTART_ELSEWHERE).against == "0 nodes are idle, 4 are needed"
    assert sum(segment.seconds for segment in shrink.segments) == pytest.approx(100 * HOUR)


def test_where_two_jobs_were_hit_what_helps_one_leaves_the_other_waiting() -> None:
    state = cluster(linear("a", names(1, 4)), linear("b", names(5, 8)), nodes=8, repair_hours=1_000.0)
    found = propose(state, [parse_trigger("node n01 lost"), parse_trigger("node n05 lost")])
    shrinks = [item for item in found.alternatives if item.kind is AlternativeKind.SHRINK]
    assert {item.segments[-1].waf for item in shrinks} == {3.0}
    assert sum(found.chosen.targets.values()) == 6 and found.chosen.segments[-1].waf == 6.0


def test_the_planner_takes_a_node_from_the_job_that_is_worth_least_and_says_why() -> None:
    rich = replace(linear("rich", names(1, 4)), throughput=(0.0, 0.0, 0.0, 0.0, 40.0))
    poor = linear("poor", names(5, 8), weight=0.5)
    found = propose(cluster(rich, poor, nodes=8), [parse_trigger("node n01 lost")])
    assert found.chosen.targets == {"rich": 4, "poor": 3}
    assert len(found.placement.moves) == 2 and "more than the next best" in found.why


def test_a_held_job_is_not_moved_and_what_that_costs_is_said() -> None:
    rich = replace(linear("rich", names(1, 4)), throughput=(0.0, 0.0, 0.0, 0.0, 40.0))
    poor = linear("poor", names(5, 8), weight=0.5, held="reconfigure is in mode observe")
    found = propose(cluster(rich, poor, nodes=8), [parse_trigger("node n01 lost")])
    assert found.placement.nodes["poor"] == names(5, 8)
    assert "poor: reconfigure is in mode observe" in found.why


def test_a_running_job_is_not_stopped_for_another_that_is_worth_more() -> None:
    state = cluster(linear("a", names(1, 2), weight=0.01, minimum=2), linear("b", names(3, 4), weight=2.0), nodes=4)
    assert propose(state, []).chosen.targets == {"a": 2, "b": 2}


def test_adapting_the_pipeline_stands_beside_the_others_where_somebody_can_price_it() -> None:
    state = cluster(linear("a", names(1, 4), transition_seconds=HOUR), nodes=4, repair_hours=1_000.0)
    found = propose(state, [parse_trigger("node n04 lost")], adapter=lambda task, lost: Adapted(3.9, 5.0))
    assert found.chosen.kind is AlternativeKind.ADAPT_PIPELINE
    assert found.placement.nodes["a"] == names(1, 3)


def test_nodes_that_wait_for_a_repair_stay_with_their_job() -> None:
    task = replace(linear("a", names(1, 4)), throughput=(0.0, 0.0, 0.0, 0.0, 4.0))
    found = propose(cluster(task, nodes=4), [parse_trigger("node n04 lost")])
    assert found.chosen.kind is AlternativeKind.WAIT_FOR_REPAIR
    assert found.placement.moves == () and found.changed == ()


def random_state(rng: random.Random) -> ClusterState:
    count = rng.randint(2, 12)
    tasks, at = [], 1
    for index in range(rng.randint(1, 4)):
        size = rng.randint(0, max(0, count - at + 1) // 2)
        nodes = names(at, at + size - 1)
        at += size
        curve = (0.0, *(0.0 if rng.random() < 0.2 else rng.uniform(1, 5) * units for units in range(1, 16)))
        held = "by its owner" if size and rng.random() < 0.2 else None
        tasks.append(
            TaskState(
                f"t{index}",
                curve,
                nodes,
                rng.uniform(0.5, 2),
                rng.randint(1, 2),
                rng.uniform(0, 9e4),
                held=held,
                waiting=not size,
            )
        )
    return cluster(*tasks, nodes=count, spares=rng.randint(0, 2))


@settings(max_examples=80, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_table_answers_as_planning_from_scratch_does(rng: random.Random) -> None:
    state = random_state(rng)
    table = table_of(state)
    triggers = [Trigger(TriggerKind.NODE_LOST, name) for name, site in state.sites.items() if site.usable]
    triggers += [Trigger(TriggerKind.NODE_BACK, "n99")]
    triggers += [Trigger(TriggerKind.TASK_FINISHED, task.name) for task in state.tasks if task.nodes]
    triggers += [Trigger(TriggerKind.TASK_LAUNCHED, task.name) for task in state.tasks if task.waiting]
    for trigger in triggers:
        ahead, scratch = propose(state, [trigger], table), propose(state, [trigger])
        assert ahead.allocation.objective == pytest.approx(scratch.allocation.objective, rel=1e-12), trigger
        assert ahead.chosen.accumulated == pytest.approx(scratch.chosen.accumulated, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_proposed_holds_every_running_job_at_its_least_size(rng: random.Random) -> None:
    state = random_state(rng)
    trigger = Trigger(TriggerKind.NODE_LOST, rng.choice(sorted(state.sites)))
    found = propose(state, [trigger])
    used = [node for nodes in found.placement.nodes.values() for node in nodes]
    assert len(used) == len(set(used))
    for task in found.after.placed:
        if task.nodes and not task.hit and task.least <= len(task.nodes):
            assert len(found.placement.nodes[task.name]) >= task.least
        if task.held and not task.hit:
            assert found.placement.nodes[task.name] == task.nodes


def test_a_table_of_another_state_is_refused() -> None:
    state = cluster(linear("a", names(1, 2)), nodes=3)
    table = table_of(state)
    changed = happen(state, parse_trigger("task a weight 2"))
    with pytest.raises(PlanError, match="stale"):
        propose(changed, [parse_trigger("node n01 lost")], table)


@pytest.mark.parametrize("text", ["n17 lost", "node n17", "task a weight 0", "task a weight much", "node a b lost"])
def test_what_if_that_is_not_understood_names_the_forms(text: str) -> None:
    with pytest.raises(PlanError, match="node NAME lost"):
        parse_trigger(text)


def test_names_of_nodes_may_be_ranges() -> None:
    assert list(expand(["n[08-10]", "x", "r[1-2]-a"])) == ["n08", "n09", "n10", "x", "r1-a", "r2-a"]
    with pytest.raises(PlanError, match="ends before it begins"):
        list(expand("n[3-1]"))


GOOD = {"nodes": [{"names": "n[1-4]"}], "tasks": [{"name": "a", "nodes": "n[1-2]", "throughput": {2: 1e15}}]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": None}, "the state: nodes is a list"),
        ({"hosts": []}, "'hosts' is not known"),
        ({"tasks": [{"name": "a", "nodes": "n9", "throughput": {1: 1e15}}]}, "a task runs on n9"),
        ({"tasks": [{"name": "a", "nodes": "n1"}]}, "task a: neither a measured step time nor a model"),
        ({"tasks": [{"name": "a", "throughput": {"two": 1}}]}, "task a: throughput: 'two' is no number of nodes"),
        ({"tasks": [{"name": "a", "throughput": {2: 1e15}, "weight": -1}]}, "task a: weight is a number above 0"),
        ({"tasks": [{"name": "a", "model": {"layers": 3}}]}, "task a: model: hidden is a whole number"),
        ({"node_mtbf_days": "often"}, "node_mtbf_days is a number above 0"),
        ({"nodes": [{"names": ["n1", "n1"]}]}, "n1 is listed twice"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused_with_what_is_wrong(change: dict[str, object], says: str) -> None:
    assert parse_state(GOOD).task("a").throughput[2] == 1e15
    with pytest.raises(PlanError) as refused:
        parse_state(GOOD | change)
    assert says in str(refused.value)


def test_the_document_adds_up() -> None:
    state = cluster(linear("a", names(1, 4)), linear("b", names(5, 8)), nodes=9)
    document = proposal_document(propose(state, [parse_trigger("node n02 lost")]))
    assert document["waf"]["proposed"] == sum(task["waf_proposed"] for task in document["tasks"])
    assert document["moves"] == [{"node": "n02", "from": "a", "to": None}, {"node": "n09", "from": None, "to": "a"}]
    assert document["idle"] == [] and document["changed"] == ["a"]
