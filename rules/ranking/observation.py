"""Observations: the signals of one failure beside the rules that found them, in order of time and reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rules.findings import Findings
from rules.pack import Mark, Rule, RuleRole
from rules.signal import Line, Role, Signal

__all__ = ["Observation", "arrange", "position"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One signal with its rule. `order` counts in reading order; `role` is what the signal turned out to be."""

    signal: Signal
    rule: Rule
    order: int
    role: Role

    @property
    def reason(self) -> str | None:
        return self.rule.reason

    @property
    def weight(self) -> int:
        return self.rule.weight

    @property
    def line(self) -> Line:
        return self.signal.line

    @property
    def last(self) -> Line:
        """The last of the equal lines that this signal counts."""
        return self.signal.last or self.signal.line

    @property
    def rank(self) -> int | None:
        """The rank that printed the line."""
        return self.signal.line.rank

    def capture(self, name: str) -> str | None:
        return self.signal.captures.get(name)

    def number(self, name: str) -> int | None:
        """A captured whole number, or None where it is absent or is not one."""
        value = self.signal.captures.get(name)
        try:
            return int(value) if value is not None else None
        except ValueError:
            return None

    def marks(self, *marks: Mark) -> bool:
        return self.rule.marks in marks

    def is_named_by(self, names: Iterable[str]) -> bool:
        """Whether one of `names` is this observation's rule code or reason."""
        return any(name in (self.rule.code, self.rule.reason) for name in names)


def position(line: Line) -> str:
    """Where a line stands, for a person: `path:number`."""
    return f"line {line.number}" if line.path == "-" else f"{line.path}:{line.number}"


ROLES: Mapping[RuleRole, Role] = {
    RuleRole.ROOT: Role.ROOT,
    RuleRole.CASCADE: Role.CASCADE,
    RuleRole.TEARDOWN: Role.TEARDOWN,
    RuleRole.CONTEXT: Role.CONTEXT,
    RuleRole.ROUTINE: Role.CONTEXT,
}


# Of one rule, this many first and last signals are ranked; a log may hold the same complaint a million times.
FIRST_OF_RULE, LAST_OF_RULE = 200, 50


def arrange(findings: Findings, rules: Mapping[str, Rule]) -> tuple[Observation, ...]:
    """The findings' signals with their rules: in reading order, and across several files in order of time.

    A line without a time takes the last one seen in its file. Signals of rules that are not in `rules` are left out.
    """
    by_rule: dict[str, list[int]] = defaultdict(list)
    steps: list[int] = []
    for index, signal in enumerate(findings.signals):
        if signal.rule in rules:
            (steps if rules[signal.rule].marks is Mark.PROGRESS else by_rule[signal.rule]).append(index)
    for found in by_rule.values():
        steps += found[:FIRST_OF_RULE] + found[FIRST_OF_RULE:][-LAST_OF_RULE:]
    chosen = sorted(steps)
    clock: dict[str, float] = {}
    timed = []
    for index in chosen:
        line = findings.signals[index].line
        if line.time is not None:
            clock[line.path] = line.time
        timed.append((clock.get(line.path, float("-inf")), index))
    if len({findings.signals[index].line.path for index in chosen}) > 1:
        timed.sort()
    signals = (findings.signals[index] for _, index in timed)
    return tuple(
        Observation(signal, rules[signal.rule], order, ROLES[rules[signal.rule].role]) for order, signal in enumerate(signals)
    )
