"""Flight-recorder dumps: read without trust, compared across ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.stories.stage import free_port
from detectors.reading.flight_recorder import Dump, compare_dumps, parse_dump, read_plain_pickle


def entry(
    sequence: int, operation: str = "all_reduce", size: int = 4, done: bool = True, backend: str = "nccl"
) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "pg_id": 0,
        "collective_seq_id": sequence,
        "profiling_name": f"{backend}:{operation}",
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "time_created_ns": 1_795_000_000_000_000_000 + sequence,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "/work/train.py", "line": 7}],
    }


def dump(rank: int, *entries: dict[str, Any], world: int = 2, written: float | None = None) -> Dump:
    document = {
        "version": "2.10",
        "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
    }
    parsed = parse_dump(read_plain_pickle(pickle.dumps(document, 2)), f"/dumps/trace_{rank}", written)
    assert parsed is not None
    return parsed


def told(*dumps: Dump) -> list[str]:
    return [line.text.removeprefix("flight recorder: process group 0 (default_pg): ") for line in compare_dumps(dumps)]


def test_nothing_is_told_where_everything_has_ended() -> None:
    assert told(dump(0, entry(1), entry(2)), dump(1, entry(1), entry(2))) == []


def test_the_rank_that_has_enqueued_less_is_the_suspect() -> None:
    lines = compare_dumps([dump(0, entry(1), entry(2, done=False)), dump(1, entry(1))])
    assert [(line.rank, line.path) for line in lines] == [(1, "/dumps/trace_1")]
    assert "rank 1 has enqueued 1 collectives, others 2" in lines[0].text
    assert "/work/train.py:7 step" in lines[0].text


@pytest.mark.parametrize("other", [entry(2, "all_gather", done=False), entry(2, size=5, done=False)])
def test_ranks_that_run_different_collectives_have_diverged(other: dict[str, Any]) -> None:
    mine = entry(2, done=False)
    (text,) = told(dump(0, entry(1), mine, world=3), dump(1, entry(1), mine, world=3), dump(2, entry(1), other, world=3))
    assert text.startswith("ranks disagree about collective 2: rank 2 runs all_") and "ranks 0, 1 run all_reduce" in text


def test_ranks_that_agree_wait_for_the_collective_itself() -> None:
    (text,) = told(dump(0, entry(1), entry(2, done=False)), dump(1, entry(1), entry(2, done=False)))
    assert text.startswith("all 2 ranks wait in collective 2")


def test_gloo_reports_no_states_so_agreement_tells_nothing() -> None:
    assert told(*(dump(rank, entry(1, done=False, backend="gloo")) for rank in (0, 1))) == []


def test_a_rank_without_a_dump_is_told() -> None:
    (text,) = told(dump(0, entry(1, done=False), world=2))
    assert text.startswith("rank 1 left no dump")


def test_collectives_that_have_just_begun_are_no_hang() -> None:
    begun = 1_795_000_000.0
    assert told(dump(0, entry(1, done=False), written=begun + 1), dump(1, entry(1, done=False), written=begun + 1)) == []
    assert told(dump(0, entry(1, done=False), written=begun + 60), dump(1, entry(1, done=False), written=begun + 60)) != []


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/pitstop-owned",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pickle.dumps(Evil(), 2), "more than plain data"),
        (pickle.dumps(Evil(), 5), "more than plain data"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "claims more memory"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "bytearray8"),
        (b"\x80\x02}", "not opened"),
        (b"\x80\x02h\x05.", "not opened"),
    ],
)
def test_a_pickle_that_is_more_than_data_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_plain_pickle(data)
    assert not Path("/tmp/pitstop-owned").exists()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_dump(read_plain_pickle(b"\x80\x02" + data), "x")


settings_for_large = settings(max_examples=40)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*entry(1), "x"]), inner, max_size=6),
    max_leaves=8,
)


@settings_for_large
@given(
    st.lists(
        st.one_of(
            json_like, st.builds(lambda change: entry(1) | change, st.dictionaries(st.sampled_from([*entry(1)]), json_like))
        )
    )
)
def test_entries_that_make_no_sense_are_left_out(entries: list[Any]) -> None:
    parsed = parse_dump({"version": "2.10", "entries": entries, "pg_config": {}}, "trace_0")
    assert parsed is not None
    compare_dumps([parsed, dump(1, entry(1, done=False))])


def test_values_that_refer_to_themselves_a_million_times_cost_nothing() -> None:
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    hostile = entry(1, done=False) | {"input_sizes": bomb, "input_dtypes": bomb, "frames": bomb, "process_group": bomb}
    assert parse_dump({"version": "2", "entries": [hostile] * 10, "pg_config": {"0": {"ranks": bomb}}}, "t_0") is not None


@pytest.mark.acceptance
@pytest.mark.timeout(480)
def test_a_real_dump_of_two_gloo_ranks_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if rank == 0:
    dist.all_reduce(torch.ones(4), async_op=True)
open(sys.argv[2] + f"/dump_{rank}", "wb").write(_dump_fr_trace())
open(sys.argv[2] + f"/done_{rank}", "w").close()
deadline = time.monotonic() + 200
while not os.path.exists(sys.argv[2] + f"/done_{1 - rank}") and time.monotonic() < deadline:
    time.sleep(0.01)
os._exit(0)
"""
    )
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path), port], env=environment, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=220)
        assert process.returncode == 0, errors.decode()[-2000:]
    dumps = [
        parse_dump(read_plain_pickle((tmp_path / f"dump_{rank}").read_bytes()), str(tmp_path / f"dump_{rank}")) for rank in (0, 1)
    ]
    (line,) = compare_dumps([item for item in dumps if item])
    assert line.rank == 1 and "rank 1 has enqueued 3 collectives, others 4" in line.text and "train.py" in line.text
