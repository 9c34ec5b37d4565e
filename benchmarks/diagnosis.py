"""How well `pitstop diagnose` names causes on the labelled development cases, alone and buried in routine lines.

Reads ../shared in place. SCALE sizes the haystack (1 is 50 MB) and the routine log in which nothing may be found (1 is 1 GB);
CASES=n takes every n-th case for the haystack.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from cli.evaluate import diagnose_lines, judge, prediction_of, read_cases, report_of
from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.matcher import Matcher
from rules.ranking import rank
from rules.scoring import wilson
from rules.signal import Role
from rules.taxonomy import NONE
from tests.rules.haystack import CORPUS, buried, routine

SCALE = float(os.environ.get("SCALE", "0.1"))
EVERY = int(os.environ.get("CASES", "8"))
PIECE = 20_000_000


def run() -> str:
    matcher = load_matcher()
    return "\n".join(["# Diagnosis", "", *accuracy(matcher), "", *haystack(matcher), "", *false_alarms(matcher)])


def accuracy(matcher: Matcher) -> Iterator[str]:
    cases = list(read_cases(Path(CORPUS)))
    judged = [item for case in cases if (item := judge(case, prediction_of(case, diagnose_lines(case["log"], matcher))))]
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


def haystack(matcher: Matcher) -> Iterator[str]:
    megabytes = max(1, int(50 * SCALE))
    hay = list(routine(megabytes * 1_000_000))
    cases = list(read_cases(Path(CORPUS)))[::EVERY]
    same = located = with_roots = 0
    for case in cases:
        alone = diagnose_lines(case["log"], matcher)
        text, places = buried(list(case["log"]), hay)
        found = rank(scan_text(text.encode(), matcher, time.time), matcher.rules)
        expected = {places[item.line - 1] for item in alone.evidence if item.role is Role.ROOT and item.line}
        named = {item.line for item in found.evidence if item.role is Role.ROOT}
        same += (found.reason, found.severity) == (alone.reason, alone.severity)
        with_roots += bool(expected)
        located += bool(expected & named)
    low, high = wilson(same, len(cases)) or (0.0, 0.0)
    yield (
        f"Buried in {megabytes} MB of routine lines: the same verdict in {same} of {len(cases)} cases ({low:.3f} to {high:.3f}), "
        f"the lines found in {located} of {with_roots}."
    )


def false_alarms(matcher: Matcher) -> Iterator[str]:
    pieces = max(1, int(1000 * SCALE * 1_000_000 / PIECE))
    alarms = sizes = 0
    seconds = 0.0
    for seed in range(pieces):
        content = "".join(line + "\n" for line in routine(PIECE, seed=seed)).encode()
        sizes += len(content)
        began = time.process_time()
        alarms += rank(scan_text(content, matcher, time.time), matcher.rules).reason != NONE
        seconds += time.process_time() - began
    yield (
        f"In {sizes / 1e6:.0f} MB of routine training log, read in {pieces} pieces: {alarms} false alarms "
        f"({seconds:.0f} s of processor time)."
    )
