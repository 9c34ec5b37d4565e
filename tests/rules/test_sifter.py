"""The sifter: both forms give the same answers, and what was learnt of a shape holds for every line of it."""

from __future__ import annotations

import random
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rules.scan_verdicts import KEEP
from rules.sifter import ASK, NO_RANK, PythonSifter, Sifter, new_sifter

RULES = 3
LINE = st.text(alphabet="ab 0179.:[]E-\r\x00é", max_size=40).map(str.encode)


def fast_sifter() -> Sifter:
    sifter = new_sifter(RULES)
    if isinstance(sifter, PythonSifter):
        pytest.skip("rules/_sifter.c was not built here: no C compiler at installation")
    return sifter


def block_of(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def sift(sifter: Sifter, block: bytes, number: int = 1) -> tuple[list[int], list[bytes], list[int]]:
    """What a sifter does not know of a block that it sifts in one go."""
    sifter.open_block(block, number)
    indexes, lines, repeated, more = sifter.sift()
    assert not more
    return indexes, lines, repeated


def drive(sifter: Sifter, blocks: list[list[bytes]], seed: int) -> list[object]:
    """Everything a sifter says while it is taught by whims that depend on the line and the seed only."""
    said: list[object] = []
    number = 1
    for lines in blocks:
        sifter.open_block(block_of(lines), number)
        more = True
        while more:
            indexes, unknown, _, more = sifter.sift()
            # Whether a shape was seen before is a hint that may be lost.
            said.append((indexes, unknown))
            rules: list[int] = []
            ranks: list[int] = []
            for index, line in zip(indexes, unknown, strict=True):
                assert lines[index] == line
                whim = random.Random(f"{seed} {line!r}")
                values = tuple((whim.randrange(4), b"%d.5" % whim.randrange(1000)) for _ in range(whim.randrange(3)))
                rules.append(whim.choice([KEEP, 0, 1, 2]))
                ranks.append(whim.choice([NO_RANK, 0, 5, 300]))
                sifter.measure(index, ranks[-1], whim.choice([b"", b"x 10:11:12"]), values)
                if whim.random() < 0.7:
                    span = tuple(sorted((whim.randint(0, len(line)), whim.randint(0, len(line)))))
                    spans = [(span[0], span[1])]
                    sifter.learn(
                        line,
                        whim.choice([KEEP, ASK, 0, 1, 2]),
                        tuple(spans[: whim.randrange(2)]),
                        whim.choice([None, spans[0]]),
                        whim.choice([None, spans[0]]),
                        tuple((whim.randrange(4), *spans[0]) for _ in range(whim.randrange(2))),
                        whim.choice([None, (whim.randrange(3), whim.randrange(4))]),
                    )
            sifter.settle(indexes, rules, ranks)
        said.append(sifter.noted())
        said.append(sifter.close_block(block_of(lines)))
        number += len(lines)
        assert sifter.lines == number - 1
        said.append(sifter.report())
    return said


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(LINE, max_size=12), max_size=6), st.integers(0, 1000))
def test_the_fast_form_says_what_the_plain_form_says(blocks: list[list[bytes]], seed: int) -> None:
    assert drive(fast_sifter(), blocks, seed) == drive(PythonSifter(RULES), blocks, seed)


@pytest.fixture(params=["plain", "fast"])
def sifter(request: pytest.FixtureRequest) -> Sifter:
    return fast_sifter() if request.param == "fast" else PythonSifter(RULES)


def test_lines_of_a_known_shape_are_not_asked_about(sifter: Sifter) -> None:
    sifter.learn(b"step 1 of 9", 2, (), None, None, (), None)
    assert sift(sifter, b"step 7 of 8\nstep 10 of 8\nstop 7 of 8\n", 1)[0] == [1, 2]


def test_a_guard_holds_a_verdict_to_its_digits(sifter: Sifter) -> None:
    sifter.learn(b"status 200 in 9 ms", 0, ((7, 10),), None, None, (), None)
    assert sift(sifter, b"status 200 in 1 ms\nstatus 500 in 1 ms\n", 1)[0] == [1]


def test_a_shape_seen_for_the_second_time_is_worth_learning(sifter: Sifter) -> None:
    assert sift(sifter, b"a 1\nb 1\na 2\n", 1) == ([0, 1, 2], [b"a 1", b"b 1", b"a 2"], [2])


def test_a_block_of_repeated_shapes_is_sifted_in_steps(sifter: Sifter) -> None:
    lines = [b"step %03d" % number for number in range(100)]
    sifter.open_block(block_of(lines), 1)
    indexes, unknown, repeated, more = sifter.sift()
    assert (indexes, unknown, more) == (list(range(33)), lines[:33], True) and repeated == list(range(1, 33))
    with pytest.raises(ValueError, match="not sifted to its end"):
        sifter.close_block(block_of(lines))
    sifter.settle(indexes, [KEEP] * 33, [NO_RANK] * 33)
    sifter.learn(unknown[0], 1, (), None, None, (), None)
    assert sifter.sift() == ([], [], [], False)
    assert sifter.close_block(block_of(lines)) == b"".join(b"%d\t%b\n" % (n, line) for n, line in enumerate(lines[:33], 1))
    assert sifter.report()[2] == [0, 67, 0]


def test_kept_lines_come_out_whole_under_their_numbers(sifter: Sifter) -> None:
    sifter.learn(b"drop 0", 0, (), None, None, (), None)
    block = b"drop 1\nkeep\x00 \xff\n\ndrop 2\nend\r\n"
    sifter.settle(sift(sifter, block, 998)[0], [KEEP] * 3, [NO_RANK] * 3)
    assert sifter.close_block(block) == b"999\tkeep\x00 \xff\n1000\t\n1002\tend\r\n"
    kept_lines, kept_bytes, dropped, _ = sifter.report()
    assert (kept_lines, kept_bytes, dropped) == (3, 14, [2, 0, 0])


def test_kept_lines_are_those_of_the_source_where_the_sifted_ones_were_cleaned(sifter: Sifter) -> None:
    sifter.learn(b"drop 0", 0, (), None, None, (), None)
    sifter.settle(sift(sifter, b"drop 1\nred\n", 1)[0], [KEEP], [4])
    assert sifter.close_block(b"drop 1\n\x1b[31mred\x1b[0m\n") == b"2\t\x1b[31mred\x1b[0m\n"
    assert sifter.report()[3][4][2] == b"\x1b[31mred\x1b[0m"


def test_values_are_read_at_their_places_and_thinned_to_one_a_second(sifter: Sifter) -> None:
    for line in (b"[3] 10:11:12 loss 2.50E-01", b"[3] 10:11:12 loss 2.50E+01"):
        sifter.learn(line, 0, (), (1, 2), (4, 12), ((1, 18, 26),), None)
    block = b"[3] 10:11:12 loss 2.50E-01\n[3] 10:11:12 loss 9.00E+00\n[3] 10:11:13 loss 1.00E-09\n[4] 10:11:13 loss 4.00E+00\n"
    assert sift(sifter, block, 1)[0] == []
    sifter.close_block(block)
    ranks = sifter.report()[3]
    assert ranks[3] == (
        3,
        3,
        b"[3] 10:11:13 loss 1.00E-09",
        {1: (3, 1e-09, 1e-09, 9.0, 3)},
        [(1, b"[3] 10:11:12", {1: 0.25}), (3, b"[3] 10:11:13", {1: 1e-09})],
    )
    assert ranks[4][0] == 1


def test_many_readings_are_thinned_evenly(sifter: Sifter) -> None:
    sifter.learn(b"s 00000", 0, (), None, None, ((0, 2, 7),), None)
    block = b"".join(b"s %05d\n" % number for number in range(20_000))
    assert sift(sifter, block, 1)[0] == []
    sifter.close_block(block)
    lines, _, _, series, points = sifter.report()[3][NO_RANK]
    steps = [point[2][0] for point in points]
    assert (lines, series[0][:4]) == (20_000, (20_000, 19_999.0, 0.0, 19_999.0))
    assert 60 <= len(steps) <= 128 and len({after - before for before, after in pairwise(steps)}) == 1


@pytest.mark.parametrize(
    "text", ["0.1", "123456789012345678", "2.345678E+00", "1e22", "1e-30", "9007199254740993", "4.9E-05", "-3.5", "1.5e5"]
)
def test_numbers_are_read_to_the_nearest_double(sifter: Sifter, text: str) -> None:
    line = b"v " + text.encode()
    sifter.learn(line, 0, (), None, None, ((0, 2, len(line)),), None)
    sift(sifter, line + b"\n", 1)
    sifter.close_block(line + b"\n")
    assert sifter.report()[3][NO_RANK][3][0][1] == float(text)


@pytest.mark.parametrize("text", ["nan", "", "1.2.3", "1e", "0x10", "1_000", "1234567890123456789", "--1", "1 "])
def test_what_is_no_plain_number_is_not_measured(sifter: Sifter, text: str) -> None:
    line = b"v " + text.encode()
    sifter.learn(line, 0, (), None, None, ((0, 2, len(line)),), None)
    sift(sifter, line + b"\n", 1)
    assert sifter.report()[3][NO_RANK][3] == {}


def test_noted_lines_of_one_rank_that_stand_close_make_one_run(sifter: Sifter) -> None:
    sifter.learn(b"[0] warned", KEEP, (), (1, 2), None, (), (7, 2))
    sifter.learn(b"warned", KEEP, (), None, None, (), (7, 2))
    sifter.learn(b"-", KEEP, (), None, None, (), None)
    lines = [b"[3] warned", b"[4] warned", b"[3] warned", b"warned", b"-", b"[3] warned", b"warned"]
    assert sift(sifter, block_of(lines), 1)[0] == []
    assert sifter.noted() == [
        (7, 2, 0, 2, b"[3] warned"),
        (7, 1, 1, 1, b"[4] warned"),
        (7, 1, 3, 3, b""),
        (7, 1, 5, 5, b"[3] warned"),
        (7, 1, 6, 6, b""),
    ]
    sifter.close_block(block_of(lines))
    assert sift(sifter, b"warned\n", 8)[0] == []
    assert sifter.noted() == [(7, 1, 0, 0, b"")]


def test_a_log_of_ever_new_ranks_and_shapes_keeps_memory_bounded(sifter: Sifter) -> None:
    sifter.learn(b"[0000000]", KEEP, (), (1, 8), None, (), None)
    block = b"".join(b"[%07d]\n" % number for number in range(0, 1_400_000, 20))
    assert sift(sifter, block, 1)[0] == []
    sifter.close_block(block)
    assert len(sifter.report()[3]) <= 65_537


@pytest.mark.parametrize("block", [b"no newline", b"a\nb"])
def test_a_block_of_broken_lines_is_refused(sifter: Sifter, block: bytes) -> None:
    with pytest.raises(ValueError, match="whole lines"):
        sift(sifter, block, 1)


def test_another_block_than_the_sifted_one_is_refused(sifter: Sifter) -> None:
    sift(sifter, b"a\nb\n", 1)
    with pytest.raises(ValueError, match="as many lines"):
        sifter.close_block(b"a\n")
