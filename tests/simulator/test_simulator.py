"""The simulator: what a story adds up to, who gives way, and that nothing in it depends on anything but its inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.allotment import largest_feasible, rule_of_thumb
from simulator.comparison import band_of, paired, ratios, sensitivities, stories
from simulator.engine import Setting, simulate
from simulator.faults import DAY, Fault, FaultKind, TraceError, bursts, counted, recorded
from simulator.parameters import ParameterError, load_parameters
from simulator.policies import POLICIES, Reach
from simulator.published import trace_b
from simulator.workloads import CASES, Workload, case

PARAMETERS = load_parameters()
TRACE = Path(__file__).parents[3] / "shared" / "traces" / "infinitehbd_fault_trace.json"
LINEAR = tuple(float(nodes) for nodes in range(9))


def tasks(*weights: float) -> tuple[Workload, ...]:
    return tuple(Workload(f"t{index}", LINEAR, weight) for index, weight in enumerate(weights))


def lost_node(at: float = 1000.0, node: int = 0, repair: float = DAY) -> Fault:
    return Fault(at, node, FaultKind.NODE, repair)


def test_without_faults_every_policy_keeps_its_whole_worth() -> None:
    setting = Setting(8, tasks(1.0, 2.0), (), DAY)
    for name in POLICIES:
        told = simulate(setting, POLICIES[name](PARAMETERS, 64))
        assert told.worth == pytest.approx(told.full)
        assert told.changes == 0 and told.ettr == 1.0


def test_a_restart_in_place_costs_its_detection_and_its_transition() -> None:
    setting = Setting(4, tasks(1.0), (Fault(1000.0, 0, FaultKind.PROCESS),), DAY)
    told = simulate(setting, POLICIES["unicron"](PARAMETERS, 32))
    assert told.lost["detection"] == pytest.approx(4 * 1.8)
    assert told.lost["transition"] == pytest.approx(4 * PARAMETERS["transition.in_place"])
    assert told.lost["sub_healthy"] == 0.0


def test_a_fault_during_a_restart_begins_it_anew_and_is_not_counted_twice() -> None:
    faults = (Fault(1000.0, 0, FaultKind.PROCESS), Fault(1005.0, 0, FaultKind.PROCESS))
    told = simulate(Setting(4, tasks(1.0), faults, DAY), POLICIES["unicron"](PARAMETERS, 32))
    assert sum(told.lost.values()) == pytest.approx(4 * (5.0 + 1.8 + PARAMETERS["transition.in_place"]))


def test_the_plan_moves_a_node_from_a_light_task_to_a_heavy_one_and_waiting_does_not() -> None:
    light_and_heavy = (Workload("light", (0.0, 1.0), 0.5), Workload("heavy", (0.0, 0.0, 4.0), 2.0))
    setting = Setting(3, light_and_heavy, (lost_node(node=2),), 3 * DAY)
    planned = simulate(setting, POLICIES["unicron"](PARAMETERS, 24))
    waiting = simulate(setting, POLICIES["no reconfiguration"](PARAMETERS, 24))
    # Of a day without a node the light task is lost, not the heavy one.
    assert planned.lost["sub_healthy"] == pytest.approx(0.5 * DAY, rel=0.01)
    assert waiting.lost["sub_healthy"] == pytest.approx(8.0 * DAY, rel=0.01)


def test_a_spare_takes_the_place_of_a_lost_node_and_the_next_loss_waits() -> None:
    one = Setting(5, tasks(1.0), (lost_node(),), 3 * DAY)
    told = simulate(one, POLICIES["megatron"](PARAMETERS, 40))
    assert told.lost["sub_healthy"] == 0.0 and told.lost["transition"] > 0
    two = Setting(5, tasks(1.0), (lost_node(), lost_node(50_000.0, 1)), 3 * DAY)
    again = simulate(two, POLICIES["megatron"](PARAMETERS, 40))
    # From the second loss to the first repair nothing runs.
    assert again.lost["sub_healthy"] == pytest.approx(4 * (1000.0 + DAY - 50_000.0), rel=0.01)


def test_the_task_that_was_hit_goes_on_smaller_and_grows_again() -> None:
    told = simulate(Setting(4, tasks(1.0), (lost_node(),), 3 * DAY), POLICIES["hit task only"](PARAMETERS, 32))
    assert told.changes == 2
    assert told.lost["sub_healthy"] == pytest.approx(1.0 * DAY, rel=0.01)


def test_rules_of_thumb_divide_by_weight_or_size_and_leave_nobody_without_their_least() -> None:
    mixed = (Workload("small", LINEAR, 2.0, 1.0), Workload("large", (0.0, 0.0, *LINEAR[2:]), 0.5, 3.0))
    assert rule_of_thumb(Reach.EQUAL, mixed, 8) == [4, 4]
    assert rule_of_thumb(Reach.SIZE, mixed, 8) == [2, 6]
    assert rule_of_thumb(Reach.WEIGHT, mixed, 8) == [6, 2]


def test_more_nodes_may_be_worse_and_are_then_left_idle() -> None:
    assert largest_feasible(Workload("jumpy", (0.0, 1.0, 3.0, 2.0)), 3) == 2
    assert largest_feasible(Workload("large", (0.0, 0.0, 0.0, 2.0)), 2) == 0


@st.composite
def settings_drawn(draw: st.DrawFn) -> Setting:
    nodes = draw(st.integers(1, 8))
    values = st.lists(st.floats(0, 10), min_size=nodes, max_size=nodes)
    workloads = tuple(
        Workload(f"t{index}", (0.0, *draw(values)), draw(st.floats(0.5, 2))) for index in range(draw(st.integers(1, 4)))
    )
    fault = st.builds(
        Fault, st.floats(0, DAY), st.integers(0, nodes - 1), st.sampled_from(list(FaultKind)), st.floats(0, 2 * DAY)
    )
    faults = tuple(sorted(draw(st.lists(fault, max_size=12)), key=lambda item: item.at))
    return Setting(nodes, workloads, faults, DAY)


@settings(max_examples=60, deadline=None)
@given(settings_drawn(), st.sampled_from(sorted(POLICIES)))
def test_what_was_kept_and_what_was_lost_add_up_and_no_node_works_twice(setting: Setting, name: str) -> None:
    told = simulate(setting, POLICIES[name](PARAMETERS.with_(cluster__spares=0), setting.nodes * 8))
    assert told.worth + sum(told.lost.values()) == pytest.approx(told.full, rel=1e-9, abs=1e-6)
    assert 0 <= told.ettr <= 1 + 1e-9
    ends = [*(time for time, _ in told.waf[1:]), setting.seconds]
    drawn = sum(rate * (end - begun) for (begun, rate), end in zip(told.waf, ends, strict=True))
    assert drawn == pytest.approx(told.worth, rel=1e-9, abs=1e-6)
    assert told == simulate(setting, POLICIES[name](PARAMETERS.with_(cluster__spares=0), setting.nodes * 8))


def test_faults_are_the_same_for_the_same_seed_and_as_many_as_asked_for() -> None:
    drawn = [counted(16, 7, 26, 80, (1, 7), PARAMETERS, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(fault.kind is FaultKind.NODE for fault in drawn[0]) == 26 and len(drawn[0]) == 106
    together = bursts(16, 7, 2, 4, 60.0, (1, 7), 3)
    assert len(together) == 8 and together[3].at - together[0].at <= 60.0


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded fault trace is not beside this checkout")
def test_the_recorded_trace_is_read_whole() -> None:
    faults = recorded(TRACE, 400, 1)
    assert len(faults) == 584 and len({fault.node for fault in faults}) == 231
    mean_days = sum(fault.repair for fault in faults) / len(faults) / DAY
    assert mean_days == pytest.approx(5.5, abs=0.3)
    with pytest.raises(TraceError, match="more than 100 nodes"):
        recorded(TRACE, 100, 1)


def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"event_time": 1}]), encoding="utf-8")
    with pytest.raises(TraceError, match="is no fault trace"):
        recorded(path, 4, 1)


def test_every_assumption_has_a_source_and_open_ones_a_range() -> None:
    assert len(PARAMETERS.known) > 30
    for item in PARAMETERS.known.values():
        assert item.source
        assert item.is_open or "unverified" not in item.source or "uniform is unverified" in item.source
    with pytest.raises(ParameterError, match="no parameter"):
        PARAMETERS.with_(transition__nothing=1.0)


def test_in_each_of_the_five_cases_the_plan_is_worth_no_less_than_any_rule_of_thumb() -> None:
    for number in CASES:
        setting = Setting(16, tuple(case(number, 16, PARAMETERS)), (), 1.0)
        told = {
            name: simulate(setting, POLICIES[name](PARAMETERS, 128)).worth
            for name in ("unicron", "equal", "by weight", "by size")
        }
        assert told["unicron"] >= max(told.values()) * (1 - 1e-9)


def test_ratios_bands_and_sensitivities_are_of_the_same_faults() -> None:
    told = stories(trace_b, ("unicron", "megatron"), PARAMETERS, 1)
    assert ratios(told, "unicron")["megatron"] > 1
    assert paired([1.0, 1.0, 1.0]).low == 1.0
    band = band_of([float(value) for value in range(101)])
    assert (band.low, band.median, band.high) == (5.0, 50.0, 95.0) and band.holds(50) and not band.holds(99)
    found = sensitivities(trace_b, "unicron", "megatron", PARAMETERS.with_(cluster__tasks=2), (1,))
    assert found[0].swing >= found[-1].swing > 0
