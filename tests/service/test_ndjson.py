"""Records of the node agent, decoded: one line each, or many lines of a file in a row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.records import record_of
from service.ingest.ndjson import decode_ndjson
from service.ingest.protocol import Decoded, Limits, ProtocolError

LIMITS = Limits(decoded_bytes=1 << 20, line_bytes=300, nesting=10)
HEAD = {"job": "train", "attempt": 1, "node": "n0", "rank": 0, "path": "/logs/0/rank0.log"}

LINES = st.text(st.characters(exclude_characters="\n"), max_size=20)
TEXTS = LINES | st.sampled_from(["", "\r", "a\r", "\0", "\ud800", "x" * 400])


def decoded(*records: dict[str, Any]) -> Decoded:
    return decode_ndjson(b"".join(json.dumps(record).encode() + b"\n" for record in records), LIMITS, now=7.0)


def each(head: dict[str, Any], number: int, texts: list[str]) -> list[dict[str, Any]]:
    return [{**head, "number": number, "line": text} for number, text in enumerate(texts, number)]


def together(head: dict[str, Any], number: int, texts: list[str]) -> dict[str, Any]:
    return {**head, "number": number, "lines": len(texts), "line": "".join(text + "\n" for text in texts)}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2**50), st.lists(TEXTS, min_size=1, max_size=5)), max_size=5))
def test_lines_that_come_together_are_stored_like_lines_that_come_one_by_one(runs: list[tuple[int, int, list[str]]]) -> None:
    heads = [{**HEAD, "rank": rank, "time": 3.5 + rank} for rank, _, _ in runs]
    single = [record for head, (_, number, texts) in zip(heads, runs, strict=True) for record in each(head, number, texts)]
    joined = [together(head, number, texts) for head, (_, number, texts) in zip(heads, runs, strict=True)]
    assert decoded(*joined) == decoded(*single)


@given(st.integers(1, 2**50), st.lists(LINES, min_size=1, max_size=8))
def test_what_the_agent_sends_has_every_line_under_its_number(number: int, texts: list[str]) -> None:
    body = record_of(HEAD, 12.5, number, texts).encode()
    assert decode_ndjson(body, LIMITS, now=7.0) == decoded(*each({**HEAD, "time": 12.5}, number, texts))


def test_a_service_that_does_not_know_of_several_lines_takes_them_all() -> None:
    texts = ["", "first", "", "last", ""]
    record = together(HEAD, 8, texts)
    del record["lines"]
    (lines,) = decoded(record).streams.values()
    assert (lines.texts, lines.numbers) == ([text.encode() for text in texts], [8] * 5)


def test_lines_that_nobody_counted_have_no_number() -> None:
    (lines,) = decoded({"lines": 2, "line": "a\nb\n"}).streams.values()
    assert (lines.texts, lines.numbers, lines.times) == ([b"a", b"b"], [0, 0], [7 * 10**9] * 2)


@pytest.mark.parametrize(
    ("count", "line"),
    [(0, ""), (0, "a"), (1, "a"), (1, "a\nb"), (2, "a\n"), (1, "a\nb\n"), (True, "a\n"), (-1, "a\n"), ("1", "a\n")],
)
def test_a_record_that_does_not_hold_what_it_says_is_refused_by_its_line(count: object, line: str) -> None:
    with pytest.raises(ProtocolError, match=r"^line 2: "):
        decoded({"line": "good"}, {"lines": count, "line": line})
