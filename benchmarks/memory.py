"""What memory adds to a diagnosis: embedding the evidence and searching, beside matching alone in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agents.embedding import DIMENSIONS, MiniLM
from agents.memory import Entry, Origin
from agents.memory_index import MemoryIndex
from agents.recall import example_entries
from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.pack import load_packs
from rules.ranking import rank

SIZES = (10_000, 100_000)
TEXTS, QUERIES, EVERY = 200, 1_000, 5


def percentiles(seconds: Sequence[float]) -> str:
    low, high, top = np.percentile(np.array(seconds) * 1000, [50, 95, 99])
    return f"{low:.2f} | {high:.2f} | {top:.2f}"


def timed(work: Callable[[], object]) -> float:
    """Processor time of this thread: everything measured here runs in one, and neighbours on the machine do not count."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def near(rows: NDArray[np.float32], count: int, rng: np.random.Generator, spread: float) -> NDArray[np.float32]:
    """`count` unit vectors scattered around real ones, as recurrences of real failures are."""
    chosen = rows[rng.integers(0, len(rows), count)]
    moved = chosen + rng.normal(0.0, spread / np.sqrt(DIMENSIONS), chosen.shape)
    unit: NDArray[np.float32] = (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
    return unit


def run() -> str:
    """A Markdown table of milliseconds of processor time, and how often the index finds the true nearest entry."""
    rng = np.random.default_rng(7)
    embedder, matcher = MiniLM(), load_matcher()
    rules = load_packs()
    entries = example_entries(rules)[::EVERY]
    rows = embedder.embed([entry.text for entry in entries])
    logs = [text for rule in rules for text in rule.examples.match]
    picked = [logs[index] for index in rng.integers(0, len(logs), TEXTS)]
    # Texts that no cache has seen: one more word each.
    fresh = [f"{entries[index].text} {number}" for number, index in enumerate(rng.integers(0, len(entries), TEXTS))]
    for text in fresh[:20]:
        embedder.embed([text + " warm"])

    def diagnose(text: str) -> None:
        rank(scan_text(text.encode(), matcher, time.time), matcher.rules)

    match = [timed(partial(diagnose, text)) for text in picked]
    embed = [timed(partial(embedder.embed, [text])) for text in fresh]
    again = [timed(partial(embedder.embed, [text])) for text in fresh]
    lines = [
        "| | p50 ms | p95 ms | p99 ms |",
        "|---|---:|---:|---:|",
        f"| matching and ranking alone | {percentiles(match)} |",
        f"| embedding one failure's evidence, warm | {percentiles(embed)} |",
        f"| the same evidence again | {percentiles(again)} |",
    ]
    notes = []
    for size in SIZES:
        held = near(rows, size, rng, 0.5)
        queries = near(rows, QUERIES, rng, 0.5)
        known = [Entry(str(number), "nan_loss", "", Origin.INCIDENT) for number in range(size)]
        began = time.perf_counter()
        index = MemoryIndex(known, held)
        built = time.perf_counter() - began
        for query in queries[:50]:
            index.search(query)
        search = [timed(partial(index.search, query)) for query in queries]
        nearest = (held @ queries.T).argmax(axis=0)
        found = sum(index.search(query)[0][0].key == str(best) for query, best in zip(queries, nearest, strict=True))
        lines.append(f"| searching {size:,} vectors | {percentiles(search)} |")
        notes.append(f"{size:,} vectors: built in {built:.1f} s, the nearest entry found in {found / QUERIES:.1%} of queries")
    return "\n".join(["# Memory", "", "Processor time of one thread, milliseconds.", "", *lines, "", *notes])
