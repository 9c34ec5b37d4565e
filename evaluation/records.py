"""Outputs and verdicts on disk: append-only NDJSON, so that what a trial wrote before it died counts, and counts once.

`RUN/outputs/DATASET/*.jsonl` hold {"sample": n, "output": ..., ...}, `RUN/verdicts/DATASET/*.jsonl` {"sample": n, "score": x,
"failed": words | null}. The first whole record of a sample stands; torn last lines, strangers and repetitions are skipped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

__all__ = ["Appender", "Records", "dataset_folder", "read_records", "records_of"]

MAX_RECORD = 16 * 1024 * 1024
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


def dataset_folder(root: Path, dataset: str) -> Path:
    """The folder of a dataset below `root`. Raises ValueError where its name cannot be one."""
    if not FOLDER_NAME.fullmatch(dataset):
        raise ValueError(f"{dataset[:80]!r} cannot name a dataset: letters, digits, '.', '_', '+', '-' only")
    return root / dataset


@dataclass(slots=True)
class Records:
    """By sample; `unreadable` lines and `repeated` records were left out."""

    by_sample: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    unreadable: int = 0
    repeated: int = 0


def lines_of(path: Path) -> Iterator[bytes]:
    """Whole lines of at most MAX_RECORD bytes; a torn last line is no line, an overlong one reads as empty."""
    with path.open("rb") as file:
        while line := file.readline(MAX_RECORD):
            if line.endswith(b"\n"):
                yield line
                continue
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_RECORD)
            if rest:
                yield b""


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects in a file's whole lines; a line that is none is an empty one."""
    for line in lines_of(path):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        yield document if isinstance(document, dict) else {}


def read_records(folder: Path, samples: int) -> Records:
    """The records of the files in `folder`, in order of their names, for samples in [0, samples)."""
    records = Records()
    if not folder.is_dir():
        return records
    for path in sorted(folder.glob("*.jsonl")):
        for document in records_of(path):
            sample = document.get("sample")
            if type(sample) is not int or not 0 <= sample < samples:
                records.unreadable += 1
            elif sample in records.by_sample:
                records.repeated += 1
            else:
                records.by_sample[sample] = document
    return records


class Appender:
    """Writes records to one file; durable at `close` and at every `sync`. A torn line of an earlier life is ended first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab")
        if self.file.tell():
            with path.open("rb") as earlier:
                earlier.seek(-1, os.SEEK_END)
                if earlier.read(1) != b"\n":
                    self.file.write(b"\n")

    def write(self, record: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n")

    def sync(self) -> None:
        """Raises OSError where the disk does not take it."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.sync()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()
