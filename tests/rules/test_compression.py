"""Compression: a line that any signal rule could match is kept, whatever the shapes say; what is dropped leaves its numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rules.artefact import Compiled, load_compiled
from rules.compression import CompressionReport, Compressor
from rules.matcher import Clause, Matcher
from rules.pack import Rule, RuleRole, load_packs
from rules.shapes import precedence_of, shape_patterns
from rules.sifter import PythonSifter, Sifter, new_sifter

DIGIT = re.compile(rb"[0-9]")
SIFTERS = [PythonSifter, new_sifter]


@cache
def shipped() -> Compiled:
    return load_compiled()


def rule(code: str, role: RuleRole, *patterns: str, captures: tuple[str, ...] = (), none: tuple[str, ...] = ()) -> Rule:
    return Rule(code=code, title="", pack="t", role=role, reason=None, any=patterns, captures=captures, none=none)


def prefix_rank(line: bytes) -> tuple[int, int] | None:
    match = re.match(rb"\[(\d+)\]", line)
    return match.span(1) if match else None


def compressor(rules: list[Rule], sifter: Sifter | None = None) -> Compressor:
    return Compressor(Matcher(rules), shape_patterns(rules), prefix_rank, sifter)


def numbers(kept: bytes) -> list[int]:
    return [int(line.partition(b"\t")[0]) for line in kept.splitlines()]


def block_of(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def report(compressed: Compressor) -> CompressionReport:
    return compressed.report(lambda text: float(time[1]) if (time := re.search(r"\d\d:\d\d:(\d\d)$", text[:12])) else None)


def verdict(matcher: Matcher, line: bytes) -> str | None:
    """The code of the routine rule that drops `line`, by looking at nothing but this line; None: kept."""
    found = {hit.rule for hit in matcher.scan(line + b"\n") if hit.clause is not Clause.NONE}
    if any(matcher.rules[index].role is not RuleRole.ROUTINE for index in found):
        return None
    precedence = precedence_of(matcher.rules)
    return matcher.rules[min(found, key=precedence.__getitem__)].code if found else None


@cache
def lines_of_examples() -> tuple[list[bytes], list[bytes]]:
    """(lines of the examples of routine rules, lines of all examples)"""
    routine, every = [], []
    for known in load_packs():
        for text in (*known.examples.match, *known.examples.miss):
            lines = [line.encode() for line in text.split("\n")]
            every += lines
            if known.role is RuleRole.ROUTINE:
                routine += lines
    return routine, every


def other_digits(line: bytes, whim: random.Random) -> bytes:
    share = whim.choice([0.0, 0.1, 1.0])
    return DIGIT.sub(lambda match: b"%d" % whim.randrange(10) if whim.random() < share else match[0], line)


@pytest.mark.parametrize("make", SIFTERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_no_line_that_a_signal_rule_could_match_is_dropped(make: type[PythonSifter], seed: int) -> None:
    whim = random.Random(seed)
    compiled = shipped()
    routine, every = lines_of_examples()
    pool = [whim.choice(routine) for _ in range(4)] + [whim.choice(every) for _ in range(4)]
    pool += [whim.choice(routine) + b" " + whim.choice(every), whim.choice(every) + whim.choice(routine)]
    hits = whim.random() < 0.5
    compressed = Compressor(compiled.matcher(), compiled.shapes, prefix_rank, make(len(compiled.rules)), collect_hits=hits)
    kept: list[int] = []
    dropped: dict[str, int] = {}
    lines: list[bytes] = []
    for _ in range(5):
        block = [other_digits(whim.choice(pool), whim) for _ in range(30)]
        kept += numbers(compressed.feed(block_of(block)).kept)
        lines += block
    matcher = compiled.matcher()
    expected = [verdict(matcher, line) for line in lines]
    assert kept == [number for number, code in enumerate(expected, 1) if code is None]
    for code in expected:
        if code is not None:
            dropped[code] = dropped.get(code, 0) + 1
    found = report(compressed)
    assert found.dropped_by_rule == dropped
    assert found.kept_lines + sum(dropped.values()) == len(lines) == sum(trace.lines for trace in found.ranks.values())


def conditions_of(matcher: Matcher, line: bytes) -> set[tuple[int, Clause, int]]:
    """What `line` shows of that signal rules ask of the lines around their match."""
    return {(hit.rule, hit.clause, hit.ordinal) for hit in matcher.scan(line + b"\n") if hit.clause is not Clause.ANY}


@pytest.mark.parametrize("make", SIFTERS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_runs_of_conditions_say_where_each_condition_stands(make: type[PythonSifter], seed: int) -> None:
    whim = random.Random(seed)
    compiled = shipped()
    matcher = compiled.matcher()
    _, every = lines_of_examples()
    with_conditions = [line for line in whim.sample(every, 150) if conditions_of(matcher, line)]
    pool = with_conditions[:6] + whim.sample(every, 3)
    compressed = Compressor(matcher, compiled.shapes, prefix_rank, make(len(compiled.rules)))
    for _ in range(5):
        block = [b"[%d] " % whim.randrange(3) * whim.randrange(2) + other_digits(whim.choice(pool), whim) for _ in range(40)]
        sifted = compressed.feed(block_of(block))
        expected = {(index, condition) for index, line in enumerate(block) for condition in conditions_of(matcher, line)}
        ends: dict[tuple[int, Clause, int], set[int]] = {}
        for run in sifted.conditions:
            for condition in run.conditions.patterns:
                ends.setdefault(condition, set()).update((run.first, run.last))
                inside = [index for index in range(run.first, run.last + 1) if (index, condition) in expected]
                assert all(after - before <= matcher.rules[condition[0]].run_gap for before, after in pairwise(inside))
        assert {(index, condition) for condition, indexes in ends.items() for index in indexes} <= expected
        for index, condition in expected:
            assert any(run.first <= index <= run.last for run in sifted.conditions if condition in run.conditions.patterns)


ROUTINE = rule("R", RuleRole.ROUTINE, r"request took \d+ ms, status \d+", captures=(r"took (?P<request_ms>\d+) ms",))
SIGNAL = rule("S", RuleRole.ROOT, r"ms, status 5\d\d$", none=("never",))


@pytest.fixture(params=SIFTERS, ids=["plain", "fast"])
def sifter(request: pytest.FixtureRequest) -> Sifter:
    return request.param(2)  # type: ignore[no-any-return]


def test_digits_on_which_a_signal_hangs_are_looked_at(sifter: Sifter) -> None:
    compressed = compressor([ROUTINE, SIGNAL], sifter)
    lines = [b"[%d] request took %d ms, status %d" % (n % 7, n * 7 % 90 + 10, 503 if n == 77 else 200) for n in range(100)]
    kept = [
        number for start in range(0, 100, 10) for number in numbers(compressed.feed(block_of(lines[start : start + 10])).kept)
    ]
    assert kept == [78]
    assert report(compressed).dropped_by_rule == {"R": 99}


def test_hits_of_signal_rules_come_with_their_lines(sifter: Sifter) -> None:
    compressed = compressor([ROUTINE, SIGNAL], sifter)
    compressed.feed(b"request took 1 ms, status 200\n" * 3)
    sifted = compressed.feed(b"request took 1 ms, status 200\nrequest took 1 ms, status 502\nnever\n")
    assert [(hit.line, hit.rule, hit.clause.value) for hit in sifted.hits] == [(1, 1, "any")]
    assert [(run.first, run.lines, run.conditions.patterns) for run in sifted.conditions] == [(2, 1, ((1, Clause.NONE, 0),))]
    assert numbers(sifted.kept) == [5, 6]


def test_what_speaks_against_a_rule_is_reported_though_its_line_is_dropped(sifter: Sifter) -> None:
    compressed = compressor([ROUTINE, SIGNAL], sifter)
    for _ in range(5):
        sifted = compressed.feed(b"request took 1 ms, status 200 never\n")
        assert [(run.first, run.conditions.patterns) for run in sifted.conditions] == [(0, ((1, Clause.NONE, 0),))]
        assert not sifted.kept and not sifted.hits
    sifter.open_block(b"request took 9 ms, status 200 never\n", 6)
    assert sifter.sift() == ([], [], [], False)


def test_the_rule_that_measures_most_takes_a_line_however_often_it_names_one_quantity() -> None:
    step = rule("STEP", RuleRole.ROUTINE, "step=", captures=(r"step=(?P<step>\d+)", r"step (?P<step>\d+)", r"#(?P<step>\d+)"))
    speed = rule("SPEED", RuleRole.ROUTINE, "tokens=", captures=(r"step=(?P<step>\d+) tokens=(?P<tokens>\d+)",))
    compressed = compressor([step, speed])
    compressed.feed(b"step=1 tokens=7\n" * 9)
    assert report(compressed).dropped_by_rule == {"SPEED": 9}


def test_where_no_hits_are_wanted_what_only_speaks_against_a_rule_needs_no_look(sifter: Sifter) -> None:
    compressed = Compressor(
        Matcher([ROUTINE, SIGNAL]), shape_patterns([ROUTINE, SIGNAL]), prefix_rank, sifter, collect_hits=False
    )
    lines = b"request took 1 ms, status 200 never\n" * 4
    for _ in range(2):
        assert compressed.feed(lines).kept == b""
    sifter.open_block(lines, 9)
    assert sifter.sift() == ([], [], [], False)


def test_dropped_lines_leave_their_numbers_by_rank(sifter: Sifter) -> None:
    compressed = compressor([ROUTINE, SIGNAL], sifter)
    for block in range(10):
        lines = [b"[%d] 10:11:%02d request took %d ms, status 200" % (rank, block, 100 * rank + block) for rank in (0, 1, 1)]
        compressed.feed(block_of(lines))
    found = report(compressed)
    trace = found.ranks[1]
    series = trace.series["request_ms"]
    assert (trace.lines, trace.last_number, trace.last_line) == (20, 30, "[1] 10:11:09 request took 109 ms, status 200")
    assert (series.count, series.last, series.least, series.most) == (20, 109.0, 100.0, 109.0)
    assert [reading.values["request_ms"] for reading in trace.readings] == [100.0 + block for block in range(10)]
    assert [reading.time for reading in trace.readings] == [float(block) for block in range(10)]
    assert {(rank, name) for rank, found_of in found.ranks.items() for name in found_of.series} == {
        (0, "request_ms"),
        (1, "request_ms"),
    }
    newest = compressed.report(lambda text: float(text[-2:]), thinned=False).ranks[1].readings
    assert newest == trace.readings[-1:]


def test_the_last_line_of_a_rank_is_known_even_if_all_were_dropped(sifter: Sifter) -> None:
    compressed = compressor([ROUTINE, SIGNAL], sifter)
    for block in range(5):
        lines = [b"[%d] request took 1 ms, status 200" % rank for rank in range(4) if rank != 2 or block < 2]
        compressed.feed(block_of(lines))
    assert {rank: trace.last_number for rank, trace in report(compressed).ranks.items()} == {0: 15, 1: 16, 2: 7, 3: 17}


def test_without_rules_everything_is_kept() -> None:
    compressed = compressor([])
    assert numbers(compressed.feed(b"a\nb\n").kept) == [1, 2]


def test_an_empty_block_is_nothing() -> None:
    assert compressor([ROUTINE]).feed(b"").kept == b""


@pytest.mark.parametrize("make", SIFTERS)
def test_hits_that_are_certain_in_a_shape_are_told_of_lines_that_nobody_looks_at(
    make: Callable[[int], Sifter], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [rule("fell", RuleRole.ROOT, "fell off"), rule("gpu", RuleRole.CONTEXT, r"gpu \d+ fell")]
    compressed = compressor(rules, make(len(rules)))
    looked_at: list[bytes] = []
    scan = compressed._look_at

    def look_at(lines: list[bytes]) -> tuple[list[int], dict[int, list[int]]]:
        looked_at.extend(lines)
        return scan(lines)

    monkeypatch.setattr(compressed, "_look_at", look_at)
    for line in [b"[%d] gpu %d fell off" % (number % 8, number) for number in range(10, 60)]:
        sifted = compressed.feed(b"all is well\n" + line + b"\n")
        expected = list(Matcher(rules).scan(b"all is well\n" + line + b"\n"))
        assert (list(sifted.hits), sifted.hit_lines) == (expected, {1: line})
    # A shape is learnt when it comes again.
    assert len([line for line in looked_at if b"fell" in line]) == 2
