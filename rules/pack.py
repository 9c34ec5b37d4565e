"""Rule packs: the YAML form in which what is known is written down.

A rule says which lines it recognises (`any`), what else must stand near them (`all`) or must not (`none`), what the line means
(`reason`, `role`) and how it weighs against other rules. CONTRIBUTING.md shows one being added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from rules.taxonomy import NONE, UNKNOWN, Severity, Taxonomy, load_taxonomy

__all__ = [
    "CAPTURES",
    "PACK_FOLDER",
    "Examples",
    "Mark",
    "PackError",
    "Phase",
    "Rule",
    "RuleRole",
    "SeverityOverride",
    "UnreadablePack",
    "load_packs",
    "parse_document",
    "parse_pack",
    "parse_rule",
    "read_packs",
    "unknown_references",
]

PACK_FOLDER = Path(__file__).parent / "packs"
DEFAULT_WEIGHT = {"root": 60, "cascade": 40, "teardown": 20, "context": 0, "routine": 0}

# The capture names that ranking reads; a rule may have others, which are only shown.
CAPTURES: Mapping[str, str] = {
    "node": "host on which the fault sits (not the host that reports, where they differ)",
    "gpu": "PCI address, UUID or index of the GPU",
    "unit": "unit of the GPU that faulted, such as GPCCLIENT_T1_10",
    "pid": "process that the line is about",
    "rank": "global rank or task that failed",
    "local_rank": "rank on its node that failed",
    "reporter": "rank that reports, where it is not the one that failed (a waiting rank, a survivor)",
    "link": "link, port or adapter",
    "peer": "address or name of the remote side, which is the suspect",
    "path": "file, directory or mount",
    "port": "TCP port",
    "service": "external service or its host",
    "step": "training step or iteration",
    "group": "process group: its id, uid or description",
    "sequence": "sequence number of the collective that timed out",
    "operation": "operation of the collective, such as ALLREDUCE",
    "size": "its number of elements in",
    "size_out": "its number of elements out",
    "timeout_ms": "the time limit of the collective, milliseconds",
    "elapsed_ms": "how long it ran, milliseconds",
    "enqueued": "sequence number of the last collective that the rank enqueued",
    "completed": "sequence number of the last collective that the rank completed",
    "exit_code": "exit status of a process; negative or above 128 for a signal",
    "signal": "number or name of a signal",
    "failed_at": "time of a failure as a launcher summary prints it",
    "requested": "memory asked for, with its unit",
    "capacity": "memory of the device, with its unit",
    "free": "memory free on the device, with its unit",
    "allocated": "memory in live use by this process, with its unit",
    "reserved": "memory held by the allocator, live and cached, with its unit",
    "cached": "memory held by the allocator but not in use, with its unit",
    "contiguous": "largest block that could be had, with its unit",
    "scale": "loss scale after the line",
}


class PackError(ValueError):
    """A pack that cannot be used; the message names the file, the rule and what to change."""


class UnreadablePack(PackError):
    """A file that is no pack at all."""


class RuleRole(StrEnum):
    """A signal's role, or `routine`: a line that compression may drop."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    CONTEXT = "context"
    ROUTINE = "routine"


class Mark(StrEnum):
    """What a line says about where the job is in its life, beside whatever else it says. For context and routine rules.

    start: a launcher, a process or a communicator begins; preparation: data is downloaded, tokenised, mapped or indexed;
    loading: weights or a checkpoint are read; progress: a training or evaluation step was completed; save and saved: a
    checkpoint save begins and has ended; restart: a new attempt begins after a failure; finished: the job ended well;
    exit: one process's entry in a launcher's summary (captures exit_code, rank, node, failed_at).
    """

    START = "start"
    PREPARATION = "preparation"
    LOADING = "loading"
    PROGRESS = "progress"
    SAVE = "save"
    SAVED = "saved"
    RESTART = "restart"
    FINISHED = "finished"
    EXIT = "exit"


class Phase(StrEnum):
    """The part of a job's life to which a rule is limited: before its first completed step, as far as lines prove it, or not."""

    START = "start"
    RUNNING = "running"


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

    A root rule names a cause. A cascade rule with a reason names what to report when no root is in the evidence (the taxonomy's
    unattributed reasons: a collective timeout, a lost peer, an exit code). `reason: unknown` says that something failed without
    saying what.

    `marks` places the job in its life (see Mark). `phase: start` counts only where visible lines prove that the job is still
    starting (a start, preparation or loading mark and no completed step after it); `phase: running` only where they do not.
    `at_least`: fewer matches than this are noise. `transient`: a warning that the software retries by itself; it is a cause only
    if a failure follows that `overrides` names or that names nothing, and no step was completed in between. `recovers`
    lists rule codes or reasons that this line ends ("nfs: server OK", a retry that succeeded).
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
    marks: Mark | None = None
    phase: Phase | None = None
    at_least: int = 1
    transient: bool = False
    recovers: tuple[str, ...] = ()
    examples: Examples = field(default_factory=Examples)

    @property
    def run_gap(self) -> int:
        """Places of a condition at most so many lines apart make one run: no window fits between two of them."""
        return 2 * self.window + 1 if self.window else WHOLE_INPUT


# More lines than one block has.
WHOLE_INPUT = 1 << 31
FIELDS = frozenset(entry.name for entry in fields(Rule)) - {"pack"}
# Far above any pack a person wrote; keeps a hostile file from filling memory.
MAX_PACK_BYTES = 8_000_000


def strings(value: object, where: str, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise PackError(f"{where}: {name} must be a string or a list of strings")


def text(value: object, where: str, name: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise PackError(f"{where}: {name} must be a string")


def parse_severity(value: object, where: str) -> tuple[SeverityOverride, ...]:
    overrides = []
    try:
        for override in value or ():  # type: ignore[attr-defined]
            overrides.append(SeverityOverride(Severity(override["to"]), text(override["when"], where, "severity.when")))
    except (KeyError, TypeError, ValueError):
        raise PackError(f"{where}: severity is a list of {{to: SEV1|SEV2|SEV3|NONE, when: pattern}}") from None
    return tuple(overrides)


def parse_rule(entry: object, pack: str, taxonomy: Taxonomy) -> Rule:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("code"), str):
        raise PackError(f"pack {pack}: each rule is a mapping with a code")
    where = f"pack {pack}, rule {entry['code']}"
    unknown = sorted(str(name) for name in set(entry) - FIELDS)
    if unknown:
        raise PackError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}")
    named_role, reason = text(entry.get("role", "root"), where, "role"), entry.get("reason")
    try:
        role = RuleRole(named_role)
    except ValueError:
        raise PackError(f"{where}: role {named_role!r} is none of {', '.join(RuleRole)}") from None
    if reason is not None and not isinstance(reason, str):
        raise PackError(f"{where}: reason must be a string")
    if reason is None and role in (RuleRole.ROOT, RuleRole.CASCADE):
        raise PackError(f"{where}: a {role} rule needs a reason")
    if reason is not None and (reason not in taxonomy or reason == NONE):
        raise PackError(f"{where}: reason {reason!r} is not in the taxonomy")
    examples = entry.get("examples") or {}
    if not isinstance(examples, Mapping) or any(name not in ("match", "miss") for name in examples):
        raise PackError(f"{where}: examples is {{match: [...], miss: [...]}}")
    try:
        marks = Mark(text(entry["marks"], where, "marks")) if entry.get("marks") is not None else None
        phase = Phase(text(entry["phase"], where, "phase")) if entry.get("phase") is not None else None
    except ValueError as error:
        raise PackError(f"{where}: {error}; marks is one of {', '.join(Mark)}, phase one of {', '.join(Phase)}") from None
    at_least, transient = entry.get("at_least", 1), entry.get("transient", False)
    if not isinstance(at_least, int) or at_least < 1 or not isinstance(transient, bool):
        raise PackError(f"{where}: at_least is a number from 1, transient true or false")
    weight, window = entry.get("weight", DEFAULT_WEIGHT[role]), entry.get("window", 0)
    if not isinstance(weight, int) or not 0 <= weight <= 100 or not isinstance(window, int) or window < 0:
        raise PackError(f"{where}: weight is 0 to 100, window a number of lines")
    rule = Rule(
        code=entry["code"],
        title=text(entry.get("title"), where, "title"),
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
        severity=parse_severity(entry.get("severity"), where),
        reference=text(entry.get("reference"), where, "reference"),
        collect=strings(entry.get("collect"), where, "collect"),
        marks=marks,
        phase=phase,
        at_least=at_least,
        transient=transient,
        recovers=strings(entry.get("recovers"), where, "recovers"),
        examples=Examples(
            strings(examples.get("match"), where, "examples.match"), strings(examples.get("miss"), where, "examples.miss")
        ),
    )
    if not rule.any:
        raise PackError(f"{where}: at least one pattern under any")
    return rule


def parse_document(content: str, origin: str) -> tuple[str, list[object]]:
    """Name and rule entries of one pack. Raises UnreadablePack where the text is no pack at all."""
    # Not at the top: with compiled rules (rules/artefact.py) nobody needs YAML.
    import yaml

    try:
        document: Any = yaml.load(content, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadablePack(f"{origin}: not YAML: {str(error).splitlines()[0]}") from None
    if (
        not isinstance(document, Mapping)
        or not isinstance(document.get("pack"), str)
        or not isinstance(document.get("rules"), list)
    ):
        raise UnreadablePack(f"{origin}: a pack is a mapping with `pack: name` and `rules: [...]`")
    return document["pack"], document["rules"]


def parse_pack(content: str, taxonomy: Taxonomy, origin: str = "-") -> tuple[Rule, ...]:
    """The rules of one pack. Raises PackError, naming the rule, where anything is malformed."""
    pack, entries = parse_document(content, origin)
    return tuple(parse_rule(entry, pack, taxonomy) for entry in entries)


def read_packs(folder: Path) -> Iterator[tuple[str, str]]:
    """(file name, content) of every pack in `folder`, in file order. Raises UnreadablePack."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".yaml")
        for path in paths:
            if path.stat().st_size > MAX_PACK_BYTES:
                raise UnreadablePack(f"{path.name}: larger than {MAX_PACK_BYTES} bytes; split it")
            yield path.name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePack(f"{folder}: cannot read the packs: {error}") from None


def unknown_references(rules: Sequence[Rule], taxonomy: Taxonomy) -> Iterator[tuple[Rule, str]]:
    """(rule, name) for each name in a rule that is neither a code nor a reason."""
    known = {rule.code for rule in rules} | set(taxonomy.reasons) | {UNKNOWN}
    for rule in rules:
        for other in (*rule.overrides, *rule.explained_by, *rule.recovers):
            if other not in known:
                yield rule, other


def load_packs(folder: Path = PACK_FOLDER) -> tuple[Rule, ...]:
    """Every rule of every pack in `folder`, in file order. Raises PackError on a malformed pack or a code used twice."""
    taxonomy = load_taxonomy()
    rules: dict[str, Rule] = {}
    for name, content in read_packs(folder):
        for rule in parse_pack(content, taxonomy, name):
            if rule.code in rules:
                raise PackError(f"{name}: the code {rule.code} is used twice")
            rules[rule.code] = rule
    for rule, other in unknown_references(tuple(rules.values()), taxonomy):
        raise PackError(f"rule {rule.code}: {other!r} is neither a rule code nor a reason")
    return tuple(rules.values())
