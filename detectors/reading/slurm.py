"""Slurm's records of jobs and nodes as lines: `scontrol show job|node`, jobcomp/filetxt, and `sacct -P` tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from detectors.reading.timestamps import Stamps
from rules.signal import Line, Trust

__all__ = ["job_of_path", "of_jobs", "record_lines"]

FIELD = re.compile(r"(?P<name>[A-Z][A-Za-z0-9_/:]{1,30})=(?P<value>.*)")
# In this order, so that rules find state and reason beside each other.
SHOWN = (
    *("JobId", "JobName", "Name", "NodeName", "State", "JobState", "Reason", "ExitCode", "DerivedExitCode"),
    *("NodeList", "BatchHost", "EndTime"),
)
PATH_JOB = re.compile(r"(?:slurm|job)[-.](?P<job>\d{1,9})(?=[._-])")
RECORD_JOB = re.compile(r"(?:JobId=)?(?P<job>\d+)")
ONE_NODE = re.compile(r"[A-Za-z0-9][\w.-]*")


def job_of_path(path: str) -> str | None:
    """The job id in an output file's name: slurm-123.out, job.123.n4.out."""
    match = PATH_JOB.search(path)
    return match["job"] if match else None


def of_jobs(lines: Sequence[Line], jobs: frozenset[str]) -> tuple[Line, ...]:
    """Without the records of other jobs than `jobs`; all where no job is known."""
    if not jobs:
        return tuple(lines)
    found = ((line, RECORD_JOB.match(line.text)) for line in lines)
    return tuple(line for line, match in found if match is None or match["job"] in jobs)


def record_lines(text: str, path: str, stamps: Stamps) -> tuple[Line, ...]:
    """Every record as one line, under the number of its first line; of the tables of `sacct`, each row."""
    if text.startswith(("JobID|", "JobIDRaw|")):
        return tuple(table_lines(text, path, stamps))
    lines = []
    for number, record in records(text):
        fields = fields_of(record)
        shown = " ".join(f"{name}={fields[name]}" for name in SHOWN if fields.get(name))
        nodes = fields.get("NodeName") or fields.get("NodeList") or ""
        node = nodes if ONE_NODE.fullmatch(nodes) else None
        lines.append(Line(shown, number, path, None, node, stamps.read(fields.get("EndTime", "")), Trust.NODE))
    return tuple(lines)


def fields_of(record: str) -> dict[str, str]:
    """The fields of a record; a value may hold blanks."""
    fields: dict[str, str] = {}
    name = None
    for word in record.split():
        match = FIELD.match(word)
        if match:
            name = match["name"] if match["name"] not in fields else None
            if name:
                fields[name] = match["value"]
        elif name:
            fields[name] += f" {word}"
    return fields


def records(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text in one line) of each record; a record begins with JobId= or NodeName= at a line's start."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(("JobId=", "NodeName=")):
            if parts:
                yield begun, " ".join(parts)
            begun, parts = number, []
        if begun and line.strip():
            parts.append(line.strip())
    if parts:
        yield begun, " ".join(parts)


def table_lines(text: str, path: str, stamps: Stamps) -> Iterator[Line]:
    header, *rows = text.split("\n")
    names = header.split("|")
    for number, row in enumerate(rows, 2):
        values = dict(zip(names, row.split("|"), strict=False))
        if row.strip():
            nodes = values.get("NodeList", "")
            node = nodes if ONE_NODE.fullmatch(nodes) else None
            yield Line(row, number, path, None, node, stamps.read(values.get("End", "")), Trust.NODE)
