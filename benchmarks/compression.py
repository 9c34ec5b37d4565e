"""`pitstop compress` beside ripgrep and drain3; the cost of 2,000 signal rules; start-up."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.logs import loghub_like, routine_patterns, training_log
from benchmarks.timing import Timing, machine, take_turns
from detectors.reading.sources import LineReader, find_sources
from detectors.reading.text import rank_span
from rules.compression import Compressor
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole, load_packs
from rules.shapes import shape_patterns

PITSTOP = str(Path(sys.executable).with_name("pitstop"))
TRAINING_MB = int(os.environ.get("BENCH_MB", "200"))
LOGHUB_MB = TRAINING_MB * 3 // 4
ROUNDS = 5
DRAIN_MB = 5


def run() -> str:
    subprocess.run([PITSTOP, "rules", "compile"], check=True, stdout=subprocess.DEVNULL)
    parts = [
        "# Compression",
        "",
        "Whole processes bound to one core, in turns; medians. Ratio: bytes per second of ours over theirs.",
        "",
        "| input | program | wall s | CPU s | MB/s (CPU) | ratio by wall | ratio by CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    parts += beside_ripgrep(f"training log, {TRAINING_MB} MB", training_log(TRAINING_MB))
    parts += beside_ripgrep(f"loghub-like lines, {LOGHUB_MB} MB", loghub_like(LOGHUB_MB))
    parts += ["", beside_drain(training_log(TRAINING_MB)), "", more_rules(), "", start_up(), "", f"({machine()})", ""]
    return "\n".join(parts)


def beside_ripgrep(name: str, log: Path) -> list[str]:
    patterns = routine_patterns(200)
    timings = take_turns(
        {
            "ripgrep": ["rg", "-j1", "-a", "--no-unicode", "-v", "-n", "-f", str(patterns), str(log)],
            "pitstop": [PITSTOP, "compress", str(log), "-o", os.devnull],
        },
        ROUNDS,
    )
    size = log.stat().st_size / 1e6
    peer = timings["ripgrep"]
    return [row(name, program, timing, peer, size) for program, timing in timings.items()]


def row(name: str, program: str, timing: Timing, peer: Timing, size: float) -> str:
    return (
        f"| {name} | {program} | {timing.wall:.2f} | {timing.cpu:.2f} | {size / timing.cpu:.0f} | "
        f"{peer.wall / timing.wall:.2f} | {peer.cpu / timing.cpu:.2f} |"
    )


def beside_drain(log: Path) -> str:
    """drain3 over the first megabytes of the same log, in this process; our speed is that of the whole process above."""
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ImportError:
        return "drain3 is not installed (dependency group `bench`): not measured."
    with log.open("rb") as file:
        lines = file.read(DRAIN_MB * 1_000_000).decode("utf-8", "replace").split("\n")
    miner = TemplateMiner(config=TemplateMinerConfig())
    began = time.process_time()
    for line in lines:
        miner.add_log_message(line)
    seconds = time.process_time() - began
    return f"drain3 (template mining, the usual way to shrink logs): {DRAIN_MB / seconds:.1f} MB/s of CPU time on {DRAIN_MB} MB."


def more_rules() -> str:
    """Feeding with 2,000 signal rules against 200, start-up apart."""
    routine = [rule for rule in load_packs() if rule.role is RuleRole.ROUTINE]
    log = training_log(min(TRAINING_MB, 50))
    kinds = {}
    for count in (200, 2_000):
        rules = [*routine, *signal_rules(count)]
        kinds[count] = (Matcher(rules), shape_patterns(rules))
    taken: dict[int, list[float]] = {count: [] for count in kinds}
    for _ in range(3):
        for count, (matcher, shapes) in kinds.items():
            compressor = Compressor(matcher, shapes, rank_span)
            began = time.process_time()
            with LineReader(find_sources([str(log)])[0]) as reader:
                for block in reader.chunks():
                    compressor.feed(block)
            taken[count].append(time.process_time() - began)
    few, many = (statistics.median(taken[count]) for count in kinds)
    size = log.stat().st_size / 1e6
    return f"2,000 signal rules against 200 on {size:.0f} MB: {many:.2f} s against {few:.2f} s, {many / few:.2f} times."


def signal_rules(count: int) -> list[Rule]:
    """Rules shaped like those of the packs, each with literals of its own."""
    whim = random.Random(11)

    def word() -> str:
        return "".join(whim.choice("bcdfghjklmnpqrstvwxz") + whim.choice("aeiou") for _ in range(3)).capitalize()

    shapes = (
        "{a}{b}Error: {c} failed (?:on|for) (?P<x>[a-z0-9-]+)",
        r"{a}\.cc:\d+\] .{{0,80}}{b} {c} timed out after \d+",
        r"(?:{a}|{b}) {c}: status \d+, (?:aborting|giving up)",
        r"kernel: .{{0,60}}{a}-{b} {c} (?:fault|reset) code [0-9a-f]{{2,8}}",
        "(?i){a} {b} {c} (?:not found|unreachable)",
    )
    rules: list[Rule] = []
    for number in range(count):
        pattern = whim.choice(shapes).format(a=word(), b=word(), c=word().lower())
        rules.append(Rule(code=f"B-{number}", title="", pack="bench", role=RuleRole.CONTEXT, reason=None, any=(pattern,)))
    return rules


def start_up() -> str:
    empty = training_log(TRAINING_MB).with_name("empty")
    empty.touch()
    commands = {"pitstop --help": [PITSTOP, "--help"], "pitstop compress EMPTY": [PITSTOP, "compress", str(empty), "--json"]}
    timings = take_turns(commands, ROUNDS)
    return (
        "Start-up: "
        + ", ".join(f"`{name}` {timing.wall:.2f} s ({timing.cpu:.2f} s CPU)" for name, timing in timings.items())
        + "."
    )
