"""A diagnosis for a person: verdict, why, the lines in context, what was ruled out, what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from cli.main import printable
from detectors.reading.kinds import Kind
from rules.advice import next_steps, severity_meaning
from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role

__all__ = ["Piece", "Style", "report"]

Excerpt = Callable[[str, Collection[int]], Mapping[int, str]]
# Of the root lines this many are shown with their surroundings, of consequences this many at all.
SHOWN_ROOTS, SHOWN_CONSEQUENCES = 6, 5
WIDTH = 220


class Style(StrEnum):
    """Rich styles; plain text where there is no terminal."""

    SEV1 = "bold white on red"
    SEV2 = "bold black on yellow"
    SEV3 = "bold black on cyan"
    NONE = "bold reverse"
    VERDICT = "bold"
    HEADING = "bold blue"
    ROOT = "bold red"
    DIM = "dim"
    PLAIN = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one style; a line is a sequence of pieces."""

    text: str
    style: Style = Style.PLAIN


Row = tuple[Piece, ...]


def report(diagnosis: Diagnosis, excerpt: Excerpt) -> Iterator[Row]:
    """The report line by line. `excerpt` gives the lines around some lines of a file, or nothing where it cannot."""
    yield from verdict(diagnosis)
    if diagnosis.is_failure:
        yield from place(diagnosis)
        yield from reasons(diagnosis)
        yield from evidence(diagnosis, excerpt)
        yield from consequences(diagnosis)
        yield from ruled_out(diagnosis)
        yield from advice(diagnosis)
    elif diagnosis.why:
        yield heading("Looked at and set aside")
        yield from ((Piece(f"  {text}"),) for text in diagnosis.why)
    yield from inputs(diagnosis)


def heading(text: str) -> Row:
    return (Piece(text, Style.HEADING),)


def clipped(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= WIDTH else shown[: WIDTH - 3] + "..."


def verdict(diagnosis: Diagnosis) -> Iterator[Row]:
    if not diagnosis.is_failure:
        yield (Piece("No failure found", Style.VERDICT), Piece(f"  {diagnosis.summary}"))
        return
    severity = diagnosis.severity.value
    yield (
        Piece(f" {severity} ", Style[severity]),
        Piece(f" {diagnosis.reason}", Style.VERDICT),
        Piece(f"  {severity_meaning(diagnosis.severity)}; {diagnosis.remedy.value.replace('_', ' ')}"),
    )
    yield (Piece(printable(diagnosis.summary)),)
    rule = f", rule {diagnosis.rule}" if diagnosis.rule else ""
    yield (
        Piece(
            f"{diagnosis.family}, {diagnosis.category.value}, {diagnosis.component}; "
            f"confidence {diagnosis.confidence:.0%}, by {diagnosis.source.value}{rule}",
            Style.DIM,
        ),
    )


def place(diagnosis: Diagnosis) -> Iterator[Row]:
    domain = diagnosis.fault_domain
    named = (("node", domain.node), ("GPU", domain.gpu), ("rank", domain.rank), ("link", domain.link), ("", domain.other))
    found = [f"{name} {value}".strip() for name, value in named if value]
    if found:
        yield heading("Where")
        yield (Piece("  " + clipped(", ".join(found))),)


def reasons(diagnosis: Diagnosis) -> Iterator[Row]:
    more = [text for text in diagnosis.why if text.lower() not in diagnosis.summary.lower()]
    if more:
        yield heading("Why")
        yield from ((Piece(f"  {clipped(text)}"),) for text in more)


def evidence(diagnosis: Diagnosis, excerpt: Excerpt) -> Iterator[Row]:
    roots = [item for item in diagnosis.evidence if item.role is Role.ROOT][:SHOWN_ROOTS]
    if not roots:
        return
    yield heading("Evidence")
    for path, found in groupby(roots, key=lambda item: item.path):
        by_number = {item.line: item for item in found if item.line is not None}
        if path != "-":
            yield (Piece(f"  {printable(path)}", Style.DIM),)
        texts = {number: item.text for number, item in by_number.items()} | dict(excerpt(path, tuple(by_number)))
        previous = None
        for number in sorted(texts):
            if previous is not None and number > previous + 1:
                yield (Piece("        ...", Style.DIM),)
            previous = number
            item = by_number.get(number)
            mark, style = (">", Style.ROOT) if item else (" ", Style.DIM)
            yield (Piece(f"  {mark} {number:>7}  ", style), Piece(clipped(texts[number]), style if item else Style.DIM))


def consequences(diagnosis: Diagnosis) -> Iterator[Row]:
    others = [item for item in diagnosis.evidence if item.role in (Role.CASCADE, Role.TEARDOWN)]
    if not others:
        return
    yield heading("Consequences of it")
    for item in others[:SHOWN_CONSEQUENCES]:
        yield (Piece(f"    {where(item):>7}  {clipped(item.text)}", Style.DIM),)
    if len(others) > SHOWN_CONSEQUENCES:
        yield (Piece(f"    and {len(others) - SHOWN_CONSEQUENCES} more lines", Style.DIM),)


def where(item: Evidence) -> str:
    return str(item.line) if item.path == "-" else f"{printable(item.path)}:{item.line}"


def ruled_out(diagnosis: Diagnosis) -> Iterator[Row]:
    others = [item for item in diagnosis.alternatives if item.ruled_out_by]
    if others:
        yield heading("Ruled out")
        yield from ((Piece(f"  {item.reason}: {clipped(item.ruled_out_by)}"),) for item in others)


def advice(diagnosis: Diagnosis) -> Iterator[Row]:
    yield heading("What to do")
    yield from ((Piece(f"  {number}. {text}"),) for number, text in enumerate(next_steps(diagnosis), 1))


def inputs(diagnosis: Diagnosis) -> Iterator[Row]:
    for source in diagnosis.inputs:
        if source.kind == Kind.UNREADABLE:
            yield (Piece(f"Left out {printable(source.path)}: {printable(source.note)}", Style.ROOT),)
            continue
        note = f"; {printable(source.note)}" if source.note not in ("", source.kind) else ""
        size = f"{source.lines} lines, {source.bytes} bytes"
        yield (Piece(f"Read {printable(source.path)} ({source.kind}): {size}{note}", Style.DIM),)
