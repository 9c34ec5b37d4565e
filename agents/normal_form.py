"""The normal form of evidence: what stays of a line when host names, numbers, addresses, ranks and paths are masked.

Two occurrences of one failure on other machines, ranks and days have the same or nearly the same normal form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import re2

from agents.telling import telling_lines, tells_of_exit
from rules.diagnosis import Diagnosis
from rules.signal import Role

__all__ = ["cause_lines", "evidence_text", "line_template", "normal_form", "normal_line"]

# Order matters: a mask may not eat what a later one needs.
MASKS: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),
    (r"^(\s*\[?(default|rank)\d+\]?:\s*)+", ""),
    (r"\(\w+ pid=\d+(, ip=[0-9.]+)?\)\s*", ""),
    (r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?\]?", "<time>"),
    (r"\b[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d( [\w.-]+)?", "<time>"),
    (r"\b[EWIF]\d{3,4} \d\d:\d\d:\d\d(\.\d+)?( +\d+)?", "<time>"),
    (r"\b\w+://[^ '\"<>]+", "<url>"),
    (r"\b(\d{1,3}\.){3}\d{1,3}(:\d+|<\d+>)?", "<address>"),
    (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{18,}\b", "<id>"),
    (r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-9a-fA-F])?\b", "<pci>"),
    (r"(~|\.{1,2})?(/[\w.+@%=-]+){2,}/?", "<path>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b[0-9a-f]{12,}\b", "<hex>"),
    (r"\b[a-zA-Z]+[\w-]*\d[\w-]*(\.[a-zA-Z][\w-]*)+\b", "<host>"),
    (r"\b(node|host|worker|gpu|rank|n|dgx|compute|cn|slurm|pod)[-_]?\d+([-_]\d+)*\b", "<host>"),
    (r"\b(mlx\d_|eth|ib|bond|hsn|eno|ens|nvme)\d+\b", "<device>"),
    (r"[-+]?\b\d+(\.\d+)*([eE][-+]?\d+)?", "<n>"),
    (r"(<n>[,x ]*){2,}", "<n>"),
    (r"\s+", " "),
)
COMPILED = tuple((re2.compile(pattern), replacement) for pattern, replacement in MASKS)
MAX_LINE = 400
# Words that vary between lines of one kind: with a digit or a mask in them, dotted names, weekdays; one or several in a row.
VARYING = re2.compile(r"(?:(?:\S*(?:[<\d]|[a-z]\.[a-z])\S*|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b|\(\))\s*)+")


def normal_line(text: str) -> str:
    """`text` with everything masked that differs between two occurrences of one failure; at most 400 characters."""
    line = text[: 4 * MAX_LINE]
    for pattern, replacement in COMPILED:
        line = pattern.sub(replacement, line)
    return line.strip()[:MAX_LINE]


def line_template(text: str) -> str:
    """The kind of line that `text` is, coarser than its normal form: `<*>` stands for whatever varies."""
    template: str = VARYING.sub("<*> ", normal_line(text))
    return template.strip()


def normal_form(lines: Iterable[str], most: int = 6) -> str:
    """The normal form of a failure: its first `most` different lines, in order."""
    kept: dict[str, None] = {}
    for text in lines:
        line = normal_line(text)
        if len(line) > 3:
            kept.setdefault(line)
        if len(kept) >= most:
            break
    return "\n".join(kept)


def evidence_text(diagnosis: Diagnosis, lines: Sequence[str] = ()) -> str:
    """The normal form of the lines that say what failed; empty where none does: exit statuses are alike whatever the cause.

    Where the diagnosis lacks a cause, the telling ones among `lines` (what the run left) stand beside its quotes: an exception
    of the program's own says little without them.
    """
    return normal_form(cause_lines(diagnosis, lines))


def cause_lines(diagnosis: Diagnosis, lines: Sequence[str] = ()) -> list[str]:
    """The lines behind `evidence_text`, as they stand."""
    roots = [item.text for item in diagnosis.evidence if item.role is Role.ROOT and not tells_of_exit(item.text)]
    return list(dict.fromkeys((*roots, *telling_lines(lines)))) if diagnosis.lacks_cause else roots
