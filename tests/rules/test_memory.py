"""Arithmetic on allocator messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.ranking.memory import amount
from tests.rules.casebook import diagnose, rule, sighting

OOM = rule("T-OOM", "gpu_oom", weight=80)
SIZES = {"requested": "1.67 GiB", "capacity": "3.95 GiB", "allocated": "246 MiB", "free": "770 MiB", "reserved": "1.91 GiB"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.00 GiB", 2**31),
        ("91.5 MiB", 91.5 * 2**20),
        ("4770354232", 4770354232),
        ("6.48G", 6.48 * 2**30),
        ("0B", 0.0),
        ("x", None),
    ],
)
def test_amounts_are_read_with_their_unit(text: str, size: float | None) -> None:
    assert amount(text) == size


@given(st.text(max_size=20))
def test_no_text_breaks_the_reading_of_amounts(text: str) -> None:
    assert amount(text) is None or amount(text) is not None


def test_a_request_that_fits_into_free_and_cached_memory_shows_fragmentation() -> None:
    assert diagnose(sighting(OOM, 1, captures=SIZES)).reason == "gpu_oom_fragmentation"


def test_live_use_near_capacity_is_a_job_too_large_whatever_the_advice_says() -> None:
    sizes = {**SIZES, "allocated": "3.7 GiB", "reserved": "3.9 GiB", "free": "40 MiB"}
    assert diagnose(sighting(OOM, 1, captures=sizes, text="try max_split_size_mb to avoid fragmentation")).reason == "gpu_oom"


def test_free_memory_in_pieces_too_small_is_fragmentation() -> None:
    sizes = {"requested": "6.48G", "free": "6.78G", "contiguous": "3.33G"}
    assert diagnose(sighting(OOM, 1, captures=sizes)).reason == "gpu_oom_fragmentation"


def test_without_sizes_the_rule_stands() -> None:
    assert diagnose(sighting(OOM, 1, captures={"requested": "2.00 GiB"})).reason == "gpu_oom"


def test_an_absurd_request_after_a_timeout_is_garbage() -> None:
    timeout = rule("T-TIMEOUT", "nccl_timeout_unattributed", "cascade")
    diagnosis = diagnose(sighting(timeout, 1), sighting(OOM, 2, captures={"requested": "1EB"}))
    assert diagnosis.reason == "nccl_timeout_unattributed"


def test_a_device_full_of_somebody_elses_memory_needs_to_be_freed() -> None:
    sizes = {"requested": "20 MiB", "capacity": "31.75 GiB", "allocated": "812 MiB", "free": "18 MiB", "reserved": "860 MiB"}
    diagnosis = diagnose(sighting(OOM, 1, captures=sizes))
    assert (diagnosis.reason, diagnosis.severity.value) == ("gpu_busy_leftover_process", "SEV2")
