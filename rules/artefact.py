"""Compiled rules in one file, so that a command starts at once: pattern databases, the rule table and the taxonomy.

The file is valid for the packs, the Hyperscan version and the kind of processor that it was made for, and is loaded only where
nobody else could have written it (a pattern database is trusted by the engine). Layout: MAGIC, SHA-256 of what follows, length of
the header (8 bytes, little-endian), header (JSON), sections one after another.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import hyperscan

from rules.account import cache_folder
from rules.matcher import Expressions, Matcher, PatternSet
from rules.pack import PACK_FOLDER, Mark, Phase, Rule, RuleRole, SeverityOverride, load_packs, read_packs
from rules.shapes import ShapePatterns, Sort, precedence_of, shape_patterns
from rules.taxonomy import TAXONOMY_FILE, Severity, Taxonomy, adopt_taxonomy, load_taxonomy, parse_reason, reason_entry

__all__ = [
    "ARTEFACT_VARIABLE",
    "ArtefactError",
    "Compiled",
    "artefact_key",
    "artefact_path",
    "compile_rules",
    "load_compiled",
    "load_matcher",
    "write_artefact",
]

# Names a file that `pitstop rules compile -o` wrote; tried before the user's cache.
ARTEFACT_VARIABLE = "PITSTOP_RULES_ARTEFACT"
MAGIC = b"PITSTOP RULES 1\n"
CHECKSUM_BYTES = 32
MAX_HEADER_BYTES = 1 << 20
# Of older packs and other processors, this many files stay in the cache.
KEPT_ARTEFACTS = 8
# What decides how packs are compiled: another version of these makes another artefact.
COMPILING_MODULES = ("artefact.py", "matcher.py", "pack.py", "pattern_nodes.py", "patterns.py", "shapes.py")
# Processor features by which Hyperscan chooses its code.
FEATURES = frozenset(["ssse3", "sse4_2", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vbmi", "asimd", "sve", "sve2"])

Say = Callable[[str], None]


class ArtefactError(Exception):
    """An artefact that is not used; the message says why."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """All that running needs of the packs. Rules from an artefact come without their examples."""

    rules: tuple[Rule, ...]
    taxonomy: Taxonomy
    expressions: Expressions
    patterns: PatternSet
    progress: PatternSet
    shapes: ShapePatterns

    def matcher(self) -> Matcher:
        return Matcher(self.rules, self.expressions, self.patterns, self.progress)


def load_matcher(folder: Path = PACK_FOLDER, say: Say | None = None) -> Matcher:
    """The matcher of every rule in `folder`. See load_compiled."""
    return load_compiled(folder, say).matcher()


def load_compiled(folder: Path = PACK_FOLDER, say: Say | None = None) -> Compiled:
    """Every rule in `folder`, from the artefact where there is a good one, else compiled and kept for next time.

    `say` gets one line where that takes long or something is wrong; by default they go to standard error. Raises PackError.
    """
    tell = say or (lambda line: print(f"pitstop: {line}", file=sys.stderr))
    key = artefact_key(folder)
    compiled = None
    named = os.environ.get(ARTEFACT_VARIABLE)
    for path in ([Path(named)] if named else []) + [artefact_path(key)]:
        try:
            compiled = read_artefact(path, key)
        except FileNotFoundError:
            continue
        except (ArtefactError, OSError) as error:
            tell(f"the compiled rules in {path} are not used: {error}")
            continue
        break
    if compiled is None:
        compiled = compile_rules(folder)
        try:
            write_artefact(compiled, key, artefact_path(key))
        except OSError as error:
            tell(f"the compiled rules cannot be kept ({error}); every start will compile them again")
    if folder == PACK_FOLDER:
        adopt_taxonomy(compiled.taxonomy)
    return compiled


def compile_rules(folder: Path = PACK_FOLDER) -> Compiled:
    """Read and compile the packs. Raises PackError."""
    matcher = Matcher(load_packs(folder))
    shapes = shape_patterns(matcher.rules)
    return Compiled(matcher.rules, load_taxonomy(), matcher.expressions, matcher.patterns, matcher.progress(), shapes)


def artefact_key(folder: Path = PACK_FOLDER) -> dict[str, str]:
    """What an artefact must have been made for. Raises PackError where the packs cannot be read."""
    digest = hashlib.sha256(TAXONOMY_FILE.read_bytes())
    for name, content in read_packs(folder):
        data = content.encode()
        digest.update(f"\n{name} {len(data)}\n".encode())
        digest.update(data)
    for name in COMPILING_MODULES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return {"packs": digest.hexdigest(), "hyperscan": str(vars(hyperscan)["__version__"]), "processor": processor()}


def processor() -> str:
    """The architecture and those features of the processor that decide which code Hyperscan runs."""
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as cpuinfo:
            words = cpuinfo.read(4096).decode("ascii", "replace").split()
    except OSError:
        words = []
    return " ".join([os.uname().machine, *sorted(FEATURES & set(words))])


def artefact_path(key: Mapping[str, str]) -> Path:
    """Where the artefact for `key` lies in the user's cache."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"rules-{name}.compiled"


def write_artefact(compiled: Compiled, key: Mapping[str, str], path: Path) -> None:
    """Put the artefact in place whole or not at all, readable by its owner only. Raises OSError."""
    table = json.dumps(table_of(compiled), separators=(",", ":")).encode()
    databases = {"search": compiled.patterns, "progress": compiled.progress, "shapes": compiled.shapes.patterns}
    sections = {"table": table, **{name: patterns.serialise() for name, patterns in databases.items()}}
    header = json.dumps({"key": key, "sections": {name: len(data) for name, data in sections.items()}}).encode()
    body = len(header).to_bytes(8, "little") + header + b"".join(sections.values())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(MAGIC + hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    forget_old(path)


def forget_old(newest: Path) -> None:
    others = [path for path in newest.parent.glob("rules-*.compiled") if path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_ARTEFACTS:]:
        path.unlink(missing_ok=True)


def read_artefact(path: Path, key: Mapping[str, str]) -> Compiled:
    """Raises ArtefactError where it is not ours to trust, damaged, or made for something else; OSError where unreadable."""
    with owned_file(path) as file:
        sections = read_sections(file, key)
    try:
        return compiled_of(json.loads(sections["table"]), sections)
    except hyperscan.error as error:
        raise ArtefactError(f"Hyperscan does not take it: {error}") from None


def read_sections(file: BinaryIO, key: Mapping[str, str]) -> dict[str, bytes]:
    """Each section read once, into bytes of its own: they are megabytes. Raises ArtefactError."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ArtefactError("not compiled rules, or of another version of Pitstop")
    checksum, length = file.read(CHECKSUM_BYTES), file.read(8)
    encoded = file.read(min(int.from_bytes(length, "little"), MAX_HEADER_BYTES))
    digest = hashlib.sha256(length + encoded)
    sections: dict[str, bytes] = {}
    try:
        header = json.loads(encoded)
        for name, size in header["sections"].items():
            sections[name] = file.read(size)
            digest.update(sections[name])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ArtefactError("damaged") from None
    if digest.digest() != checksum:
        raise ArtefactError("damaged")
    if header["key"] != dict(key):
        differing = ", ".join(name for name in key if header["key"].get(name) != key[name])
        raise ArtefactError(f"made for other {differing}")
    return sections


def owned_file(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    found = os.fstat(file.fileno())
    # Root may prepare an image for others; nobody else may write what the engine will run.
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        file.close()
        raise ArtefactError("others own it or may write to it" if stat.S_ISREG(found.st_mode) else "not a file")
    return file


def table_of(compiled: Compiled) -> dict[str, Any]:
    return {
        "rules": [rule_entry(rule) for rule in compiled.rules],
        "reasons": [reason_entry(reason) for reason in compiled.taxonomy.reasons.values()],
        "search": compiled.patterns.size,
        "progress": compiled.progress.size,
        "captures": [[pattern.decode("ascii") for pattern in group] for group in compiled.expressions.captures],
        "names": compiled.expressions.names,
        "blind": compiled.expressions.blind,
        "meanings": compiled.shapes.meanings,
    }


def compiled_of(table: Mapping[str, Any], sections: Mapping[str, bytes]) -> Compiled:
    captures = tuple(tuple(pattern.encode() for pattern in group) for group in table["captures"])
    rules = tuple(rule_of(entry) for entry in table["rules"])
    sorts = {sort.value: sort for sort in Sort}
    meanings = tuple([(sorts[sort], rule) for sort, rule in table["meanings"]])
    return Compiled(
        rules,
        Taxonomy({reason.name: reason for reason in map(parse_reason, table["reasons"])}),
        Expressions(captures, tuple(map(tuple, table["names"])), tuple(table["blind"])),
        PatternSet.load(sections["search"], table["search"]),
        PatternSet.load(sections["progress"], table["progress"]),
        ShapePatterns(meanings, PatternSet.load(sections["shapes"], len(meanings)), precedence_of(rules)),
    )


# Fields of a rule that JSON does not give back as they were.
DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "role": RuleRole,
    "marks": Mark,
    "phase": Phase,
    "severity": lambda overrides: tuple(SeverityOverride(Severity(to), when) for to, when in overrides),
}


def rule_entry(rule: Rule) -> dict[str, Any]:
    """The rule without its examples and what stands at its default."""
    entry: dict[str, Any] = {}
    for field in fields(Rule):
        value = getattr(rule, field.name)
        if field.name == "severity":
            value = [(override.to, override.when) for override in value]
        if field.name != "examples" and value != field.default and value not in ((), []):
            entry[field.name] = value
    return entry


def rule_of(entry: Mapping[str, Any]) -> Rule:
    values: dict[str, Any] = {
        name: DECODERS[name](value) if name in DECODERS else tuple(value) if isinstance(value, list) else value
        for name, value in entry.items()
    }
    return Rule(**values)
