"""One raw line of a log as text, with the rank and the node that its prefixes or its path name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

__all__ = [
    "MAX_TEXT_BYTES",
    "Origin",
    "Span",
    "is_traced_command",
    "line_text",
    "origin_of_path",
    "origin_of_text",
    "quick_prefix",
    "rank_span",
    "strip_escapes",
    "strip_escapes_of_view",
    "torn_parts",
]

# More of one line than this serves neither captures nor a reader.
MAX_TEXT_BYTES = 16_384
MAX_PREFIXES = 6
# A process says within this many characters which rank it is.
RANK_INSIDE_CHARS = 256

ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_=>78])")
QUICK = re.compile(rb"\[(?:default(\d{1,6})\]:(?: ?\[rank(\d{1,6})\]:)?|rank(\d{1,6})\]:)")
SHIPPED = re.compile(rb"(?<=[ \t\"|])" + QUICK.pattern)

# What may stand before the text of a line, again and again; the groups say what a prefix names (PREFIX_MEANINGS).
PREFIX = re.compile(
    r"\[default(?P<local>\d{1,6})\]:? ?"
    r"|\[(?:rank|trainer|worker|role)(?P<rank1>\d{1,6})\]:? ?"
    r"|\[\d+,(?P<rank2>\d{1,6})\]<std(?:out|err)>: ?"
    r"| {0,5}(?P<rank3>\d{1,6}): ?(?!\d\d:)"
    r"|\([\w./-]+ (?:rank=(?P<rank4>\d+) ?,? ?)?pid=\d+(?:, ip=(?P<node1>[\w.:-]+))?\) ?"
    r"|(?P<node2>[a-zA-Z][\w.-]*):\d+:\d+ \[\d+\] "
    r"|\[pod/(?P<node3>[\w.-]+)/[\w.-]+\] ?"
    r"|\[(?P<node4>(?=[\w.-]*[\d-])[a-z][a-z0-9.]*(?:-[a-z0-9.]+)*)\]:? "
    r"|(?!(?:eth|ib|sd|nvme|mlx|md|dm|nfs|cpu|gpu|bond|docker|veth|loop|en[ops]|hfi|nvidia-nvswitch)[a-z]?\d)"
    r"(?P<node5>[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*\d[a-z0-9.]*|[a-z]+-[a-z0-9-]*\d): (?=\S)"
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r" (?P<node6>[a-zA-Z][\w.-]*) (?=[\w./-]+(?:\[\d+\])?: )"
)
PREFIX_MEANINGS = tuple((index, name.rstrip("0123456789")) for name, index in PREFIX.groupindex.items())
ABSENT = (-1, -1)
Span: TypeAlias = tuple[int, int]
# A process says which rank it is: torch's `[Rank 3]` and `[PG 0 (default_pg) Rank 3]`, loguru-like `rank=3]`; or torchrun's
# prefix stands behind what a shipper put before it (a stamp, a stream, a pod, a JSON field).
RANK_INSIDE = re.compile(
    r"\[(?:PG [^\]]{0,80}? )?[Rr]ank[ =:]?(?P<rank>\d{1,6})\]|[,\[ ]rank[ =](?P<also>\d{1,6})\]"
    r"|\[default(?P<local>\d{1,6})\]:(?: ?\[rank(?P<after>\d{1,6})\])?"
)

# Without one of these or the word rank no line names a rank: most need no closer look.
NUMBERED = re.compile(rb"(?:\[[^\]\n]{1,80}\]:? ?|\([^)\n]{1,80}\) ?){0,5} {0,5}(?:\d{1,6}:|\[(?:trainer|worker|role)\d|<std)")
MAX_PREFIX_BYTES = 512

PATH_RANK = re.compile(
    r"attempt_\d+/(?P<local>\d+)/[^/]+$|(?:^|[/._-])rank[._-]?(?P<rank>\d{1,6})(?=[/._-]|$)",
)
PATH_NODE = re.compile(
    r"(?:^|[/._-])(?P<node>(?:(?!dmesg|kern|journal|syslog|log|slurm|job|train|std)[a-z]+-)*"
    r"(?:node|host|worker|compute|dgx|hgx|gpu|cn|n)-?\d{1,6})(?=[/._]|-rank|$)"
)
# What a shell under `set -x` is about to run.
TRACED = re.compile(r"\+{1,8} [A-Za-z_./\[({!:]")
TEAR = re.compile(r"(?<=[^\s\]:])(?=\[(?:rank|default)\d{1,6}\]:)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which rank and which node wrote a line, where it says so. `local` is the rank on its node, where only that is told."""

    rank: int | None = None
    node: str | None = None
    local: int | None = None


def strip_escapes(data: bytes) -> bytes:
    """`data` without terminal escape sequences; newlines stay where they are."""
    return ESCAPES.sub(b"", data) if b"\x1b" in data else data


def strip_escapes_of_view(view: memoryview) -> bytes | memoryview:
    """The same for a view of bytes; `view` itself where there are none."""
    return ESCAPES.sub(b"", view) if not isinstance(view.obj, bytes) or b"\x1b" in view.obj else view


def line_text(raw: bytes) -> str:
    """At most 16 kB of one line: its beginning, or its end where a progress bar kept redrawing it."""
    if len(raw) > MAX_TEXT_BYTES:
        raw = raw[-MAX_TEXT_BYTES:] if b"\r" in raw[-MAX_TEXT_BYTES:] else raw[:MAX_TEXT_BYTES]
    return strip_escapes(raw).decode("utf-8", "replace").strip("\0").rstrip("\r\n")


@lru_cache(maxsize=4096)
def origin_of_path(path: str) -> Origin:
    """What torchrun's log directory, per-rank files and Slurm's output names tell."""
    ranks = PATH_RANK.search(path)
    nodes = PATH_NODE.search(path)
    node = nodes["node"] if nodes else None
    if ranks is None:
        return Origin(None, node)
    return Origin(int(ranks["rank"]), node) if ranks["rank"] else Origin(None, node, int(ranks["local"]))


def quick_prefix(raw: bytes) -> tuple[int | None, int | None]:
    """Local and global rank of a torchrun prefix at the beginning of `raw`, or behind what a shipper put there."""
    # Plain text is found many times as fast as a pattern, and most lines have no such prefix.
    if raw.find(b"[rank", 0, RANK_INSIDE_CHARS) < 0 and raw.find(b"[default", 0, RANK_INSIDE_CHARS) < 0:
        return None, None
    match = QUICK.match(raw) or SHIPPED.search(raw, 0, RANK_INSIDE_CHARS)
    if match is None:
        return None, None
    local, after_local, rank = match.groups()
    return int(local) if local else None, int(rank or after_local) if rank or after_local else None


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What stands before the text of a line: where its rank, its local rank and its node stand, and where the text begins."""

    rank: Span | None
    local: Span | None
    node: Span | None
    end: int


def read_prefixes(text: str) -> Prefixes:
    """The innermost rank stands, the outermost node."""
    found: dict[str, Span] = {}
    position = 0
    for _ in range(MAX_PREFIXES):
        match = PREFIX.match(text, position)
        if match is None or match.end() == position:
            break
        position = match.end()
        spans = match.regs
        for index, meaning in PREFIX_MEANINGS:
            if spans[index] != ABSENT and (meaning != "node" or meaning not in found):
                found[meaning] = spans[index]
    rank = found.get("rank")
    if rank is None:
        inside = RANK_INSIDE.search(text, position, position + RANK_INSIDE_CHARS)
        if inside:
            rank = next((inside.span(name) for name in ("rank", "also", "after") if inside[name]), None)
            if inside["local"] and "local" not in found:
                found["local"] = inside.span("local")
    return Prefixes(rank, found.get("local"), found.get("node"), position)


def origin_of_text(text: str) -> tuple[Origin, str]:
    """Rank and node from the prefixes of `text`, and the text that follows them. The innermost rank stands."""
    prefixes = read_prefixes(text)
    rank = int(text[slice(*prefixes.rank)]) if prefixes.rank else None
    local = int(text[slice(*prefixes.local)]) if prefixes.local else None
    node = text[slice(*prefixes.node)] if prefixes.node else None
    return Origin(rank, node, local), text[prefixes.end :]


def rank_span(line: bytes) -> Span | None:
    """Where in `line` its rank stands (the local one where only that is told): at the same place in all lines of its shape."""
    match = QUICK.match(line) if line.startswith(b"[") else None
    if match and (match.lastindex != 1 or line.find(b"ank", match.end(), MAX_PREFIX_BYTES) < 0):
        return match.span(match.lastindex or 0)
    if (
        line.find(b"ank", 0, MAX_PREFIX_BYTES) < 0
        and line.find(b"[default", 0, MAX_PREFIX_BYTES) < 0
        and not NUMBERED.match(line)
    ):
        return None
    prefixes = read_prefixes(line[:MAX_PREFIX_BYTES].decode("latin-1"))
    return prefixes.rank or prefixes.local


def is_traced_command(rest: str) -> bool:
    """Whether the text after a line's prefixes is a command that a shell echoes: what it mentions did not happen."""
    return TRACED.match(rest) is not None


def torn_parts(text: str) -> list[str]:
    """`text` cut where a second writer's rank prefix stands in the middle of it; one part where nobody tore it."""
    return TEAR.split(text) if text.find("[rank", 1) > 0 or text.find("[default", 1) > 0 else [text]
