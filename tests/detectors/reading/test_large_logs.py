"""Large logs: the fast way finds what the thorough one finds, in bounded memory, in one process or several."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from detectors.reading import log_scan, parallel
from detectors.reading.lines import LineMaker
from detectors.reading.log_scan import LogFindings, LogScan
from detectors.reading.scan import scan_inputs
from detectors.reading.sources import LineReader, text_source
from detectors.reading.timestamps import Stamps
from rules.artefact import Compiled, load_compiled
from rules.matcher import Matcher
from rules.pack import load_packs
from rules.shapes import ShapePatterns, shape_patterns

SHARED = Path(__file__).parents[4] / "shared"
NOW = 1_796_000_000.0
PACKS = ("life", "python", "torchrun", "xid", "routine_megatron", "nccl")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(tuple(rule for rule in load_packs() if rule.pack in PACKS))


@pytest.fixture(scope="module")
def shapes(matcher: Matcher) -> ShapePatterns:
    return shape_patterns(matcher.rules)


def routine(iteration: int, rank: int) -> str:
    second = f"{iteration // 60 % 60:02d}:{iteration % 60:02d}"
    return (
        f"[default{rank}]: [2026-11-28 10:{second}.123456] iteration {iteration:8d}/  500000 | "
        f"consumed samples: {iteration:12d} | elapsed time per iteration (ms): 3123.4 | "
        f"learning rate: 1.400000E-04 | global batch size:  1024 | "
        f"lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 0.123 |"
    )


FAILURE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/work/train.py", line 9, in step
[rank3]:     loss = table[key]
[rank3]: KeyError: 'height'
Nov 28 10:20:00 gpu-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.
"""


def log_with_failure(iterations: int, at: int, ranks: int = 8, silent: int = 5) -> str:
    lines = []
    for iteration in range(iterations):
        lines += [routine(iteration, rank) for rank in range(ranks) if rank != silent or iteration < at // 2]
        if iteration == at:
            lines += FAILURE.splitlines()
    return "\n".join(lines) + "\n"


def scan(matcher: Matcher, shapes: ShapePatterns | None, text: str) -> LogFindings:
    with LineReader(text_source(text.encode()), 16_384) as reader:
        return LogScan(matcher, LineMaker("-", Stamps(lambda: NOW)), shapes).run(reader)


def signs(found: LogFindings, matcher: Matcher) -> set[tuple[str, int, int | None, int]]:
    return {
        (matcher.rules[entry.rule].code, entry.first.number, entry.first.rank, entry.count)
        for entry in (*found.entries, *found.deferred)
        if matcher.rules[entry.rule].marks != "progress"
    }


@pytest.mark.parametrize("at", [0, 250, 499])
def test_the_fast_way_finds_what_the_thorough_one_finds(
    matcher: Matcher, shapes: ShapePatterns, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    text = log_with_failure(500, at)
    thorough = scan(matcher, None, text)
    monkeypatch.setattr(log_scan, "DENSE_BYTES", 0)
    fast = scan(matcher, shapes, text)
    assert signs(fast, matcher) == signs(thorough, matcher) != set()
    assert fast.kept == thorough.kept
    assert [line.text for line in fast.last_lines] == [line.text for line in thorough.last_lines]
    last = {rank: span.last_line and span.last_line.number for rank, span in thorough.spans.items()}
    assert {rank: span.last_line and span.last_line.number for rank, span in fast.spans.items()} == last


# Lines that only speak for or against a rule which looks at its surroundings, beside those that such rules look for.
CONDITIONAL = (
    '2025-11-28 11:31:{second:02d} DEBUG urllib3.connectionpool: https://tracker.example:443 "POST /runs/{n} HTTP/1.1" 200 None',
    "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:{n}: UserWarning: the use_reentrant parameter",
    "[default{rank}]: saving checkpoint at iteration {n:7d} to /checkpoints/run in torch_dist format",
    "[default{rank}]:[rank{rank}]: retrying https://mirror.example/{n}",
)
DECIDED = (
    "[rank{rank}]: socket.gaierror: [Errno -2] Name or service not known",
    "socket.gaierror: [Errno -2] Name or service not known",
    "[rank{rank}]: EOFError: Ran out of input",
)


@pytest.fixture(scope="module")
def shipped() -> Compiled:
    return load_compiled(say=lambda line: None)


@pytest.mark.parametrize("seed", range(8))
def test_conditions_weigh_the_same_where_they_are_counted_by_shape(
    shipped: Compiled, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    whim = random.Random(seed)
    lines = []
    for iteration in range(150):
        lines += [routine(iteration, rank) for rank in range(4)]
        kinds = CONDITIONAL * 3 + (DECIDED if iteration > 80 and whim.random() < 0.1 else ())
        for kind in whim.sample(kinds, whim.choice([0, 1, 3])):
            lines.append(kind.format(n=whim.randrange(900), second=whim.randrange(60), rank=whim.randrange(4)))
    text = "\n".join(lines) + "\n"
    matcher = shipped.matcher()
    thorough = scan(matcher, None, text)
    monkeypatch.setattr(log_scan, "DENSE_BYTES", 0)
    fast = scan(matcher, shipped.shapes, text)
    assert signs(fast, matcher) == signs(thorough, matcher)
    assert (fast.kept, fast.present) == (thorough.kept, thorough.present)


def test_the_step_before_and_after_a_failure_is_known_in_a_large_log(
    matcher: Matcher, shapes: ShapePatterns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "DENSE_BYTES", 0)
    found = scan(matcher, shapes, log_with_failure(400, 200))
    failure = next(entry.first for entry in found.entries if "KeyError" in entry.first.text)
    steps = [entry.first for entry in found.entries if matcher.rules[entry.rule].marks == "progress" and entry.first.rank == 3]
    before = max((line for line in steps if line.number < failure.number), key=lambda line: line.number)
    assert "iteration      200/" in before.text
    assert any(line.number > failure.number for line in steps)


def test_many_files_are_read_by_several_processes_with_the_same_findings(
    matcher: Matcher, shapes: ShapePatterns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(4):
        (tmp_path / f"rank_{number}.log").write_text(log_with_failure(20 * number + 5, 3))
    alone = scan_inputs([str(tmp_path)], matcher, lambda: NOW, shapes)
    monkeypatch.setattr(parallel, "MIN_PARALLEL_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert scan_inputs([str(tmp_path)], matcher, lambda: NOW, shapes) == alone


@pytest.mark.skipif(not (SHARED / "logs").is_dir(), reason="../shared is absent")
def test_other_peoples_logs_are_read_to_their_end(matcher: Matcher, shapes: ShapePatterns) -> None:
    for path in sorted((SHARED / "logs").glob("*.log")):
        findings = scan_inputs([str(path)], matcher, lambda: NOW, shapes)
        assert findings.lines == path.read_bytes().count(b"\n") + (not path.read_bytes().endswith(b"\n"))


MEASURE = """
import json, pathlib, re, sys, time
sys.path.insert(0, sys.argv[1])
from detectors.reading.scan import scan_inputs
from rules.artefact import load_compiled
compiled = load_compiled(say=lambda line: None)
findings = scan_inputs([sys.argv[2]], compiled.matcher(), time.time, compiled.shapes)
# VmHWM is this program's own; ru_maxrss would count what the test's process held when it forked.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
roots = sorted({signal.rule for signal in findings.signals if signal.role == "root"})
print(json.dumps({"peak": peak, "lines": findings.lines, "rules": roots}))
"""


@pytest.mark.soak
def test_a_gigabyte_is_diagnosed_in_under_400_megabytes(tmp_path: Path) -> None:
    target = int(float(os.environ.get("SCALE", "1")) * 1e9)
    path = tmp_path / "train.log"
    part = (
        log_with_failure(3_000, 100_000) + "".join(f"odd {n:x} line of nobody's making {n * n}\n" for n in range(3_000))
    ).encode()
    lines = 0
    with path.open("wb") as file:
        while file.tell() < target:
            file.write(part)
            lines += part.count(b"\n")
        file.write(FAILURE.encode())
        lines += FAILURE.count("\n")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(Path(__file__).parents[3]), str(path)],
        capture_output=True,
        timeout=1500,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["lines"] == lines
    assert {"PS-PY-020"} <= set(result["rules"])
    assert result["peak"] < 400e6
