"""Rule packs: the YAML form in which what is known is written down.

A rule says which lines it recognises (`any`), what else must stand near them (`all`) or must not (`none`), what the line means
(`reason`, `role`) and how it weighs against other rules. CONTRIBUTING.md shows one being added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from rules.taxonomy import NONE, UNKNOWN, Severity, Taxonomy, load_taxonomy

__all__ = ["PACK_FOLDER", "Examples", "PackError", "Rule", "RuleRole", "SeverityOverride", "load_packs", "parse_pack"]

PACK_FOLDER = Path(__file__).parent / "packs"
DEFAULT_WEIGHT = {"root": 60, "cascade": 40, "teardown": 20, "context": 0, "routine": 0}


class PackError(ValueError):
    """A pack that cannot be used; the message names the file, the rule and what to change."""


class RuleRole(StrEnum):
    """A signal's role, or `routine`: a line that compression may drop."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    CONTEXT = "context"
    ROUTINE = "routine"


@dataclass(frozen=True, slots=True)
class SeverityOverride:
    """`to` replaces the reason's severity where `when` (an RE2 pattern) is found in the matched line."""

    to: Severity
    when: str


@dataclass(frozen=True, slots=True)
class Examples:
    """Pitstop's own corpus: texts (one line or several) that the rule must find, and must not."""

    match: tuple[str, ...] = ()
    miss: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a pack. `window` counts lines each side in which `all` and `none` are looked for; 0: the whole input.

    `weight` (0-100) says how directly the line names the cause: 90 a vendor code or a message that can mean nothing else, 60 a
    clear error, 30 a generic symptom. `overrides` lists rule codes or reasons that are consequences of this one wherever both
    appear; `explained_by` lists those that make this one a consequence.
    """

    code: str
    title: str
    pack: str
    role: RuleRole
    reason: str | None
    any: tuple[str, ...]
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    window: int = 0
    captures: tuple[str, ...] = ()
    weight: int = 60
    overrides: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    severity: tuple[SeverityOverride, ...] = ()
    reference: str = ""
    collect: tuple[str, ...] = ()
    examples: Examples = field(default_factory=Examples)


FIELDS = frozenset(
    {
        *("code", "title", "role", "reason", "any", "all", "none", "window", "captures", "weight"),
        *("overrides", "explained_by", "severity", "reference", "collect", "examples"),
    }
)


def strings(value: object, where: str, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise PackError(f"{where}: {name} must be a string or a list of strings")


def parse_rule(entry: object, pack: str, taxonomy: Taxonomy) -> Rule:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("code"), str):
        raise PackError(f"pack {pack}: each rule is a mapping with a code")
    where = f"pack {pack}, rule {entry['code']}"
    unknown = set(entry) - FIELDS
    if unknown:
        raise PackError(f"{where}: unknown field {sorted(unknown)[0]!r}; known are {', '.join(sorted(FIELDS))}")
    try:
        role = RuleRole(entry.get("role", "root"))
    except ValueError:
        raise PackError(f"{where}: role {entry.get('role')!r} is none of {', '.join(RuleRole)}") from None
    reason = entry.get("reason")
    if reason is None and role in (RuleRole.ROOT, RuleRole.CASCADE):
        raise PackError(f"{where}: a {role} rule needs a reason")
    if reason is not None and (reason not in taxonomy or reason == NONE):
        raise PackError(f"{where}: reason {reason!r} is not in the taxonomy")
    overrides = []
    for override in entry.get("severity") or ():
        try:
            overrides.append(SeverityOverride(Severity(override["to"]), str(override["when"])))
        except (KeyError, TypeError, ValueError):
            raise PackError(f"{where}: severity is a list of {{to: SEV1|SEV2|SEV3|NONE, when: pattern}}") from None
    examples = entry.get("examples") or {}
    if not isinstance(examples, Mapping) or set(examples) - {"match", "miss"}:
        raise PackError(f"{where}: examples is {{match: [...], miss: [...]}}")
    weight, window = entry.get("weight", DEFAULT_WEIGHT[role]), entry.get("window", 0)
    if not isinstance(weight, int) or not 0 <= weight <= 100 or not isinstance(window, int) or window < 0:
        raise PackError(f"{where}: weight is 0 to 100, window a number of lines")
    rule = Rule(
        code=entry["code"],
        title=str(entry.get("title", "")),
        pack=pack,
        role=role,
        reason=reason,
        any=strings(entry.get("any"), where, "any"),
        all=strings(entry.get("all"), where, "all"),
        none=strings(entry.get("none"), where, "none"),
        window=window,
        captures=strings(entry.get("captures"), where, "captures"),
        weight=weight,
        overrides=strings(entry.get("overrides"), where, "overrides"),
        explained_by=strings(entry.get("explained_by"), where, "explained_by"),
        severity=tuple(overrides),
        reference=str(entry.get("reference", "")),
        collect=strings(entry.get("collect"), where, "collect"),
        examples=Examples(
            strings(examples.get("match"), where, "examples.match"), strings(examples.get("miss"), where, "examples.miss")
        ),
    )
    if not rule.any:
        raise PackError(f"{where}: at least one pattern under any")
    return rule


def parse_pack(text: str, taxonomy: Taxonomy, origin: str = "-") -> tuple[Rule, ...]:
    """The rules of one pack. Raises PackError, naming the rule, where anything is malformed."""
    try:
        document: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise PackError(f"{origin}: not YAML: {str(error).splitlines()[0]}") from None
    if (
        not isinstance(document, Mapping)
        or not isinstance(document.get("pack"), str)
        or not isinstance(document.get("rules"), list)
    ):
        raise PackError(f"{origin}: a pack is a mapping with `pack: name` and `rules: [...]`")
    return tuple(parse_rule(entry, document["pack"], taxonomy) for entry in document["rules"])


def load_packs(folder: Path = PACK_FOLDER) -> tuple[Rule, ...]:
    """Every rule of every pack in `folder`, in file order. Raises PackError on a malformed pack or a code used twice."""
    taxonomy = load_taxonomy()
    rules: dict[str, Rule] = {}
    for path in sorted(folder.glob("*.yaml")):
        for rule in parse_pack(path.read_text(encoding="utf-8"), taxonomy, path.name):
            if rule.code in rules:
                raise PackError(f"{path.name}: the code {rule.code} is used twice")
            rules[rule.code] = rule
    known = set(rules) | {rule.reason for rule in rules.values() if rule.reason} | set(taxonomy.reasons) | {UNKNOWN}
    for rule in rules.values():
        for other in (*rule.overrides, *rule.explained_by):
            if other not in known:
                raise PackError(f"rule {rule.code}: {other!r} is neither a rule code nor a reason")
    return tuple(rules.values())
