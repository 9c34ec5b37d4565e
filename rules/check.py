"""Judge rules before they are used: patterns that both engines take and that cost little, and examples that hold in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from rules.matcher import Clause, Matcher, byte_options
from rules.pack import (
    PackError,
    Rule,
    UnreadablePack,
    parse_document,
    parse_rule,
    unknown_references,
)
from rules.patterns import MIN_LITERAL, PatternError, parse_pattern
from rules.taxonomy import Taxonomy

__all__ = ["Problem", "check_packs", "check_rules", "is_recognised"]

# (line index, clause, ordinal) of each pattern of one rule found in a text
Found = set[tuple[int, Clause, int]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to mend. `unreadable`: the file is no pack at all."""

    file: str
    rule: str
    message: str
    unreadable: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.rule}: {self.message}" if self.rule else self.message


def check_packs(packs: Iterable[tuple[str, str]], taxonomy: Taxonomy) -> tuple[list[Rule], list[Problem]]:
    """The usable rules of (file name, content) pairs, and every problem found."""
    rules: dict[str, Rule] = {}
    files: dict[str, str] = {}
    problems: list[Problem] = []
    for file, content in packs:
        try:
            pack, entries = parse_document(content, file)
        except UnreadablePack as error:
            problems.append(Problem(file, "", str(error), unreadable=True))
            continue
        for entry in entries:
            try:
                rule = parse_rule(entry, pack, taxonomy)
            except PackError as error:
                problems.append(Problem(file, "", f"{file}: {error}"))
                continue
            if rule.code in rules:
                problems.append(Problem(file, rule.code, f"the code is used twice, also in {files[rule.code]}"))
                continue
            rules[rule.code], files[rule.code] = rule, file
    found = check_rules(list(rules.values()))
    problems += [Problem(files[code], code, message) for code, messages in found.items() for message in messages]
    for rule, other in unknown_references(tuple(rules.values()), taxonomy):
        problems.append(Problem(files[rule.code], rule.code, f"{other!r} is neither a rule code nor a reason"))
    return list(rules.values()), problems


def check_rules(rules: Sequence[Rule]) -> dict[str, list[str]]:
    """What is wrong with each rule, in words, by code. Examples are run only where the patterns themselves are sound."""
    problems = {rule.code: check_form(rule) for rule in rules}
    sound = [rule for rule in rules if not problems[rule.code]]
    try:
        matcher = Matcher(sound)
    except PackError:
        # Hyperscan names no pattern: try them one by one.
        for rule in sound:
            try:
                Matcher([rule])
            except PackError as error:
                problems[rule.code].append(str(error))
        sound = [rule for rule in sound if not problems[rule.code]]
        matcher = Matcher(sound)
    for rule, messages in check_examples(sound, matcher):
        problems[rule.code] += messages
    return problems


def check_form(rule: Rule) -> list[str]:
    """What can be said of one rule without running its examples."""
    messages: list[str] = []
    for pattern in (*rule.any, *rule.all, *rule.none):
        messages += [f"pattern {pattern!r}: {message}" for message in check_search_pattern(pattern)]
    for pattern in (*rule.captures, *(override.when for override in rule.severity)):
        messages += [f"pattern {pattern!r}: {message}" for message in check_re2_pattern(pattern)]
    for pattern in rule.captures:
        try:
            if not parse_pattern(pattern).group_names:
                messages.append(f"pattern {pattern!r}: captures nothing; name a group as in (?P<rank>...)")
        except PatternError:
            pass
    if not rule.examples.match:
        messages.append("no example that it must match")
    return messages


def check_search_pattern(source: str) -> Iterator[str]:
    try:
        pattern = parse_pattern(source)
    except PatternError as error:
        yield str(error)
        return
    if pattern.ends_in_open_repeat:
        yield "ends in an open repeat, which says nothing more than the pattern without it; cut it off"
    if len(pattern.longest_literal) < MIN_LITERAL:
        yield f"no literal of at least {MIN_LITERAL} characters to hold on to; add fixed text that every such line has"
        return
    yield from check_re2_pattern(source)


def check_re2_pattern(source: str) -> Iterator[str]:
    try:
        for_re2(source)
    except PatternError as error:
        yield str(error)
    except re2.error as error:
        yield f"RE2 cannot compile it: {error}"


# Every example of a rule asks for the same patterns.
@lru_cache(maxsize=256)
def for_re2(source: str) -> Any:
    """The pattern as RE2 takes it. Raises PatternError, re2.error."""
    return re2.compile(parse_pattern(source).for_re2(), byte_options())


def check_examples(rules: Sequence[Rule], matcher: Matcher) -> Iterator[tuple[Rule, list[str]]]:
    """Run every example through both engines, which must agree on every line and with the author."""
    texts = [(index, wanted, text) for index, rule in enumerate(rules) for wanted, text in examples_of(rule)]
    split = [text.encode().removesuffix(b"\n").split(b"\n") for _, _, text in texts]
    places = [(example, line) for example, lines in enumerate(split) for line in range(len(lines))]
    found: list[Found] = [set() for _ in texts]
    for hit in matcher.scan(b"".join(line + b"\n" for lines in split for line in lines)):
        example, line = places[hit.line]
        if hit.rule == texts[example][0]:
            found[example].add((line, hit.clause, hit.ordinal))
    for (index, wanted, text), lines, here in zip(texts, split, found, strict=True):
        rule = rules[index]
        messages = []
        if differing := here ^ found_by_re2(rule, lines):
            clause, ordinal = min(differing)[1:]
            messages.append(f"example {text!r}: Hyperscan and RE2 do not agree on pattern {ordinal + 1} under {clause}")
        if is_recognised(rule, here) != wanted:
            messages.append(f"example {text!r}: {'not matched, and should be' if wanted else 'matched, and should not be'}")
        yield rule, messages


def examples_of(rule: Rule) -> Iterator[tuple[bool, str]]:
    """(whether it must match, text) of each example."""
    for wanted, texts in ((True, rule.examples.match), (False, rule.examples.miss)):
        for text in texts:
            yield wanted, text


def found_by_re2(rule: Rule, lines: Sequence[bytes]) -> Found:
    found: Found = set()
    for clause, group in ((Clause.ANY, rule.any), (Clause.ALL, rule.all), (Clause.NONE, rule.none)):
        for ordinal, pattern in enumerate(group):
            expression = for_re2(pattern)
            found.update((index, clause, ordinal) for index, line in enumerate(lines) if expression.search(line))
    return found


def is_recognised(rule: Rule, found: Found) -> bool:
    """Whether a text in which these patterns of `rule` were found satisfies the rule somewhere."""
    lines = {line for line, clause, _ in found if clause is Clause.ANY}

    def near(line: int, clause: Clause, ordinal: int) -> bool:
        return any(
            (kind, number) == (clause, ordinal) and (not rule.window or abs(other - line) <= rule.window)
            for other, kind, number in found
        )

    return any(
        all(near(line, Clause.ALL, ordinal) for ordinal in range(len(rule.all)))
        and not any(near(line, Clause.NONE, ordinal) for ordinal in range(len(rule.none)))
        for line in lines
    )
