"""Diagnoses: of a failed attempt from its kept lines and exit statuses, and of a text that somebody sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sqlalchemy import select

from detectors.lease import LeaseReview, silence_signal
from detectors.reading.scan import combine, scan_source, scan_text
from detectors.reading.sources import Source
from detectors.reading.text import strip_escapes
from detectors.supervisor import RankExit, exit_signal
from rules.diagnosis import Diagnosis, Evidence
from rules.findings import Findings
from rules.learnt import name_cause
from rules.matcher import Clause, Matcher
from rules.pack import Rule
from rules.ranking import rank
from rules.signal import Line, Role, Signal, Trust
from rules.taxonomy import NONE, UNKNOWN, load_taxonomy
from service.chunks import decode_chunk
from service.ingest.matching import MatcherDied, MatcherPool, Tools
from service.keptlines import node_streams, streams_of
from service.losses import cuts_of, losses_of
from service.metrics import Metrics
from service.store import Clock, Store
from service.store.incidents import Failure
from service.store.jobs import Attempt, find_attempt
from service.store.logs import Chunk

__all__ = ["Diagnoses", "StreamContent", "diagnose_text", "found_by", "read_attempt", "told_errors"]

# Of each attempt, the newest kept lines up to this much are looked at.
MAX_BYTES = 64 * 1024 * 1024
# Of what nodes say by themselves (kernel, drivers), this long before and after the attempt is looked at.
AROUND_SECONDS = 300.0

# A failure report, and whether the node's own agent vouches for it.
Report = tuple[dict[str, Any], bool]


@dataclass(frozen=True, slots=True)
class StreamContent:
    """Kept lines of one stream, with what is known of them beside their text."""

    path: str
    content: bytes
    numbers: tuple[int, ...]
    rank: int | None
    node: str | None
    trust: Trust

    def true_line(self, line: Line) -> Line:
        """`line` as counted among the kept ones, with its own number and its stream's rank, node and trust."""
        known = 0 < line.number <= len(self.numbers)
        return replace(
            line,
            number=self.numbers[line.number - 1] if known else line.number,
            rank=self.rank if line.rank is None else line.rank,
            # A node vouches for itself, whomever its lines name.
            node=self.node if line.node is None or self.trust is Trust.NODE else line.node,
            trust=self.trust,
        )


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """Diagnoses of what is stored. Its methods block: call them from a thread. `reviewed`: the last look at the leases."""

    store: Store
    pool: MatcherPool
    metrics: Metrics
    clock: Clock
    reviewed: Callable[[], LeaseReview] = LeaseReview

    def of_incident(self, incident_id: int) -> Diagnosis:
        """The diagnosis of the newest failure of an incident. Raises LookupError where it has none, and as `of_attempt` does."""
        with self.store.reading() as session:
            failure = session.scalar(
                select(Failure).where(Failure.incident_id == incident_id).order_by(Failure.id.desc()).limit(1)
            )
        if failure is None:
            raise LookupError(f"incident {incident_id} holds no failure of a job")
        return self.of_attempt(failure.job, failure.attempt, failure.generation)

    def of_attempt(self, job: str, attempt: int, generation: int | None = None) -> Diagnosis:
        """What broke `attempt` of `job` (in `generation`, where given): its kept lines and reported exit statuses, ranked.

        Raises Overloaded or MatcherDied where no matcher process could do it now.
        """
        with self.metrics.diagnosis.labels("attempt").time():
            contents, reports = read_attempt(self.store, job, attempt, generation)
            contents = (*contents, *told_by_leases(self.store, job, attempt, generation, self.reviewed()))
            size = sum(len(content.content) for content in contents)
            try:
                return self.pool.submit(size, rank_contents, contents, reports, self.clock()).result()
            except MatcherDied:
                # It may have died of somebody else's lines.
                return self.pool.submit(size, rank_contents, contents, reports, self.clock()).result()


def read_attempt(
    store: Store, job: str, attempt: int, generation: int | None
) -> tuple[tuple[StreamContent, ...], tuple[Report, ...]]:
    """The attempt's kept lines by stream, and (report, vouched) of each of its failures."""
    contents: dict[str, StreamContent] = {}
    left = MAX_BYTES
    with store.reading() as session:
        query = select(Failure).where(Failure.job == job, Failure.attempt == attempt)
        if generation is not None:
            query = query.where(Failure.generation == generation)
        failures = session.scalars(query.order_by(Failure.id)).all()
        # What the job wrote, and what its nodes themselves said around that time.
        ran = find_attempt(session, job, attempt)
        begin, end = time_window(ran, failures)
        for stream in [*streams_of(session, job, attempt), *node_streams(session, nodes_of(ran, failures))]:
            parts: list[bytes] = []
            chosen = select(Chunk.data, Chunk.raw_bytes).where(Chunk.stream_id == stream.id)
            if stream.job is None:
                chosen = chosen.where(Chunk.last_time >= begin, Chunk.first_time <= end)
            for data, raw_bytes in session.execute(chosen.order_by(Chunk.sequence.desc())):
                left -= raw_bytes
                if left < 0:
                    break
                parts.append(data)
            lines = [line for data in reversed(parts) for line in decode_chunk(data)]
            path = stream.path if stream.path not in contents else f"{stream.node or stream.id}:{stream.path}"
            contents[path] = StreamContent(
                path=path,
                content=b"".join(line.text + b"\n" for line in lines),
                numbers=tuple(line.number for line in lines),
                rank=stream.rank,
                node=stream.node,
                trust=Trust(stream.trust),
            )
        reports = tuple((failure.report, failure.vouched) for failure in failures)
    return tuple(contents.values()), reports


def told_by_leases(store: Store, job: str, attempt: int, generation: int | None, leases: LeaseReview) -> list[StreamContent]:
    """What leases, silent or renewed, say of nodes of the attempt together with those that cannot reach them."""
    with store.reading() as session:
        ran = find_attempt(session, job, attempt)
        if generation is None or ran is None:
            return []
        nodes = list(dict.fromkeys(str(place["node"]) for place in ran.ranks if place.get("node")))
        lost = losses_of(session, job, generation, nodes, leases)
        cuts = cuts_of(session, job, generation, nodes, leases)
    lines = [silence_signal(loss.silence, loss).line for loss in lost]
    told = [(f"{line.path} of {line.node}", line.text, line.node) for line in lines]
    # Neither of the two is at fault for all that is known.
    told += [(f"leases of {cut.leader} and {cut.node}", cut.why, None) for cut in cuts]
    return [StreamContent(path, text.encode() + b"\n", (1,), None, node, Trust.CLUSTER) for path, text, node in told]


def time_window(attempt: Attempt | None, failures: Sequence[Failure]) -> tuple[float, float]:
    """From shortly before the attempt began to shortly after the last report of its failure."""
    reported = [failure.reported_at for failure in failures]
    end = max(reported) + AROUND_SECONDS if reported else inf
    begin = attempt.started_at if attempt is not None else min(reported, default=0.0)
    return begin - AROUND_SECONDS, end


def nodes_of(attempt: Attempt | None, failures: Sequence[Failure]) -> set[str]:
    """Every node that carried a rank, or on which one is said to have failed."""
    places = list(attempt.ranks) if attempt is not None else []
    for failure in failures:
        places += [rank for rank in failure.report.get("failed") or () if isinstance(rank, dict)]
    return {str(place["node"]) for place in places if place.get("node")}


def rank_contents(tools: Tools, contents: Sequence[StreamContent], reports: Sequence[Report], now: float) -> Diagnosis:
    """Runs in a matcher process."""
    rules = tools.matcher.rules
    contents = [*contents, *told_errors(contents, reports), *scheduler_words(reports)]
    named = {content.path: content for content in contents}
    found = combine(
        [scan_source(Source(content.path, content.content), tools.matcher, lambda: now) for content in contents], rules
    )

    def true(line: Line) -> Line:
        return named[line.path].true_line(line)

    signals = tuple(
        replace(signal, line=true(signal.line), last=None if signal.last is None else true(signal.last))
        for signal in found.signals
    )
    exits = exit_signals(reports)
    findings = replace(found, signals=signals + exits, last_lines=tuple(true(line) for line in found.last_lines))
    diagnosis = rank(findings, rules)
    if reports and diagnosis.reason == NONE:
        # A failure was reported, so there was one, whatever the lines say.
        diagnosis = unexplained(findings, exits)
    return name_cause(diagnosis, found_by(tools.learnt, contents)) if diagnosis.lacks_cause else diagnosis


def found_by(matcher: Matcher, contents: Sequence[StreamContent]) -> list[tuple[Rule, Line]]:
    """The lines that the rules of `matcher` recognise, each with its rule, in order of reading."""
    found = []
    for content in contents if matcher.rules else ():
        block = strip_escapes(content.content)
        hits = [hit for hit in matcher.scan(block) if hit.clause is Clause.ANY]
        texts = block.split(b"\n") if hits else []
        for hit in hits:
            line = Line(texts[hit.line].decode("utf-8", "replace"), hit.line + 1, content.path)
            found.append((matcher.rules[hit.rule], content.true_line(line)))
    return found


def exits_of(report: dict[str, Any]) -> Iterator[tuple[RankExit, str | None]]:
    """How the ranks of one failure report ended, each with its node."""
    for entry in report.get("failed") or ():
        error = entry.get("error")
        exit_of_rank = RankExit(
            rank=entry["rank"] if entry.get("rank") is not None else -1,
            generation=report.get("generation") or 0,
            code=entry.get("exit_code"),
            signal=entry.get("signal"),
            time=entry.get("time") or 0.0,
            error=error if isinstance(error, str) else None,
        )
        yield exit_of_rank, entry.get("node")


def exit_signals(reports: Sequence[Report]) -> tuple[Signal, ...]:
    """The reported exit statuses as signals: of trust `node` where the node's own agent vouches for them."""
    signals: list[Signal] = []
    for report, vouched in reports:
        for item, node in exits_of(report):
            found = exit_signal(item, Trust.NODE if vouched else Trust.JOB, node, len(signals) + 1)
            if found is not None:
                signals.append(found)
    return tuple(signals)


def told_errors(contents: Sequence[StreamContent], reports: Sequence[Report]) -> list[StreamContent]:
    """What ranks passed on of their exceptions and their logs do not hold: output may be lost with the process."""
    told = []
    for report, _ in reports:
        for item, node in exits_of(report):
            text = (item.error or "").encode()
            if text and not any(content.rank == item.rank and text in content.content for content in contents):
                lines = text.split(b"\n")
                path = f"error report of rank {item.rank}"
                numbers = tuple(range(1, len(lines) + 1))
                told.append(StreamContent(path, text + b"\n", numbers, item.rank, node, Trust.JOB))
    return told


def scheduler_words(reports: Sequence[Report]) -> list[StreamContent]:
    """What the scheduler says of the attempt's end, and of each node by itself: a node vouches for no other."""
    found = []
    for report, vouched in reports:
        said = report.get("scheduler") or {}
        places: dict[str | None, list[str]] = {None: [str(line) for line in said.get("lines") or ()]}
        places |= {str(node): [str(line)] for node, line in (said.get("nodes") or {}).items()}
        for node, lines in places.items():
            if lines:
                content = "".join(f"{line}\n" for line in lines).encode()
                path = f"{said.get('kind', 'scheduler')}{f' on {node}' if node else ''}"
                trust = Trust.NODE if vouched else Trust.JOB
                found.append(StreamContent(path, content, tuple(range(1, len(lines) + 1)), None, node, trust))
    return found


def unexplained(findings: Findings, exits: Sequence[Signal]) -> Diagnosis:
    evidence = [
        Evidence(
            Role.CONTEXT, line.text, line.path, line.number, trust=line.trust, node=line.node, rank=line.rank, time=line.time
        )
        for line in (*(signal.line for signal in exits), *findings.last_lines[-5:])
    ]
    ends = exits[0].line.text if exits else "the job was reported as failed"
    return Diagnosis.of(
        load_taxonomy()[UNKNOWN],
        f"{ends}, and nothing that was kept says why",
        confidence=0.2,
        evidence=tuple(evidence),
        collect=("the last 200 lines of each rank", "dmesg of the nodes around the time of the failure"),
        inputs=findings.inputs,
    )


def diagnose_text(tools: Tools, content: bytes) -> Diagnosis:
    """The diagnosis of one text, after redaction. Runs in a matcher process."""
    findings = scan_text(tools.redactor.redact(content), tools.matcher, time.time)
    diagnosis = rank(findings, tools.matcher.rules).with_inputs(findings.inputs)
    if not diagnosis.lacks_cause:
        return diagnosis
    numbers = tuple(range(1, content.count(b"\n") + 2))
    text = StreamContent("-", tools.redactor.redact(content), numbers, None, None, Trust.JOB)
    return name_cause(diagnosis, found_by(tools.learnt, [text]))
