"""`pitstop diagnose` beside `pitstop compress`, ripgrep and drain3 on a large log; templates; one fault repeated; many files."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from agents.normal_form import line_template
from benchmarks.compression import beside_drain
from benchmarks.logs import SCRATCH, SHARED, routine_patterns, training_log
from benchmarks.timing import machine, take_turns

PITSTOP = str(Path(sys.executable).with_name("pitstop"))
LARGE_MB = int(os.environ.get("BENCH_LARGE_MB", "1000"))
PART_MB = 200
STORM_LINES = 200_000
FILES, FILE_MB = 4, 50
ROUNDS = 2


def run() -> str:
    subprocess.run([PITSTOP, "rules", "compile"], check=True, stdout=subprocess.DEVNULL)
    parts = ["# Reading", "", *beside_compress(), "", beside_drain(training_log(PART_MB)), "", *templates(), "", storm(), ""]
    parts += [many_files(), "", f"({machine()})", ""]
    return "\n".join(parts)


def large_log() -> Path:
    """The training log with a buried failure, after as many copies of its routine part as make LARGE_MB."""
    whole = training_log(PART_MB)
    path = SCRATCH / f"large-{LARGE_MB}.log"
    if not path.exists():
        partial = path.with_suffix(".part")
        with partial.open("wb") as file, whole.open("rb") as source:
            routine = whole.stat().st_size * 9 // 10
            while file.tell() < (LARGE_MB - PART_MB) * 1_000_000:
                source.seek(0)
                file.write(source.read(routine).rpartition(b"\n")[0] + b"\n")
            source.seek(0)
            shutil.copyfileobj(source, file)
        partial.rename(path)
    return path


def beside_compress() -> list[str]:
    log = large_log()
    patterns = str(routine_patterns(200))
    timings = take_turns(
        {
            "ripgrep": ["rg", "-j1", "-a", "--no-unicode", "-v", "-n", "-f", patterns, str(log)],
            "compress": [PITSTOP, "compress", str(log), "-o", os.devnull],
            "diagnose": [PITSTOP, "diagnose", "--json", str(log)],
        },
        ROUNDS,
    )
    peer = timings["compress"]
    size = log.stat().st_size / 1e6
    printed = subprocess.run([PITSTOP, "diagnose", "--json", str(log)], capture_output=True, check=True).stdout
    rows = [
        f"| {name} | {timing.wall:.1f} | {timing.cpu:.1f} | {size / timing.cpu:.0f} | {timing.cpu / peer.cpu:.2f} "
        f"| {timing.wall / peer.wall:.2f} | {timing.peak_bytes / 1e6:.0f} |"
        for name, timing in timings.items()
    ]
    return [
        f"A training log of {size:.0f} MB with one failure near its end; the diagnosis was {json.loads(printed)['reason']}.",
        f"Whole processes bound to one core, in turns, medians of {ROUNDS}; ripgrep drops what 200 routine patterns match.",
        "",
        "| command | wall s | CPU s | MB/s (CPU) | CPU over compress | wall over compress | peak MB |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def templates() -> list[str]:
    """Lines grouped into templates beside drain3, by loghub's structured files (grouping accuracy: Zhu et al., ICSE 2019)."""
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ImportError:
        return ["drain3 is not installed (dependency group `bench`): templates are not measured beside it."]
    rows = []
    for path in sorted((SHARED / "logs").glob("*.csv")):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            lines = [(row["Content"], row["EventId"]) for row in csv.DictReader(file)]
        events = [event for _, event in lines]
        began = time.process_time()
        ours = [line_template(text) for text, _ in lines]
        between = time.process_time()
        miner = TemplateMiner(config=TemplateMinerConfig())
        theirs = [str(miner.add_log_message(text)["cluster_id"]) for text, _ in lines]
        speed = (time.process_time() - between) / (between - began)
        rows.append(
            f"| {path.name.partition('_')[0]} | {grouping_accuracy(ours, events):.3f} | {grouping_accuracy(theirs, events):.3f} "
            f"| {speed:.2f} |"
        )
    return [
        "Templates of lines (agents/normal_form.py), 2,000 lines each; drain3 with its defaults. What counts as varying in",
        "ours was chosen with these logs in sight.",
        "",
        "| log | grouping accuracy | drain3 | lines a second over drain3's |",
        "|---|---|---|---|",
        *rows,
    ]


def grouping_accuracy(found: list[str], expected: list[str]) -> float:
    """The share of lines whose group holds just the lines of their event."""
    groups: dict[str, set[int]] = defaultdict(set)
    events: dict[str, set[int]] = defaultdict(set)
    for index, (group, event) in enumerate(zip(found, expected, strict=True)):
        groups[group].add(index)
        events[event].add(index)
    return sum(groups[group] == events[event] for group, event in zip(found, expected, strict=True)) / len(found)


def storm() -> str:
    path = SCRATCH / "storm.log"
    with path.open("w") as file:
        for number in range(STORM_LINES):
            fault = f"NVRM: Xid (PCI:0000:b3:00): 79, pid={number % 30_000}, name=python3, GPU has fallen off the bus."
            file.write(f"[{1000 + number / 1000:.6f}] {fault}\n")
    timing = take_turns({"diagnose": [PITSTOP, "diagnose", "--json", str(path)]}, ROUNDS)["diagnose"]
    return (
        f"{STORM_LINES} lines of one Xid from one node: {timing.cpu:.1f} s of CPU "
        f"({timing.cpu / STORM_LINES * 1e6:.0f} us a line), {timing.peak_bytes / 1e6:.0f} MB."
    )


def many_files() -> str:
    folder = SCRATCH / "files"
    folder.mkdir(exist_ok=True)
    source = training_log(FILE_MB).read_bytes()
    for number in range(FILES):
        (folder / f"part_{number}.log").write_bytes(source)

    def seconds(cores: set[int]) -> float:
        began = time.perf_counter()
        subprocess.run(
            [PITSTOP, "diagnose", "--json", str(folder)],
            stdout=subprocess.DEVNULL,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        return time.perf_counter() - began

    all_cores = os.sched_getaffinity(0)
    one, every = seconds({min(all_cores)}), seconds(all_cores)
    gain = f"{every:.1f} s on {len(all_cores)} ({one / every:.2f} times as fast)"
    return f"{FILES} files of {FILE_MB} MB: {one:.1f} s on one core, {gain}."
