"""What an input is, told from its first bytes and never from its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from detectors.reading.foreign import foreign_format, noise
from detectors.reading.lines import journal_entry
from detectors.reading.text import strip_escapes

__all__ = ["Guess", "Kind", "guess"]

# Share of the first lines that must look like a kernel's for the whole to be a kernel log.
KERNEL_SHARE = 0.9
SAMPLE_LINES = 200

KERNEL_LINE = re.compile(
    rb"^(?:<\d{1,3}>)?(?:\w+ *:\w+ *: )?"
    rb"\[ *(?:\+?\d{1,9}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\](?: |$)"
    rb"|^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*) \S+ kernel: "
    rb"|^[\w.-]+: kern: +\w+: \["
)
# Lines of other programs may stand in a system log; on their own they are no kernel log.
SYSLOG_LINE = re.compile(
    rb"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*) \S+ [\w./-]+(?:\[\d+\])?: "
)
SLURM_RECORD = re.compile(rb"^(?:JobId=\d+[ _]|NodeName=\S+ (?:Arch|CPUs|State)|JobIDRaw?\||JobID\|)")
JSON_BEGINNING = re.compile(rb"\{|\[\s*[\[{\]]")
PICKLE = re.compile(rb"^\x80[\x02-\x05]")


class Kind(StrEnum):
    """What `inputs[].kind` of a diagnosis says."""

    LOG = "log"
    KERNEL = "kernel"
    JOURNAL = "journal"
    FLIGHT_RECORDER = "flight_recorder"
    TORCHELASTIC = "torchelastic"
    NCCL_RAS = "nccl_ras"
    SLURM = "slurm"
    ALERTS = "alerts"
    EMPTY = "empty"
    BINARY = "binary"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Guess:
    """`kind` by the first bytes; `document` where the whole must be parsed to know more; `note` says why it is not read."""

    kind: Kind
    document: bool = False
    note: str = ""


def guess(head: bytes) -> Guess:
    """Look at the first bytes (64 KiB are plenty) of an input."""
    if not head:
        return Guess(Kind.EMPTY, note="empty")
    if note := foreign_format(head):
        return Guess(Kind.BINARY, note=note)
    if PICKLE.match(head):
        return Guess(Kind.FLIGHT_RECORDER, document=True)
    if note := noise(head):
        return Guess(Kind.BINARY, note=note)
    text = strip_escapes(head).lstrip()
    if JSON_BEGINNING.match(text):
        first, newline, _ = text.partition(b"\n")
        return Guess(Kind.JOURNAL) if newline and is_journal(first) else Guess(Kind.LOG, document=True)
    if SLURM_RECORD.match(text):
        return Guess(Kind.SLURM)
    return Guess(Kind.KERNEL if is_kernel_log(text) else Kind.LOG)


def is_journal(line: bytes) -> bool:
    return b'"__REALTIME_TIMESTAMP"' in line and journal_entry(line) is not None


def is_kernel_log(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n", SAMPLE_LINES)[:SAMPLE_LINES] if line.strip()]
    kernel = sum(1 for line in lines if KERNEL_LINE.match(line))
    system = sum(1 for line in lines if SYSLOG_LINE.match(line))
    return kernel > 0 and max(kernel, system) >= KERNEL_SHARE * len(lines)
