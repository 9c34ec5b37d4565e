"""The lines of a failed run that read as if they said what went wrong."""

from __future__ import annotations

import pytest

from agents.telling import telling_lines

FAILED = "frobnicator lost its phase lock"


@pytest.mark.parametrize(
    "around",
    [
        "[2024-05-05 10:00:00,123] [INFO] [loss_scaler.py:190:update_scale] OVERFLOW! Rank 0 Skipping step.",
        "n1:8:9 [0] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file",
        "I0505 10:00:00.123456 17 client.cc:9] could not reach the cache, asking the origin",
        'time="2024-05-05" level=info msg="mount failed, tried again"',
        "[W socket.cpp:558] [c10d] The IPv6 network addresses of (trainer-0, 29500) cannot be retrieved",
        "2024-05-05 10:00:00 WARNING hostfile not found",
        "/x/y.py:3: UserWarning: lengths mismatch",
    ],
)
def test_what_was_logged_as_routine_does_not_stand_beside_what_was_not(around: str) -> None:
    assert telling_lines([around, FAILED, around.replace("10:00:00", "10:00:01")]) == [FAILED]
    assert telling_lines(["step 1", around]) == [around]


def test_nccls_warnings_are_its_errors() -> None:
    lines = ["n1:8:9 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", FAILED]
    assert telling_lines(lines) == lines


def test_a_sentence_in_the_first_person_is_no_level() -> None:
    lines = ["I cannot read the index", FAILED]
    assert telling_lines(lines) == lines


def test_the_last_complaints_are_kept_in_order() -> None:
    lines = [f"part {n} failed" for n in range(9)]
    assert telling_lines(lines, most=3) == lines[-3:]
