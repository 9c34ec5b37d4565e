"""What can be said of a line whatever its digits are: the reasoning by which most lines of a log need no second look.

A shape is a line with every digit made '0'. Routine lines come in few shapes. Whether a signal rule could match a line of a
shape, and which routine rule does, is decided once, with ANY_DIGIT put where the digits are; digits on which that hangs are
guarded: the verdict then holds for lines with just those digits at just those places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rules.matcher import PatternSet
from rules.pack import Rule, RuleRole

__all__ = [
    "ANY_DIGIT",
    "Hints",
    "Judgement",
    "ShapePatterns",
    "Sort",
    "Span",
    "judge",
    "precedence_of",
    "preferred",
    "shape_of",
    "shape_patterns",
    "with_known",
    "with_unknown_digits",
]

Span = tuple[int, int]
# Which numbers of a line settled its verdict, by the rule to which it falls and how many numbers it has.
Hints = dict[tuple[int | None, int], tuple[int, ...]]

# Stands in a line for "some digit"; never part of valid UTF-8.
ANY_DIGIT = 0xFF
MASK = bytes.maketrans(b"123456789", b"0" * 9)
UNKNOWN_DIGITS = bytes.maketrans(b"0123456789", bytes([ANY_DIGIT]) * 10)
GROUP_NAME = re.compile(r"\(\?P<(\w+)>")
NUMBER = re.compile(rb"\d+")
# A line with more numbers than this is looked at each time.
MAX_NUMBERS = 64


class Sort(StrEnum):
    """What finding a pattern in a line with unknown digits says."""

    SIGNAL_POSSIBLE = "signal"
    CONDITION_POSSIBLE = "condition"
    ROUTINE_POSSIBLE = "possible"
    ROUTINE_CERTAIN = "certain"


ROUTINE_SORTS = (Sort.ROUTINE_POSSIBLE, Sort.ROUTINE_CERTAIN)
SIGNAL_SORTS = (Sort.SIGNAL_POSSIBLE, Sort.CONDITION_POSSIBLE)


@dataclass(frozen=True, slots=True)
class ShapePatterns:
    """Patterns over lines with unknown digits, with what each says of which rule."""

    meanings: tuple[tuple[Sort, int], ...]
    patterns: PatternSet
    precedence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict for a shape under `guards`: the routine rule that drops its lines, or None: kept, and no signal either."""

    rule: int | None
    guards: tuple[Span, ...]


def shape_of(line: bytes) -> bytes:
    return line.translate(MASK)


def shape_expressions(rules: Sequence[Rule]) -> tuple[tuple[bytes, ...], tuple[tuple[Sort, int], ...]]:
    # Not at the top: with compiled rules (rules/artefact.py) nobody reads patterns.
    from rules.patterns import parse_pattern

    expressions: list[bytes] = []
    meanings: list[tuple[Sort, int]] = []
    for index, rule in enumerate(rules):
        routine = rule.role is RuleRole.ROUTINE
        sources = [(source, sort) for sort in (ROUTINE_SORTS if routine else SIGNAL_SORTS) for source in clause_of(rule, sort)]
        for source, sort in sources:
            variant = parse_pattern(source).with_any_digit(sort is Sort.ROUTINE_CERTAIN)
            if variant is not None:
                expressions.append(variant.for_hyperscan())
                meanings.append((sort, index))
    return tuple(expressions), tuple(meanings)


def clause_of(rule: Rule, sort: Sort) -> Sequence[str]:
    """The patterns of `rule` that say this of a line."""
    if sort is Sort.SIGNAL_POSSIBLE:
        return (*rule.any, *rule.all)
    return rule.none if sort is Sort.CONDITION_POSSIBLE else rule.any


def shape_patterns(rules: Sequence[Rule]) -> ShapePatterns:
    """Compile what judging shapes under `rules` takes. Raises PackError."""
    expressions, meanings = shape_expressions(rules)
    return ShapePatterns(meanings, PatternSet(expressions), precedence_of(rules))


def precedence_of(rules: Sequence[Rule]) -> tuple[int, ...]:
    """For each rule its place among those that recognise a line: the one that captures most comes first, then the earlier one."""
    ordered = sorted(
        range(len(rules)), key=lambda index: (-len(set(GROUP_NAME.findall("\n".join(rules[index].captures)))), index)
    )
    places = [0] * len(rules)
    for place, index in enumerate(ordered):
        places[index] = place
    return tuple(places)


def preferred(precedence: Sequence[int], known: int | None, rule: int) -> int:
    return rule if known is None or precedence[rule] < precedence[known] else known


def judge(
    patterns: ShapePatterns, lines: Sequence[bytes], conditions: bool, hints: Hints, known: Sequence[int] | None = None
) -> list[Judgement | None]:
    """The judgement of each line's shape; None where every line of it has to be looked at.

    `conditions`: whether those that only speak against a rule have to be looked at, too; `hints`: what earlier calls found out;
    `known`: for each line how many patterns of signal rules may be found in every line of its shape (left out: none).
    """
    texts = [with_unknown_digits(line) for line in lines]
    known = known or [0] * len(lines)
    judgements: list[Judgement | None] = []
    for line, signals, (settled, rule) in zip(lines, known, outcomes(patterns, texts, conditions, known), strict=True):
        if ANY_DIGIT in line:
            judgements.append(None)
        elif settled:
            judgements.append(Judgement(rule, ()))
        else:
            judgements.append(guarded(patterns, line, conditions, hints, signals))
    return judgements


def outcomes(
    patterns: ShapePatterns, texts: Sequence[bytes], conditions: bool, known: Sequence[int]
) -> list[tuple[bool, int | None]]:
    """For each text: whether its verdict is settled whatever the unknown digits are, and to which routine rule it then falls.

    `known`: how many patterns of signal rules may be found in it.
    """
    signals = [0] * len(texts)
    possible: list[int | None] = [None] * len(texts)
    certain: list[int | None] = [None] * len(texts)
    for index, pattern in patterns.patterns.find(b"".join(text + b"\n" for text in texts)):
        sort, rule = patterns.meanings[pattern]
        if sort in SIGNAL_SORTS:
            signals[index] += conditions or sort is Sort.SIGNAL_POSSIBLE
            continue
        first = possible if sort is Sort.ROUTINE_POSSIBLE else certain
        first[index] = preferred(patterns.precedence, first[index], rule)
    return [(signals[i] == known[i] and possible[i] == certain[i], certain[i]) for i in range(len(texts))]


def guarded(patterns: ShapePatterns, line: bytes, conditions: bool, hints: Hints, signals: int) -> Judgement | None:
    """Find few numbers which, held fast, settle the verdict."""
    numbers = [match.span() for match in NUMBER.finditer(line)]
    if len(numbers) > MAX_NUMBERS:
        return None
    ((settled, rule),) = outcomes(patterns, [line], conditions, [signals])
    if not settled:
        return None

    def settling(choices: Sequence[Sequence[int]]) -> list[bool]:
        texts = [with_known(line, [numbers[ordinal] for ordinal in choice]) for choice in choices]
        return [outcome == (True, rule) for outcome in outcomes(patterns, texts, conditions, [signals] * len(texts))]

    kind = (rule, len(numbers))
    if kind not in hints or not settling([hints[kind]])[0]:
        hints[kind] = few_settling(len(numbers), settling)
    return Judgement(rule, tuple(numbers[ordinal] for ordinal in hints[kind]))


def few_settling(count: int, settling: Callable[[Sequence[Sequence[int]]], list[bool]]) -> tuple[int, ...]:
    """One number that settles a verdict, else those without which, one by one, it is open, else all but what does not matter."""
    every = tuple(range(count))
    alone = settling([[ordinal] for ordinal in every])
    if True in alone:
        return (alone.index(True),)
    spared = settling([[other for other in every if other != ordinal] for ordinal in every])
    needed = tuple(ordinal for ordinal in every if not spared[ordinal])
    if settling([needed])[0]:
        return needed
    kept = every
    for ordinal in every:
        rest = tuple(other for other in kept if other != ordinal)
        if settling([rest])[0]:
            kept = rest
    return kept


def with_unknown_digits(line: bytes) -> bytes:
    return line.translate(UNKNOWN_DIGITS)


def with_known(line: bytes, known: Sequence[Span]) -> bytes:
    text = bytearray(line.translate(UNKNOWN_DIGITS))
    for start, end in known:
        text[start:end] = line[start:end]
    return bytes(text)
