"""Timestamps of every usual form."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.reading.timestamps import Stamps

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def stamps() -> Stamps:
    return Stamps(NOW.timestamp)


def at(*fields: int) -> float:
    return datetime(*fields, tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-28T10:11:12Z hello", at(2026, 11, 28, 10, 11, 12)),
        ("2026-11-28T10:11:12+02:00 hello", at(2026, 11, 28, 8, 11, 12)),
        ("[2026-11-28 10:11:12,500] [INFO] deepspeed", at(2026, 11, 28, 10, 11, 12) + 0.5),
        ("[default3]: [2026-11-28 10:11:12.250000] iteration  5/ 10 |", at(2026, 11, 28, 10, 11, 12) + 0.25),
        ("[2017/07/20-04:47:36.231116] xio_rdma_verbs.c:248", at(2017, 7, 20, 4, 47, 36) + 0.231116),
        ("[rank3]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] x", at(2026, 8, 17, 17, 40, 34) + 0.227531918),
        ("[rank3]:[E1129 01:02:03.5 ProcessGroupNCCL.cpp:1515] x", at(2026, 11, 29, 1, 2, 3) + 0.5),
        ("[rank3]:[W111 01:02:03.5 ProcessGroupNCCL.cpp:1515] x", at(2026, 1, 11, 1, 2, 3) + 0.5),
        ("W0409 07:28:49.530000 1359 torch/x.py:719] x", at(2026, 4, 9, 7, 28, 49) + 0.53),
        ("Sep  5 15:17:02 gpu-node-040 kernel: x", at(2026, 9, 5, 15, 17, 2)),
        ("[Wed Jan 27 23:04:35 2021] NVRM: x", at(2021, 1, 27, 23, 4, 35)),
        ("[Feb 27 2025 07:23:02] [INFO] x", at(2025, 2, 27, 7, 23, 2)),
        ("time=1764324672.25 level=info", 1764324672.25),
        ('{"timestamp": 1764324672250}', 1764324672.25),
        ("no stamp here", None),
        ("2026-13-45 99:99:99 nonsense", None),
    ],
)
def test_usual_forms_are_read(stamps: Stamps, text: str, time: float | None) -> None:
    assert stamps.read(text) == (None if time is None else pytest.approx(time, abs=1e-3))


def test_a_stamp_without_a_year_never_lies_in_the_future(stamps: Stamps) -> None:
    assert stamps.read("Dec 30 23:59:59 host kernel: x") == at(2025, 12, 30, 23, 59, 59)


def test_a_stamp_without_a_year_falls_into_the_year_of_the_stamps_before_it(stamps: Stamps) -> None:
    dated = stamps.read("[trainer] 2023-12-31 23:58:00,000 - INFO - saving the checkpoint")
    same_year = stamps.read("[rank1]:[E1231 23:59:00.000000000 ProcessGroupNCCL.cpp:629] timeout")
    next_year = stamps.read("[rank1]:[E101 00:01:00.000000000 ProcessGroupNCCL.cpp:629] timeout")
    assert dated is not None
    assert (same_year, next_year) == (dated + 60, dated + 180)


def test_the_leap_day_without_a_year_falls_into_a_leap_year(stamps: Stamps) -> None:
    assert stamps.read("Feb 29 12:00:00 host kernel: x") == at(2024, 2, 29, 12)


@given(st.text(max_size=100))
def test_any_text_is_read_without_error(text: str) -> None:
    Stamps(NOW.timestamp).read(text)
