"""Read, match, and gather: from paths or bytes to the findings of one failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detectors.reading.conditions import Presence
from detectors.reading.ledger import Entry
from detectors.reading.lines import LineMaker
from detectors.reading.log_scan import LAST_LINES, LogFindings, LogScan
from detectors.reading.sources import LineReader, Source, find_sources, text_source
from detectors.reading.timestamps import Stamps
from rules.diagnosis import Input
from rules.findings import Findings, RankSpan
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole
from rules.signal import Role, Signal
from rules.taxonomy import UNKNOWN

__all__ = ["SourceFindings", "combine", "scan_inputs", "scan_source", "scan_text"]

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """What one source was, and what it gave."""

    source: Input
    log: LogFindings


def scan_source(source: Source, matcher: Matcher, clock: Clock) -> SourceFindings:
    """Raises UnreadableInput."""
    with LineReader(source) as reader:
        found = LogScan(matcher, LineMaker(source.path, Stamps(clock))).run(reader)
        kind = "log" if reader.lines else "empty"
        return SourceFindings(Input(source.path, kind, reader.lines, reader.bytes, found.kept), found)


def signal_of(entry: Entry, rules: Sequence[Rule]) -> Signal:
    rule = rules[entry.rule]
    return Signal(
        rule=rule.code,
        reason=rule.reason or UNKNOWN,
        role=Role.CONTEXT if rule.role is RuleRole.ROUTINE else Role(rule.role.value),
        line=entry.first,
        captures=entry.captures,
        count=entry.count,
        last=entry.last,
    )


def combine(parts: Sequence[SourceFindings], rules: Sequence[Rule]) -> Findings:
    """One failure's findings from what its sources gave; conditions over the whole input are judged here."""
    present = Presence()
    for part in parts:
        present |= part.log.present
    signals: list[Signal] = []
    spans: dict[int, RankSpan] = {}
    for part in parts:
        log = part.log
        kept = [*log.entries, *(entry for entry in log.deferred if present.satisfies(entry.rule, rules[entry.rule]))]
        signals.extend(signal_of(entry, rules) for entry in sorted(kept, key=lambda entry: entry.first.number))
        for rank, span in log.spans.items():
            spans[rank] = joined(spans[rank], span) if rank in spans else span
    return Findings(
        signals=tuple(signals),
        spans=spans,
        inputs=tuple(part.source for part in parts),
        lines=sum(part.source.lines for part in parts),
        last_lines=tuple(line for part in parts for line in part.log.last_lines)[-LAST_LINES * 4 :],
    )


def joined(one: RankSpan, other: RankSpan) -> RankSpan:
    """Two sources of one rank as one span; the later end stands."""
    begins = [time for time in (one.first_time, other.first_time) if time is not None]
    later = other if (other.last_time or 0.0) >= (one.last_time or 0.0) else one
    return RankSpan(
        one.rank, one.lines + other.lines, min(begins, default=None), later.last_time, later.last_line, later.last_step
    )


def scan_sources(sources: Sequence[Source], matcher: Matcher, clock: Clock) -> Findings:
    """Raises UnreadableInput where a source cannot be read at all."""
    return combine([scan_source(source, matcher, clock) for source in sources], matcher.rules)


def scan_inputs(paths: Sequence[str], matcher: Matcher, clock: Clock) -> Findings:
    """The findings of what a run left under `paths` (files, directories, `-`). Raises UnreadableInput."""
    return scan_sources(find_sources(paths), matcher, clock)


def scan_text(content: bytes, matcher: Matcher, clock: Clock) -> Findings:
    """The findings of one text at hand, as the service and the evaluation have it."""
    return scan_sources([text_source(content)], matcher, clock)
