"""The gate: whether a candidate rule, from a model or from a person, may be used.

Deterministic, and the same for everybody: it compiles in both engines, holds a literal, finds every line that it cites, finds
nothing in normal logs, contradicts no settled incident, and, where it is a filter, hides no line that a signal rule finds or
on which the cause of a settled incident rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rules.check import check_rules
from rules.matcher import Clause, Matcher
from rules.pack import Examples, Rule, RuleRole

__all__ = ["Candidate", "Difference", "GateResult", "SettledIncident", "inspect"]


@dataclass(frozen=True, slots=True)
class SettledIncident:
    """A past failure whose cause is settled: its reason, the lines kept of it, and those among them that tell the cause."""

    key: str
    reason: str
    lines: tuple[str, ...]
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of a settled incident that the candidate would explain otherwise, or hide."""

    incident: str
    settled_reason: str
    line: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether the candidate passes, every objection in words, and the back-test's differences line by line."""

    passes: bool
    objections: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    agreeing: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that wants to be used, and the lines that it was made from."""

    rule: Rule
    cited: tuple[str, ...]


def matched_lines(matcher: Matcher, lines: Sequence[str], *, signals_only: bool = False) -> set[int]:
    """Indexes of the lines that any rule of `matcher` (`signals_only`: but a routine one) recognises by an `any` pattern."""
    block = b"".join(line.replace("\n", " ").encode() + b"\n" for line in lines)
    return {
        hit.line
        for hit in matcher.scan(block)
        if hit.clause is Clause.ANY and not (signals_only and matcher.rules[hit.rule].role is RuleRole.ROUTINE)
    }


def signal_lines(matchers: Sequence[Matcher], lines: Sequence[str]) -> set[int]:
    """Indexes of the lines that a rule other than a routine one recognises."""
    return set[int]().union(*(matched_lines(matcher, lines, signals_only=True) for matcher in matchers))


def inspect(
    candidate: Candidate,
    signals: Matcher,
    normal: Sequence[str],
    settled: Iterable[SettledIncident],
    healthy: Sequence[str] = (),
    learnt: Sequence[Rule] = (),
) -> GateResult:
    """Judge `candidate` against the known signal rules, normal and stored healthy lines, and settled incidents.

    `learnt`: the learnt rules that look at incidents; a filter may not hide their lines either.
    """
    # What the candidate was made from is what it must find: its own proof stands in for examples that it lacks.
    rule = candidate.rule
    cited = tuple(line for line in candidate.cited if line.strip())
    if not cited:
        return GateResult(False, ("it cites no line",))
    rule = replace(rule, examples=Examples((*rule.examples.match, *cited), rule.examples.miss))
    objections = check_rules([rule])[rule.code]
    if objections:
        return GateResult(False, tuple(objections))
    alone = Matcher([rule])
    if rule.role is RuleRole.ROUTINE:
        return inspect_filter(alone, (signals, Matcher(learnt)), cited, normal, settled)
    for name, lines in (("the normal corpus", normal), ("stored healthy logs", healthy)):
        found = sorted(matched_lines(alone, lines))
        if found:
            objections.append(f"finds {len(found)} lines of {name}, the first: {lines[found[0]][:160]!r}")
    differences, agreeing = [], 0
    for incident in settled:
        found = sorted(matched_lines(alone, incident.lines))
        if found and incident.reason != rule.reason:
            differences += [Difference(incident.key, incident.reason, incident.lines[index]) for index in found[:5]]
        agreeing += bool(found) and incident.reason == rule.reason
    if differences:
        first = differences[0]
        objections.append(f"contradicts incident {first.incident}, which was settled as {first.settled_reason}")
    return GateResult(not objections, tuple(objections), tuple(differences), agreeing)


def inspect_filter(
    alone: Matcher, signals: Sequence[Matcher], cited: Sequence[str], normal: Sequence[str], settled: Iterable[SettledIncident]
) -> GateResult:
    """A filter may drop routine lines only: never one that a signal rule finds or that told the cause of a settled incident, and
    never a good part of everything."""
    objections = []
    examples = [
        line
        for matcher in signals
        for rule in matcher.rules
        if rule.role is not RuleRole.ROUTINE
        for text in rule.examples.match
        for line in text.splitlines()
    ]
    for origin, lines in (("the lines it was made from", list(cited)), ("the signal rules' own examples", examples)):
        hidden = sorted(matched_lines(alone, lines) & signal_lines(signals, lines))
        if hidden:
            objections.append(f"would hide a signal among {origin}: {lines[hidden[0]][:160]!r}")
    different = list(dict.fromkeys(normal))
    share = len(matched_lines(alone, different)) / len(different) if different else 0.0
    if share > 0.5:
        objections.append(f"drops {share:.0%} of all different normal lines: too broad to be one kind of line")
    differences: list[Difference] = []
    for incident in settled:
        found = [incident.lines[index] for index in sorted(matched_lines(alone, incident.lines))]
        telling = signal_lines(signals, found) if found else set()
        lost = [line for index, line in enumerate(found) if index in telling or line in incident.evidence]
        differences += [Difference(incident.key, incident.reason, line) for line in lost[:5]]
    if differences:
        first = differences[0]
        objections.append(f"would hide a line that tells the cause of incident {first.incident}: {first.line[:160]!r}")
    return GateResult(not objections, tuple(objections), tuple(differences))
