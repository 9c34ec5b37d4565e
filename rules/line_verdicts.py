"""Which routine rule drops each line of a block, told by the line's shape wherever that settles it (see rules/shapes.py).

For those who need the verdict on every line and nothing else; rules/compression.py also measures, and keeps ranks apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.matcher import Matcher
from rules.pack import RuleRole
from rules.scan_verdicts import KEEP
from rules.shapes import Hints, ShapePatterns, Span, judge, shape_of

__all__ = ["BlockVerdicts", "VerdictFinder"]

# In place of the number of a routine rule, or of KEEP.
UNKNOWN = -2

# More than this of one line is no shape worth remembering; nor are more shapes than this in all.
MAX_SHAPE_BYTES = 8_192
MAX_REMEMBERED_BYTES = 16 * 1024 * 1024
MAX_SEEN = 65_536
# Shapes judged for one block: a log of ever new ones must not cost more than looking at its lines does.
MAX_JUDGED = 64
NOTHING: dict[tuple[Span, ...], dict[tuple[bytes, ...], int]] = {}


@dataclass(frozen=True, slots=True)
class BlockVerdicts:
    """`rules`: by line, the number of the routine rule that drops it, or KEEP. `signals`: lines in which a signal rule finds
    something."""

    rules: list[int]
    signals: frozenset[int]


class VerdictFinder:
    """Judges one block after another and remembers shapes; memory stays bounded.

    Of several routine rules the preferred one stands (rules/shapes.precedence_of); a line in which a signal rule finds something,
    under any clause, is kept.
    """

    def __init__(self, matcher: Matcher, shapes: ShapePatterns) -> None:
        self._patterns = matcher.patterns
        self._shapes = shapes
        rules = matcher.rules
        # By pattern: its routine rule, or KEEP for one of a signal rule.
        self._routine = [rule if rules[rule].role is RuleRole.ROUTINE else KEEP for rule, _, _ in matcher.references]
        self._settled: dict[bytes, int] = {}
        # By shape: where the digits stand on which it hangs, and what it is for which of them.
        self._guarded: dict[bytes, dict[tuple[Span, ...], dict[tuple[bytes, ...], int]]] = {}
        self._hints: Hints = {}
        self._seen: set[int] = set()
        self.remembered_bytes = 0

    def find(self, block: bytes) -> BlockVerdicts:
        """`block`: whole lines, without escape sequences."""
        masked = shape_of(block).split(b"\n")[:-1]
        verdicts = [UNKNOWN if rule is None else rule for rule in map(self._settled.get, masked)]
        asked = [index for index, rule in enumerate(verdicts) if rule == UNKNOWN]
        if not asked:
            return BlockVerdicts(verdicts, frozenset())
        lines = block.split(b"\n")
        if self._guarded:
            for index in asked:
                verdicts[index] = self._by_guards(masked[index], lines[index])
            asked = [index for index in asked if verdicts[index] == UNKNOWN]
        looked_at = self._look_at([lines[index] for index in asked])
        for index, rule in zip(asked, looked_at.rules, strict=True):
            verdicts[index] = rule
        self._learn({masked[index]: (lines[index], verdicts[index]) for index in asked if self._was_seen(masked[index])})
        return BlockVerdicts(verdicts, frozenset([asked[place] for place in looked_at.signals]))

    def _by_guards(self, masked: bytes, line: bytes) -> int:
        for guards, known in self._guarded.get(masked, NOTHING).items():
            rule = known.get(tuple([line[start:end] for start, end in guards]))
            if rule is not None:
                return rule
        return UNKNOWN

    def _look_at(self, lines: Sequence[bytes]) -> BlockVerdicts:
        verdicts = [KEEP] * len(lines)
        signals: set[int] = set()
        precedence, routine = self._shapes.precedence, self._routine
        for index, pattern in self._patterns.find(b"".join([line + b"\n" for line in lines])):
            rule = routine[pattern]
            if rule == KEEP:
                signals.add(index)
            elif verdicts[index] == KEEP or precedence[rule] < precedence[verdicts[index]]:
                verdicts[index] = rule
        for index in signals:
            verdicts[index] = KEEP
        return BlockVerdicts(verdicts, frozenset(signals))

    def _was_seen(self, masked: bytes) -> bool:
        """Whether such a line was looked at before: only what comes again is worth judging."""
        if len(masked) > MAX_SHAPE_BYTES:
            return False
        key = hash(masked)
        if key in self._seen:
            return True
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(key)
        return False

    def _learn(self, fresh: dict[bytes, tuple[bytes, int]]) -> None:
        chosen = list(fresh.items())[:MAX_JUDGED]
        judgements = judge(self._shapes, [line for _, (line, _) in chosen], True, self._hints) if chosen else []
        for (masked, (line, verdict)), judgement in zip(chosen, judgements, strict=True):
            rule = KEEP if judgement is None or judgement.rule is None else judgement.rule
            # A verdict that hangs on too much is found anew each time.
            if judgement is not None and rule == verdict:
                self._remember(masked, line, rule, judgement.guards)

    def _remember(self, masked: bytes, line: bytes, rule: int, guards: Sequence[Span]) -> None:
        if self.remembered_bytes > MAX_REMEMBERED_BYTES:
            self._settled.clear()
            self._guarded.clear()
            self.remembered_bytes = 0
        self.remembered_bytes += len(masked)
        if guards:
            known = self._guarded.setdefault(masked, {}).setdefault(tuple(guards), {})
            known[tuple([line[start:end] for start, end in guards])] = rule
        else:
            self._settled[masked] = rule
