"""Read, match, and gather: from paths or bytes to the findings of one failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from detectors.reading.conditions import Presence
from detectors.reading.flight_recorder import compare_dumps
from detectors.reading.kinds import Kind, guess
from detectors.reading.ledger import Entry
from detectors.reading.lines import LineMaker
from detectors.reading.log_scan import LAST_LINES, LogFindings, LogScan
from detectors.reading.nccl_ras import compare_samples
from detectors.reading.parallel import in_processes, processes_for
from detectors.reading.records import MAX_DOCUMENT_BYTES, Document, match_lines, read_document
from detectors.reading.skew import clock_offsets
from detectors.reading.slurm import job_of_path, of_jobs
from detectors.reading.sources import LineReader, Source, UnreadableInput, find_sources, text_source
from detectors.reading.timestamps import Stamps
from rules.diagnosis import Input
from rules.findings import Findings, RankSpan
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole
from rules.shapes import ShapePatterns
from rules.signal import Line, Role, Signal, SignalKind, Trust
from rules.taxonomy import UNKNOWN

__all__ = ["SourceFindings", "combine", "scan_inputs", "scan_source", "scan_text"]

Clock = Callable[[], float]

# Of these nothing is read.
NOTHING = (Kind.EMPTY, Kind.BINARY, Kind.UNREADABLE)
# What the signals of an input of this kind are, where they are not lines.
SIGNAL_KINDS = {
    Kind.FLIGHT_RECORDER: SignalKind.MEASUREMENT,
    Kind.NCCL_RAS: SignalKind.MEASUREMENT,
    Kind.ALERTS: SignalKind.ALERT,
    Kind.TORCHELASTIC: SignalKind.EXIT,
    Kind.SLURM: SignalKind.EXIT,
}
NODE_LOGS = (Kind.KERNEL, Kind.JOURNAL)


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """What one source was and gave; `document` holds what says something only beside others of its kind."""

    source: Input
    log: LogFindings
    document: Document | None = None


def scan_source(
    source: Source,
    matcher: Matcher,
    clock: Clock,
    shapes: ShapePatterns | None = None,
    jobs: frozenset[str] = frozenset(),
) -> SourceFindings:
    """What `source` is and gives. Raises UnreadableInput, except for an entry of a folder, of which it says why it is left out.

    `shapes`: for large logs (see LogScan); `jobs`: the job ids that the inputs are about, where any tells.
    """
    try:
        reader = LineReader(source)
    except UnreadableInput as error:
        if not source.is_entry:
            raise
        return SourceFindings(Input(source.path, Kind.UNREADABLE, 0, 0, 0, f"unreadable: {error.why}"), LogFindings())
    with reader:
        guessed, stamps = guess(reader.head), Stamps(clock)
        if guessed.kind in (Kind.EMPTY, Kind.BINARY):
            note = f"unreadable: {reader.note.partition(':')[0]}" if reader.note and not reader.head else guessed.note
            return SourceFindings(Input(source.path, guessed.kind, 0, len(reader.head), 0, note), LogFindings())
        if guessed.document or guessed.kind is Kind.SLURM:
            data = reader.read_whole(MAX_DOCUMENT_BYTES)
            document = read_document(data, guessed, source.path, stamps, reader.modified) if data is not None else None
            if document is not None and data is not None:
                found = match_lines(of_jobs(document.lines, jobs) if document.kind is Kind.SLURM else document.lines, matcher)
                lines = data.count(b"\n") + (not data.endswith(b"\n"))
                read = Input(source.path, document.kind, lines, len(data), found.kept, document.note)
                return SourceFindings(read, found, document)
        node_log = guessed.kind in NODE_LOGS
        maker = LineMaker(source.path, stamps, Trust.NODE if node_log else Trust.JOB, guessed.kind is Kind.JOURNAL)
        found = LogScan(matcher, maker, shapes).run(reader)
        kind = guessed.kind if node_log else Kind.LOG
        return SourceFindings(Input(source.path, kind, found.lines, reader.bytes, found.kept, reader.note), found)


def signal_of(entry: Entry, rules: Sequence[Rule], kind: str) -> Signal:
    rule = rules[entry.rule]
    return Signal(
        rule=rule.code,
        reason=rule.reason or UNKNOWN,
        role=Role.CONTEXT if rule.role is RuleRole.ROUTINE else Role(rule.role.value),
        line=entry.first,
        kind=SIGNAL_KINDS.get(Kind(kind), SignalKind.LINE),
        captures=entry.captures,
        count=entry.count,
        last=entry.last,
    )


def combine(parts: Sequence[SourceFindings], rules: Sequence[Rule]) -> Findings:
    """One failure's findings from what its sources gave; conditions over the whole input are judged here."""
    present = Presence()
    for part in parts:
        present |= part.log.present
    offsets = clock_offsets(point for part in parts for point in part.log.points)
    signals: list[Signal] = []
    spans: dict[int, RankSpan] = {}
    for part in parts:
        log = part.log
        kept = [*log.entries, *(entry for entry in log.deferred if present.satisfies(entry.rule, rules[entry.rule]))]
        signals.extend(signal_of(entry, rules, part.source.kind) for entry in sorted(kept, key=lambda entry: entry.first.number))
        for rank, span in log.spans.items():
            spans[rank] = joined(spans[rank], span) if rank in spans else span
    return Findings(
        signals=tuple(in_true_time(signal, offsets) for signal in signals),
        spans={rank: span_in_true_time(span, offsets) for rank, span in spans.items()},
        inputs=tuple(part.source for part in parts if part.source.path),
        lines=sum(part.source.lines for part in parts),
        measured=tuple(in_true_time(signal, offsets) for part in parts for signal in part.log.measured),
        last_lines=tuple(line for part in parts for line in part.log.last_lines)[-LAST_LINES * 4 :],
    )


def in_true_time(signal: Signal, offsets: Mapping[int, float]) -> Signal:
    """`signal` with times as they would be if the clocks of all ranks agreed."""
    if signal.line.rank not in offsets:
        return signal
    return replace(signal, line=corrected(signal.line, offsets), last=signal.last and corrected(signal.last, offsets))


def span_in_true_time(span: RankSpan, offsets: Mapping[int, float]) -> RankSpan:
    offset = offsets.get(span.rank)
    if offset is None:
        return span
    return replace(
        span,
        first_time=None if span.first_time is None else span.first_time - offset,
        last_time=None if span.last_time is None else span.last_time - offset,
        last_line=span.last_line and corrected(span.last_line, offsets),
    )


def corrected(line: Line, offsets: Mapping[int, float]) -> Line:
    offset = offsets.get(line.rank) if line.rank is not None else None
    return line if offset is None or line.time is None else replace(line, time=line.time - offset)


def joined(one: RankSpan, other: RankSpan) -> RankSpan:
    """Two sources of one rank as one span; the later end stands."""
    begins = [time for time in (one.first_time, other.first_time) if time is not None]
    later = other if (other.last_time or 0.0) >= (one.last_time or 0.0) else one
    return RankSpan(
        one.rank, one.lines + other.lines, min(begins, default=None), later.last_time, later.last_line, later.last_step
    )


def compare(parts: Sequence[SourceFindings], matcher: Matcher) -> list[SourceFindings]:
    """What documents of one kind tell when they are laid side by side."""
    documents = [part.document for part in parts if part.document is not None]
    dumps = compare_dumps([dump for document in documents for dump in document.dumps])
    samples = compare_samples([sample for document in documents for sample in document.samples])
    return [
        SourceFindings(Input("", kind, 0, 0, 0), match_lines(lines, matcher))
        for kind, lines in ((Kind.FLIGHT_RECORDER, dumps), (Kind.NCCL_RAS, samples))
        if lines
    ]


def scan_sources(sources: Sequence[Source], matcher: Matcher, clock: Clock, shapes: ShapePatterns | None = None) -> Findings:
    """Raises UnreadableInput where a source cannot be read."""
    jobs = frozenset(job for source in sources if (job := job_of_path(source.path)) is not None)

    def scan(source: Source) -> SourceFindings:
        return scan_source(source, matcher, clock, shapes, jobs)

    processes = processes_for(sources)
    parts = in_processes(sources, scan, processes) if processes > 1 else [scan(source) for source in sources]
    return combine([*parts, *compare(parts, matcher)], matcher.rules)


def scan_inputs(paths: Sequence[str], matcher: Matcher, clock: Clock, shapes: ShapePatterns | None = None) -> Findings:
    """The findings of what a run left under `paths` (files, directories, `-`); many large files are read at once.

    Raises UnreadableInput where a named path cannot be read, or where nothing under them can be.
    """
    findings = scan_sources(find_sources(paths), matcher, clock, shapes)
    if all(read.kind in NOTHING for read in findings.inputs):
        told = "; ".join(f"{read.path} is {read.note}" for read in findings.inputs[:3])
        raise UnreadableInput(f"nothing to diagnose: {told}")
    return findings


def scan_text(content: bytes, matcher: Matcher, clock: Clock) -> Findings:
    """The findings of one text at hand, as the service and the evaluation have it."""
    return scan_sources([text_source(content)], matcher, clock)
