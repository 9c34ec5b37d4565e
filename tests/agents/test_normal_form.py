"""What differs between two occurrences of one failure does not show in its normal form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.normal_form import line_template, normal_form, normal_line

HOSTS = st.sampled_from(["node0", "node123", "gpu-7", "dgx42", "worker-9", "cn0007"])


@settings(max_examples=40)
@given(HOSTS, st.integers(0, 99_999), st.integers(0, 10**12), st.integers(0, 2**63), HOSTS)
def test_hosts_ranks_and_numbers_leave_the_normal_form(node: str, rank: int, size: int, address: int, other: str) -> None:
    def line(host: str, number: int, count: int, pointer: int) -> str:
        return f"[rank{number}]: {host} cannot map buffer of {count} bytes at 0x{pointer:x} for rank {number}, peer {host}"

    assert normal_line(line(node, rank, size, address)) == normal_line(line(other, 3, 4096, 255))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-01-02 03:04:05,678 lost link mlx5_0", "2025-11-30T23:59:59.1Z lost link mlx5_7"),
        ("E0102 03:04:05.678901  1234 kernel refused", "E1130 23:59:59.1 77 kernel refused"),
        ("cannot read /data/alice/shard-0001.tar", "cannot read /mnt/x/y/z/part_9.tar"),
        ("GET http://store.local:9000/a?b=1 failed", "GET https://s3.example.com/c failed"),
        ("peer 10.0.0.7:29500 closed", "peer 192.168.17.3:1 closed"),
        ("NVRM: GPU 0000:3b:00.0 gone", "NVRM: GPU 0000:86:00.0 gone"),
        ("\x1b[31mtrainer broke\x1b[0m", "trainer broke"),
        ("(TrainWorker pid=812, ip=10.1.2.3) trainer broke", "(TrainWorker pid=7, ip=10.9.9.9) trainer broke"),
    ],
)
def test_times_paths_addresses_and_prefixes_leave_the_normal_form(one: str, other: str) -> None:
    assert normal_line(one) == normal_line(other)


def test_words_that_name_the_failure_stay() -> None:
    assert "CUDA out of memory" in normal_line("rank 7: CUDA out of memory. Tried to allocate 20.00 MiB")


def test_lines_that_differ_only_in_what_is_masked_count_once() -> None:
    assert normal_form([f"rank {number} gave up" for number in range(50)]).count("\n") == 0


@settings(max_examples=20)
@given(st.text(max_size=2000))
def test_any_line_has_a_bounded_normal_form(text: str) -> None:
    assert len(normal_line(text)) <= 400


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "connection from 218.1.2.3 (dsl-1-2.example.net) at Sun Jul  3 10:05:30 2005",
            "connection from 9.8.7.6 () at Fri Jul  8 01:02:03 2005",
        ),
        ("iar 0040a9260 dear 00bd8", "iar 00105fe8 dear c2c00"),
        ("rank 3 wrote shard_0007.bin to host-a.example.org", "rank 12 wrote shard_0410.bin to host-b.example.org"),
    ],
)
def test_lines_of_one_kind_share_a_template(one: str, other: str) -> None:
    assert line_template(one) == line_template(other)


def test_lines_that_say_other_things_have_templates_of_their_own() -> None:
    assert line_template("session opened for 7") != line_template("session closed for 7")
