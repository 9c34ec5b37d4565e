"""How well `pitstop diagnose` names causes on the labelled development cases, alone and buried in routine lines.

Reads ../shared in place. SCALE sizes the haystack (1 is 50 MB) and the routine log in which nothing may be found (1 is 1 GB);
CASES=n takes every n-th case for the haystack.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cli.evaluate import diagnose_lines as diagnose_case
from cli.evaluate import judge, prediction_of, read_cases, report_of
from rules.artefact import load_matcher
from rules.scoring import wilson
from rules.taxonomy import NONE
from tests.rules.haystack import CORPUS, agrees, cases, diagnose_file, routine

SCALE = float(os.environ.get("SCALE", "0.1"))
EVERY = int(os.environ.get("CASES", "8"))
PIECE = 20_000_000


def run() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return "\n".join(["# Diagnosis", "", *accuracy(), "", *haystack(folder), "", *false_alarms(folder)])


def accuracy() -> Iterator[str]:
    matcher = load_matcher()
    corpus = list(read_cases(Path(CORPUS)))
    judged = [item for case in corpus if (item := judge(case, prediction_of(case, diagnose_case(case["log"], matcher))))]
    report = report_of(judged)
    yield f"{len(judged)} labelled development cases. The rules were written beside them: a held-out set decides."
    yield ""
    yield "| measure | rate | cases | 95 % interval (Wilson) |"
    yield "|---|---|---|---|"
    for name, item in report["measures"].items():
        low, high = item["interval_95"]
        yield f"| {name.replace('_', ' ')} | {item['rate']:.3f} | {item['count']} of {item['of']} | {low:.3f} to {high:.3f} |"
    yield f"| root line precision (mean) | {report['root_line_precision']:.3f} | | |"
    yield ""
    yield "Over 200 random halves of the sources (2.5 %, median, 97.5 %): " + "; ".join(
        f"{name} {spread['low']:.3f}, {spread['median']:.3f}, {spread['high']:.3f}"
        for name, spread in report["random_halves"].items()
    )


def haystack(folder: Path) -> Iterator[str]:
    megabytes = max(1, int(50 * SCALE))
    hay = list(routine(megabytes * 1_000_000))
    chosen = cases()[::EVERY]
    found = [agrees(case, hay, folder / "hay.log") for case in chosen]
    same, located = sum(verdict for verdict, _ in found), sum(lines for _, lines in found)
    low, high = wilson(same, len(chosen)) or (0.0, 0.0)
    yield (
        f"Buried in {megabytes} MB of routine lines: the same verdict in {same} of {len(chosen)} cases "
        f"({low:.3f} to {high:.3f}), on the same lines in {located}."
    )


def false_alarms(folder: Path) -> Iterator[str]:
    pieces = max(1, int(1000 * SCALE * 1_000_000 / PIECE))
    alarms, seconds = 0, 0.0
    for seed in range(pieces):
        content = "".join(line + "\n" for line in routine(PIECE, seed=seed))
        began = time.process_time()
        alarms += diagnose_file(content, folder / "train.log").reason != NONE
        seconds += time.process_time() - began
    yield (
        f"In {pieces * PIECE / 1e6:.0f} MB of routine training log, in {pieces} files: {alarms} false alarms "
        f"({seconds:.0f} s of processor time)."
    )
