"""Routine logs around a failure: the shared generator's lines, with the lines of a case mixed into their end."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from detectors.reading.scan import scan_inputs, scan_text
from rules.artefact import Compiled, load_compiled
from rules.diagnosis import Diagnosis
from rules.ranking import rank
from rules.signal import Role

SHARED = Path(__file__).parents[3] / "shared"
GENERATOR = SHARED / "tools" / "training_log.py"
CORPUS = SHARED / "corpus" / "dev.jsonl"
NOW = 1_796_000_000.0
EPOCH = 1_764_324_672


@cache
def generator() -> ModuleType:
    """The shared generator as a module; the test is skipped where it is absent."""
    spec = importlib.util.spec_from_file_location("training_log", GENERATOR)
    if not GENERATOR.exists() or spec is None or spec.loader is None:
        pytest.skip(f"{GENERATOR} is not here")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[dict[str, Any]]:
    """The labelled development cases; the test is skipped where they are absent."""
    if not CORPUS.exists():
        pytest.skip(f"{CORPUS} is not here")
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines() if line]


def diagnose_file(content: str, path: Path) -> Diagnosis:
    """The diagnosis of a log file with this content, on the path that `pitstop diagnose` takes."""
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    known = compiled()
    matcher = known.matcher()
    return rank(scan_inputs([str(path)], matcher, lambda: NOW, known.shapes), matcher.rules)


def diagnose_lines(lines: list[str]) -> Diagnosis:
    """The diagnosis of a text at hand."""
    matcher = compiled().matcher()
    return rank(
        scan_text("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"), matcher, lambda: NOW), matcher.rules
    )


@cache
def compiled() -> Compiled:
    return load_compiled(say=lambda line: None)


def agrees(case: dict[str, Any], hay: list[str], path: Path) -> tuple[bool, bool]:
    """Whether a case in the haystack gets the verdict that it gets alone, and whether on its own lines."""
    alone = diagnose_lines([line.replace("\n", " ") for line in case["log"]])
    text, places = buried(case["log"], hay)
    found = diagnose_file(text, path)
    expected = {places[item.line - 1] for item in alone.evidence if item.role is Role.ROOT and item.line}
    named = {item.line for item in found.evidence if item.role is Role.ROOT}
    return (found.reason, found.severity) == (alone.reason, alone.severity), not expected or bool(expected & named)


def routine(size: int, ranks: int = 64, seed: int = 7) -> Iterator[str]:
    """Routine lines of `size` bytes in all."""
    rng, written, iteration = random.Random(seed), 0, 0
    while written < size:
        iteration += 1
        for line in generator().routine_block(rng, EPOCH + 3 * iteration, iteration, ranks):
            written += len(line) + 1
            yield line


def buried(case: list[str], hay: list[str], at: float = 0.95, seed: int = 7) -> tuple[str, dict[int, int]]:
    """The text of `hay` with the lines of `case` mixed in from the fraction `at` on, and the number of each of its lines."""
    rng, begin = random.Random(seed), int(len(hay) * at)
    waiting, out, places = list(enumerate(case)), hay[:begin], {}
    for line in hay[begin:]:
        out.append(line)
        if waiting and rng.random() < 0.3:
            index, text = waiting.pop(0)
            out.append(text.replace("\n", " "))
            places[index] = len(out)
    for index, text in waiting:
        out.append(text.replace("\n", " "))
        places[index] = len(out)
    return "".join(line + "\n" for line in out), places
