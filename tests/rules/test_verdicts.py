"""What must not change a verdict: routine lines, their order, teardown noise, a haystack around it; and what none may cause."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.diagnosis import diagnosis_document
from rules.signal import Role
from rules.taxonomy import NONE
from tests.rules.haystack import agrees, cases, diagnose_file, diagnose_lines, routine

SCALE = float(os.environ.get("SCALE", "1"))

TIMEOUT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51, "
    "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
)
TOO_LARGE = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.18 GiB is free. Of the allocated memory 75.02 GiB is allocated by PyTorch, and 1.11 GiB is reserved by PyTorch but "
    "unallocated."
)
CRASH = (
    "E0101 10:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11) local_rank: 1 (pid: 9) of "
    "binary: /usr/bin/python"
)
FAILURES = (
    (
        "gpu_fallen_off_bus",
        "[rank6]: RuntimeError: CUDA error: unspecified launch failure",
        "Mar  3 04:11:52 worker-7 kernel: NVRM: Xid (PCI:0000:91:00): 79, pid=4412, name=python3, GPU has fallen off the bus.",
    ),
    (
        "python_key_error",
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/w/train.py", line 10, in step',
        "[rank3]: KeyError: 'labels'",
        TIMEOUT,
    ),
    ("gpu_oom", TOO_LARGE),
    ("process_segfault", CRASH),
    ("job_preempted", "slurmstepd: error: *** JOB 88 ON n1 CANCELLED AT 2024-01-01T01:01:01 DUE TO PREEMPTION ***"),
)
ITERATION = (
    "[default{rank}]: [2025-11-28 10:{step}:00.000001] iteration       {step}/  500000 | consumed samples:         {step} | "
    "elapsed time per iteration (ms): 3100.0 | learning rate: 1.0E-04 | global batch size:  1024 | lm loss: 2.3E+00 | "
    "loss scale: 1.0 | grad norm: 0.300 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
DULL = (
    *(ITERATION.format(rank=rank, step=step) for rank, step in ((40, 11), (41, 12), (42, 13))),
    "n4:812:819 [3] NCCL INFO Channel 04/0 : 35[3] -> 36[4] via P2P/IPC/read",
    '2025-11-28 10:00:01 DEBUG urllib3.connectionpool: https://tracker.example:443 "POST /runs/1 HTTP/1.1" 200 None',
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
)
TEARDOWN = (
    "W0101 10:00:01.0 77 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 12 closing signal SIGTERM",
    "[rank1]:[E ProcessGroupNCCL.cpp:630] [Rank 1] To avoid data inconsistency, we are taking the entire process down.",
    "Mar  3 04:11:53 worker-7 kernel: NVRM: Xid (PCI:0000:92:00): 45, pid=4413, name=python3, Ch 00000010",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
)


@settings(max_examples=40)
@given(st.sampled_from(FAILURES), st.lists(st.sampled_from(DULL), max_size=12), st.randoms(use_true_random=False))
def test_routine_lines_in_any_order_never_change_the_verdict(
    failure: tuple[str, ...], dull: list[str], draw: random.Random
) -> None:
    reason, *lines = failure
    mixed = list(lines)
    for line in dull:
        mixed.insert(draw.randrange(len(mixed) + 1), line)
    found = diagnose_lines(mixed)
    assert found.reason == reason
    assert {item.text for item in found.evidence if item.role is Role.ROOT} == {
        item.text for item in diagnose_lines(lines).evidence if item.role is Role.ROOT
    }


@settings(max_examples=30)
@given(st.sampled_from(FAILURES), st.lists(st.sampled_from(TEARDOWN), max_size=8))
def test_teardown_noise_never_changes_the_root(failure: tuple[str, ...], noise: list[str]) -> None:
    reason, *lines = failure
    assert diagnose_lines([*lines, *noise]).reason == reason


@settings(max_examples=30)
@given(st.sampled_from(FAILURES), st.lists(st.sampled_from(DULL + TEARDOWN), max_size=8))
def test_evidence_is_quoted_exactly_under_its_number(failure: tuple[str, ...], others: list[str]) -> None:
    lines = [*others, *failure[1:]]
    for item in diagnose_lines(lines).evidence:
        assert item.line is not None
        assert item.text == lines[item.line - 1]


def test_the_same_input_gives_the_same_document() -> None:
    lines = [line for failure in FAILURES for line in failure[1:]]
    assert diagnosis_document(diagnose_lines(lines)) == diagnosis_document(diagnose_lines(lines))


@pytest.mark.parametrize("megabytes", [10, pytest.param(max(1, int(1000 * SCALE)), marks=pytest.mark.soak)])
def test_a_routine_training_log_is_no_failure(megabytes: int, tmp_path: Path) -> None:
    for seed in range(max(1, megabytes // 20)):
        lines = routine(min(megabytes, 20) * 1_000_000, seed=seed)
        found = diagnose_file("".join(line + "\n" for line in lines), tmp_path / "train.log")
        assert found.reason == NONE, [(item.line, item.rule, item.text) for item in found.evidence]


@pytest.mark.parametrize(
    ("every", "megabytes"),
    [(16, 1), pytest.param(1, max(1, int(50 * SCALE)), marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
)
def test_a_case_buried_in_routine_lines_gets_the_same_verdict_on_the_same_lines(
    every: int, megabytes: int, tmp_path: Path
) -> None:
    hay = list(routine(megabytes * 1_000_000))
    chosen = cases()[::every]
    lost = [case["id"] for case in chosen if not all(agrees(case, hay, tmp_path / "hay.log"))]
    assert len(lost) <= 0.03 * len(chosen), lost
