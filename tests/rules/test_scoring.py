"""The measures that decide whether a change of the rules is a gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.scoring import Judged, random_halves, root_precision, score, wilson

RIGHT = Judged(
    id="a",
    source="org/one#1",
    hard=True,
    truth={"reason": "gpu_oom", "family": "OutOfMemoryError", "category": "framework", "severity": "NONE"},
    culprits=frozenset((2, 3)),
    reason="gpu_oom",
    family="OutOfMemoryError",
    category="framework",
    severity="NONE",
    root_lines=(3, 9),
)
NORMAL = replace(
    RIGHT,
    id="n",
    truth={"reason": "none", "family": "none", "category": "none", "severity": "NONE"},
    culprits=frozenset(),
    reason="none",
    root_lines=(),
)


def test_a_right_case_counts_everywhere_and_half_of_its_lines_are_right() -> None:
    measures = score([RIGHT])
    assert [measures[name].rate for name in ("reason", "reason_hard", "family", "severity", "root_line")] == [1.0] * 5
    assert root_precision([RIGHT]) == 0.5


def test_isolating_a_healthy_node_is_harmful_also_in_a_normal_excerpt() -> None:
    measures = score([RIGHT, replace(NORMAL, reason="gpu_fallen_off_bus", severity="SEV1")])
    assert measures["harmful_isolations"].ids == ("n",)
    assert measures["false_alarms"].count == 1


def test_stopping_a_job_that_a_restart_would_have_saved_is_a_false_stop() -> None:
    lost = replace(RIGHT, truth={**RIGHT.truth, "reason": "process_segfault", "severity": "SEV2"})
    assert score([lost])["false_stops"].rate == 1.0


def test_unknown_does_not_stop_a_job_that_should_be_stopped() -> None:
    measures = score([replace(RIGHT, reason="unknown", severity="NONE")])
    assert measures["stopped_where_right"].rate == 0.0
    assert measures["overlooked"].rate == 0.0


def test_wilson_interval_of_half_of_ten() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) is None


def test_random_halves_keep_the_cases_of_a_source_together_and_repeat() -> None:
    wrong = replace(RIGHT, id="b", source="org/two#5", reason="unknown")
    spread = random_halves([RIGHT, replace(RIGHT, id="c", source="org/one#2"), wrong], repeats=20)
    assert spread["reason"][0] == 0.0
    assert spread["reason"][2] == 1.0
    assert spread == random_halves([RIGHT, replace(RIGHT, id="c", source="org/one#2"), wrong], repeats=20)
