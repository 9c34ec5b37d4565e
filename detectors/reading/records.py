"""Inputs that are documents and not logs: recognised by content, told as lines, and matched by the same rules as any line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from detectors.reading.alerts import alert_lines
from detectors.reading.conditions import ConditionLog
from detectors.reading.elastic import error_lines
from detectors.reading.flight_recorder import Dump, parse_dump, read_plain_pickle
from detectors.reading.kinds import Guess, Kind
from detectors.reading.ledger import Ledger, Match
from detectors.reading.log_scan import LogFindings
from detectors.reading.nccl_ras import Sample, parse_status
from detectors.reading.slurm import record_lines
from detectors.reading.timestamps import Stamps
from rules.matcher import Clause, Matcher
from rules.pack import Mark, RuleRole
from rules.signal import Line

__all__ = ["MAX_DOCUMENT_BYTES", "Document", "match_lines", "read_document"]

MAX_DOCUMENT_BYTES = 16 << 20
# A document of more braces than this is made to fill memory.
MAX_NESTINGS = 1_000_000
MAX_DOCUMENTS = 1_000


@dataclass(frozen=True, slots=True)
class Document:
    """What a document said by itself, and what says something only beside others of its kind."""

    kind: Kind
    lines: tuple[Line, ...] = ()
    dumps: tuple[Dump, ...] = ()
    samples: tuple[Sample, ...] = ()
    note: str = ""


def read_document(data: bytes, guessed: Guess, path: str, stamps: Stamps, written: float | None) -> Document | None:
    """The document that `data` is; None where it is a log after all. `written`: when the file was, seconds since the epoch."""
    if guessed.kind is Kind.SLURM:
        lines = record_lines(data.decode("utf-8", "replace"), path, stamps)
        return Document(Kind.SLURM, lines) if lines else None
    if guessed.kind is Kind.FLIGHT_RECORDER:
        try:
            dump = parse_dump(read_plain_pickle(data), path, written)
        except ValueError as error:
            return Document(Kind.BINARY, note=str(error))
        return Document(Kind.FLIGHT_RECORDER, dumps=(dump,)) if dump else Document(Kind.BINARY, note="a pickle, not a log")
    found: Document | None = None
    for order, value in enumerate(json_values(data)):
        part = recognise(value, path, stamps, written, order)
        if part is None:
            return found
        found = part if found is None or found.kind is not part.kind else joined(found, part)
    return found


def recognise(value: Any, path: str, stamps: Stamps, written: float | None, order: int) -> Document | None:
    if (dump := parse_dump(value, path, written)) is not None:
        return Document(Kind.FLIGHT_RECORDER, dumps=(dump,))
    if isinstance(value, dict):
        told = value.get("timestamp")
        time = stamps.read(told) if isinstance(told, str) else written
        if (samples := parse_status(value, path, time, order)) is not None:
            return Document(Kind.NCCL_RAS, samples=samples)
        if (lines := error_lines(value, path)) is not None:
            return Document(Kind.TORCHELASTIC, lines)
    if (lines := alert_lines(value, path, stamps)) is not None:
        return Document(Kind.ALERTS, lines)
    return None


def joined(one: Document, other: Document) -> Document:
    return Document(one.kind, one.lines + other.lines, one.dumps + other.dumps, one.samples + other.samples, one.note)


def json_values(data: bytes) -> Iterator[Any]:
    """The JSON values that stand one after another in `data`, up to the first that is none."""
    if data.count(b"{") + data.count(b"[") > MAX_NESTINGS:
        return
    text = data.decode("utf-8", "replace").lstrip("\ufeff")
    decoder = json.JSONDecoder()
    position = 0
    for _ in range(MAX_DOCUMENTS):
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position == len(text):
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield value


def given(line: Line) -> Callable[[], Line]:
    return lambda: line


def match_lines(lines: Sequence[Line], matcher: Matcher) -> LogFindings:
    """What the rules find in lines that are not the text of a file. Windows count in these lines."""
    conditions, certain, deferred = ConditionLog(matcher.rules), Ledger(), Ledger()
    matched = set()
    content = "".join(line.text.replace("\n", " ") + "\n" for line in lines).encode("utf-8", "replace")
    for hit in matcher.scan(content):
        rule, line = matcher.rules[hit.rule], lines[hit.line]
        if hit.clause is not Clause.ANY:
            conditions.note(hit, hit.line, line.rank)
            continue
        if rule.role is RuleRole.ROUTINE or rule.marks is Mark.PROGRESS:
            continue
        matched.add(hit.line)
        match = Match(hit.rule, hit.line, line.rank, line.node, matcher.captures(hit.rule, line.text), given(line))
        if (rule.all or rule.none) and rule.window:
            conditions.hold(match)
        else:
            (deferred if rule.all or rule.none else certain).add(match)
    for match in conditions.settled(None):
        certain.add(match)
    return LogFindings(certain.entries(), deferred.entries(), conditions.present, kept=len(matched))
