"""Ranks and nodes from prefixes and paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.reading.text import (
    MAX_TEXT_BYTES,
    Origin,
    line_text,
    origin_of_path,
    origin_of_text,
    quick_prefix,
    rank_span,
    torn_parts,
)


@pytest.mark.parametrize(
    ("text", "rank", "node"),
    [
        ("[rank3]: ValueError: x", 3, None),
        ("[default3]:[rank12]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] boom", 12, None),
        ("[trainer5]: iteration 5", 5, None),
        ("[1,2]<stdout>:gpu-node-003:29880:30398 [0] NCCL INFO x", 2, "gpu-node-003"),
        ("3: step 5 loss 2.0", 3, None),
        ("  12: step 5 loss 2.0", 12, None),
        ("0: gpu-node-002:21:28 [0] NCCL INFO Setting affinity", 0, "gpu-node-002"),
        ("(RayWorkerWrapper pid=92234, ip=10.19.24.110) [rank1]:[E1224 13:23:05.483840160 x] y", 1, "10.19.24.110"),
        ("(RayActor pid=7, ip=10.0.0.4) loading", None, "10.0.0.4"),
        ("node003: Traceback (most recent call last):", None, "node003"),
        ("worker-0: loading", None, "worker-0"),
        ("[node-b] W0409 07:28:49.530000 1359 torch/x.py:719] Received", None, "node-b"),
        ("[pod/train-worker-3/pytorch] hello", None, "train-worker-3"),
        ("Sep  5 15:17:02 gpu-node-040 kernel: NVRM: Xid", None, "gpu-node-040"),
        ("2026-01-02T03:04:05+00:00 gpu-node-041 kernel: NVRM: Xid", None, "gpu-node-041"),
        ("[2024-04-18 15:55:06] CRITICAL [olmo.util:158, rank=6] Uncaught", 6, None),
        ("[E ProcessGroupNCCL.cpp:563] [Rank 7] Watchdog caught", 7, None),
        ("RuntimeError: CUDA error: out of memory", None, None),
        ("17:40:34 step 3", None, None),
        ("eth0: link down", None, None),
        ("mlx5_core 0000:d2:00.0: firmware version: 28.39.1002", None, None),
        ("[INFO] starting", None, None),
        ("100: 5", 100, None),
    ],
)
def test_prefixes_name_rank_and_node(text: str, rank: int | None, node: str | None) -> None:
    origin = origin_of_text(text)[0]
    assert (origin.rank, origin.node) == (rank, node)


def test_torchrun_tells_the_local_rank_until_the_line_names_the_global_one() -> None:
    assert origin_of_text("[default5]: iteration 5")[0] == Origin(None, None, 5)
    assert origin_of_text("[default5]:[rank13]: iteration 5")[0] == Origin(13, None, 5)


@pytest.mark.parametrize(
    "shipped",
    [
        "2024-05-05T10:11:12.123456789Z ",
        "2024-05-05T10:11:12.123456789Z stderr F ",
        "worker-1  | ",
        "May 05 10:11:12 gpu3 train.sh[4411]: ",
        '{"log":"',
        "2024-05-05 10:11:12,123 ",
    ],
)
def test_torchruns_prefix_counts_behind_what_a_shipper_puts_before_it(shipped: str) -> None:
    assert origin_of_text(shipped + "[default5]: iteration 5")[0].local == 5
    assert origin_of_text(shipped + "[default5]:[rank13]: iteration 5")[0].rank == 13
    line = (shipped + "[default5]: iteration 5").encode()
    span = rank_span(line)
    assert span is not None and line[slice(*span)] == b"5"
    assert quick_prefix(line) == (5, None)
    assert origin_of_path("/log/none_4wzushrn/attempt_0/3/stderr.log") == Origin(None, None, 3)


def test_a_line_torn_by_two_writers_is_cut_where_the_second_begins() -> None:
    assert torn_parts("[rank1]: consumed sam[rank2]: KeyError: 'x'") == ["[rank1]: consumed sam", "[rank2]: KeyError: 'x'"]
    assert torn_parts("[default1]:[rank1]: whole") == ["[default1]:[rank1]: whole"]


@pytest.mark.parametrize(
    ("path", "rank", "node"),
    [
        ("logs/rank_3.log", 3, None),
        ("logs/node003/rank12.err", 12, "node003"),
        ("slurm-123.out", None, None),
        ("job.123.n4.out", None, "n4"),
        ("dmesg-gpu-node-001.txt", None, "gpu-node-001"),
        ("/scratch/run2/train.log", None, None),
    ],
)
def test_paths_name_rank_and_node(path: str, rank: int | None, node: str | None) -> None:
    assert origin_of_path(path) == Origin(rank, node)


def test_colour_nul_and_invalid_bytes_do_not_reach_the_text() -> None:
    assert line_text(b"\0\0\x1b[31mERROR\x1b[0m caf\xe9\r") == "ERROR caf\N{REPLACEMENT CHARACTER}"


def test_a_long_line_gives_its_beginning_and_a_redrawn_bar_its_end() -> None:
    assert line_text(b"begin" + b"x" * 10**6).startswith("begin")
    assert line_text(b"10%\r" * 10**5 + b"error").endswith("error")


@given(st.binary(max_size=300))
def test_any_bytes_give_a_text_and_an_origin(raw: bytes) -> None:
    text = line_text(raw)
    assert len(text) <= MAX_TEXT_BYTES
    _, rest = origin_of_text(text)
    assert text.endswith(rest)


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: ValueError: x",
        "[default3]:[rank12]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] boom",
        "[default3]: iteration 5",
        "[default3]: [Rank 12] Watchdog caught collective operation timeout",
        "[1,2]<stdout>:gpu-node-003:29880:30398 [0] NCCL INFO x",
        "  12: step 5 loss 2.0",
        "(RayWorkerWrapper pid=92234, ip=10.19.24.110) [rank1]:[E1224 13:23:05.483840160 x] y",
        "2025-11-28 09:57:52 nothing of a kind",
        "I1128 10:00:00.123456 no rank 4 here",
    ],
)
def test_the_place_of_the_rank_is_where_reading_finds_it_and_the_same_whatever_the_digits(line: str) -> None:
    origin, _ = origin_of_text(line)
    expected = origin.local if origin.rank is None else origin.rank
    span = rank_span(line.encode())
    assert (int(line[slice(*span)]) if span else None) == expected
    assert rank_span(line.translate(str.maketrans("123456789", "987654321")).encode()) == span
