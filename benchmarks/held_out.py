"""Memory on failures that the rules do not know: each labelled case with the rules that were written for it taken away.

Memory then holds the labelled cases of all other sources and the examples of the remaining rules, as it would after some months
of settled incidents; what it is asked about has never been seen by anything that answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.embedding import MiniLM
from agents.ladder import Ladder
from agents.memory import Entry, Origin, Vote, vote
from agents.normal_form import evidence_text
from agents.recall import example_entries, example_vectors
from agents.wording import Wording
from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis, Source
from rules.findings import Findings
from rules.pack import Rule, RuleRole, load_packs
from rules.ranking import rank
from rules.scoring import wilson
from rules.taxonomy import NONE, UNKNOWN, Severity, load_taxonomy

CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "dev.jsonl"
LOGS = CORPUS.parents[1] / "logs"
NEAREST = 32
WINDOW = 20
WHAT = (
    "Each labelled failure with the rules that find its culprit lines taken away, and put to what is left of the rules, then to "
    "memory: the other labelled failures but those of its own source, and the examples of the other rules. Normal logs: normal "
    "excerpts of the corpus, and windows of 20 lines without an alert from BGL and Thunderbird."
)


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled case: its log on the service's terms, its truth, and the rules that find its culprit lines."""

    source: str
    log: tuple[str, ...]
    reason: str
    isolates: bool
    findings: Findings
    written_for: frozenset[str]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Counts over the cases whose rules were taken away. `unrelated`, `normal`: of those asked, how many memory answered."""

    failures: int
    asked: int
    answered: int
    right: int
    unrelated: tuple[int, int]
    normal: tuple[int, int]
    rules_right: int
    ladder_right: int
    ladder_lost: int
    rules_harmful: int
    ladder_harmful: int

    def lines(self) -> list[str]:
        """Rows of a Markdown table: what was measured, the figure with its 95 % interval, what was asked for."""
        gain = self.ladder_right - self.rules_right
        return [
            f"| memory where the rules abstain: right among its answers | {share(self.right, self.answered)} | 0.80 |",
            f"| of what it was asked it answers | {share(self.answered, self.asked)} | reported |",
            f"| unrelated failures (their cause is not remembered) answered | {share(*self.unrelated)} | at most 0.01 |",
            f"| normal logs, put to memory all the same, answered | {share(*self.normal)} | at most 0.01 |",
            f"| rules alone: cause named rightly | {share(self.rules_right, self.failures)} | |",
            f"| rules and memory: cause named rightly | {share(self.ladder_right, self.failures)} | never below |",
            f"| gain | {share(gain, self.failures)}, {self.ladder_lost} cases lost | |",
            f"| harmful isolations, by rules and with memory | {self.rules_harmful} and {self.ladder_harmful} | not one more |",
        ]


def share(count: int, of: int) -> str:
    interval = wilson(count, of)
    return "-" if interval is None else f"{count / of:.3f} ({count} of {of}; {interval[0]:.3f} to {interval[1]:.3f})"


def findings_of(log: Sequence[str], matcher: Any) -> Findings:
    text = "".join(line.replace("\n", " ") + "\n" for line in log)
    return scan_text(text.encode("utf-8", "surrogateescape"), matcher, time.time)


def read_cases(matcher: Any) -> list[Case]:
    roles = {rule.code: rule.role for rule in matcher.rules}
    cases = []
    for line in CORPUS.read_text().splitlines():
        case = json.loads(line)
        culprits = {index + 1 for index in case["culprit_lines"]}
        findings = findings_of(case["log"], matcher)
        written_for = {
            signal.rule for signal in findings.signals if signal.line.number in culprits and roles[signal.rule] is RuleRole.ROOT
        }
        label = case["label"]
        isolates = label["severity"] == Severity.SEV1
        source = case["source"].split("#")[0]
        cases.append(Case(source, tuple(case["log"]), label["reason"], isolates, findings, frozenset(written_for)))
    return cases


def verdict_without(case: Case, rules: Sequence[Rule]) -> Diagnosis:
    """What the rules say of a failure whose own rules do not exist yet: the service knows at least that it failed."""
    signals = tuple(signal for signal in case.findings.signals if signal.rule not in case.written_for)
    said = rank(replace(case.findings, signals=signals), rules)
    return said if said.reason != NONE else unknown_failure()


class Remembered:
    """All that could be remembered, with its vectors; each question sees what is not of its own source, reason or rules."""

    def __init__(self, cases: Sequence[Case], rules: Sequence[Rule], embedder: MiniLM) -> None:
        self.embedder = embedder
        examples = example_entries(load_packs())
        settled = [
            (case, text)
            for case in cases
            if case.reason != NONE and (text := evidence_text(rank(case.findings, rules), case.log))
        ]
        self.entries = [
            *examples,
            *(Entry(str(number), case.reason, text, Origin.INCIDENT) for number, (case, text) in enumerate(settled)),
        ]
        self.wording = Wording(entry.text for entry in self.entries)
        self.sources = [*("" for _ in examples), *(case.source for case, _ in settled)]
        self.rows: NDArray[np.float32] = np.concatenate(
            [example_vectors(examples, embedder), embedder.embed([text for _, text in settled])]
        )

    def ask(self, text: str, case: Case | None, *, unrelated: bool = False) -> Vote:
        """Memory's vote on the normal form `text`; `unrelated`: nothing of the case's own reason is remembered."""
        if not text:
            return Vote(None, 0.0, "no line that says what failed is there to look up")
        alike = self.rows @ self.embedder.embed([text])[0]
        wording = self.wording
        near = []
        for place in np.argsort(-alike):
            entry = self.entries[place]
            of_rule = entry.key.rpartition("/")[0]
            hidden = case is not None and (
                (self.sources[place] == case.source or of_rule in case.written_for) or (unrelated and entry.reason == case.reason)
            )
            if not hidden:
                near.append((entry, float(alike[place])))
            if len(near) == NEAREST:
                break
        return vote(near, 0.0, shared=lambda entry: wording.shared(text, entry.text))


def normal_logs(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Logs that mean no failure: normal excerpts of the corpus, windows of lines without an alert from BGL and Thunderbird."""
    logs = [case.log for case in cases if case.reason == NONE]
    for path in (LOGS / "BGL_2k.log", LOGS / "Thunderbird_2k.log"):
        # In both, what is no alert begins with a dash.
        lines = [line[2:] for line in path.read_text(errors="replace").splitlines() if line.startswith("- ")]
        logs += [tuple(lines[start : start + WINDOW]) for start in range(0, len(lines), WINDOW)]
    return logs


def unknown_failure() -> Diagnosis:
    """What the service knows of a failure of which no rule says anything: that it failed."""
    return Diagnosis.of(load_taxonomy()[UNKNOWN], "it ended with exit code 1", source=Source.UNKNOWN, confidence=0.3)


def measure(embedder: MiniLM) -> HeldOut:
    """Over the labelled corpus beside the project."""
    matcher = load_matcher()
    cases = read_cases(matcher)
    remembered = Remembered(cases, matcher.rules, embedder)
    failures = [case for case in cases if case.reason != NONE]
    asked = answered = right = rules_right = ladder_right = lost = rules_harmful = ladder_harmful = answered_unrelated = 0
    for case in failures:
        said = verdict_without(case, matcher.rules)
        text = evidence_text(said, case.log)
        ladder = Ladder(load_taxonomy(), lambda _said, text=text, case=case: remembered.ask(text, case), None, time.monotonic)
        after = ladder.climb(said).diagnosis
        if said.lacks_cause:
            asked += 1
            answered += after.source is Source.MEMORY
            right += after.source is Source.MEMORY and after.reason == case.reason
            answered_unrelated += remembered.ask(text, case, unrelated=True).reason is not None
        rules_right += said.reason == case.reason
        ladder_right += after.reason == case.reason
        lost += said.reason == case.reason != after.reason
        rules_harmful += said.severity is Severity.SEV1 and not case.isolates
        ladder_harmful += after.severity is Severity.SEV1 and not case.isolates
    # As logs of runs that failed; a log that the rules call normal is not put to memory at all.
    normal = [remembered.ask(evidence_text(unknown_failure(), log), None).reason for log in normal_logs(cases)]
    return HeldOut(
        len(failures),
        asked,
        answered,
        right,
        (answered_unrelated, asked),
        (len(normal) - normal.count(None), len(normal)),
        rules_right,
        ladder_right,
        lost,
        rules_harmful,
        ladder_harmful,
    )


def run() -> str:
    """A Markdown table: what memory answers, how often rightly, and what the ladder without a model makes of it."""
    title = "# Memory on failures that the rules do not know"
    if not CORPUS.exists():
        return f"{title}\n\nThe labelled corpus is not beside the project: nothing was measured."
    head = ["| measured | rate (cases; 95 % interval) | asked for |", "|---|---|---|"]
    return "\n".join([title, "", WHAT, "", *head, *measure(MiniLM()).lines()])
