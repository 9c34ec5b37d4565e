"""A month of incidents drawn like Acme's table: which of them need a person to find the cause, and which are named wrongly.

Known kinds are cases of the labelled corpus beside the project, on other hosts and with other numbers. Every fourth failure is
of a kind that no rule knows (24.96 % of causes are new: RCACopilot, EuroSys 2024); a few of those come again and again. A person
looks at what neither rule nor memory names, and says what it was: memory and learnt rules have it from then on.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.embedding import MiniLM
from agents.line_pattern import line_pattern
from agents.memory import Entry, Feedback, Origin
from agents.memory_index import MemoryIndex
from agents.normal_form import evidence_text
from agents.recall import MemoryRecall
from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.gate import Candidate, SettledIncident, inspect
from rules.learnt import name_cause
from rules.matcher import Clause, Matcher
from rules.pack import Rule, RuleRole
from rules.ranking import rank
from rules.signal import Line
from rules.taxonomy import TAXONOMY_FILE

CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "dev.jsonl"
# How often each class failed within six months (Acme, NSDI 2024, table 3).
ACME = {
    "NVLinkError": 54, "CUDAError": 21, "NodeFailure": 16, "ECCError": 12, "NetworkError": 12, "ConnectionError": 147,
    "S3StorageError": 10, "NCCLTimeoutError": 6, "NCCLRemoteError": 3, "DataloaderKilled": 6, "AttributeError": 67,
    "OutOfMemoryError": 14, "RuntimeError": 65, "AssertionError": 105, "ValueError": 33, "ZeroDivisionError": 5,
    "ModelLoadingError": 104, "DatasetLoadingError": 5, "FileNotFoundError": 568, "OSError": 266, "TypeError": 620,
    "NameError": 18, "PermissionError": 7, "ImportError": 111, "KeyError": 260, "SyntaxError": 10, "ArgumentError": 3,
    "CalledProcessError": 4, "IndexError": 23,
}  # fmt: skip
MONTHS, NEW_SHARE, NEW_KINDS = 6, 0.25, 24
PARTS = (("ringmesh", "shardmap", "tokenring", "spoolcast", "latchd", "meshcore"), ("lane", "window", "segment", "slot"),
         ("lost its phase lock", "gave up its lease", "was found out of step", "refused the handover"))  # fmt: skip
AGREEING = 3


def mutated(line: str, rng: random.Random) -> str:
    """`line` as it would stand in the log of another run on other machines."""
    line = re.sub(r"(?<![A-Za-z_.(])\d{2,}", lambda match: str(rng.randrange(10 ** len(match.group(0)))), line)
    return re.sub(r"\b(node|worker|gpu|host|cn)-?\d+\b", lambda _match: f"dgx{rng.randrange(999)}", line)


def unknown_log(kind: int, rng: random.Random) -> list[str]:
    """A failure of a kind that no rule knows."""
    who, what, how = (part[kind // step % len(part)] for part, step in zip(PARTS, (1, 6, 24), strict=True))
    how = PARTS[2][(kind * 7 + kind // 6) % len(PARTS[2])]
    told = f"dgx{rng.randrange(999)}: {who} {what} {rng.randrange(99)} {how} after {rng.randrange(9999)} ms"
    return ["run begins", told, f"[rank{rng.randrange(64)}]: RuntimeError: {who} stopped"]


def draw(rng: random.Random) -> list[tuple[str, list[str]]]:
    """The month's incidents, in order: (true cause, log)."""
    reasons = {entry["name"]: entry["acme_class"] for entry in yaml.safe_load(TAXONOMY_FILE.read_text())["reasons"]}
    cases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in CORPUS.read_text().splitlines():
        case = json.loads(line)
        if case["label"]["reason"] in reasons:
            cases[reasons[case["label"]["reason"]]].append(case)
    classes = [name for name in ACME if cases[name]]
    count = round(sum(ACME.values()) / MONTHS)
    month = []
    for _ in range(count):
        if rng.random() < NEW_SHARE:
            kind = min(int(rng.paretovariate(1.0)) - 1, NEW_KINDS - 1)
            month.append((f"new:{kind}", unknown_log(kind, rng)))
        else:
            case = rng.choice(cases[rng.choices(classes, [ACME[name] for name in classes])[0]])
            month.append((case["label"]["reason"], [mutated(text.replace("\n", " "), rng) for text in case["log"]]))
    return month


class Desk:
    """What is known as the month goes on: memory, and learnt rules with the hits that agreed."""

    def __init__(self, causes: list[str]) -> None:
        self.matcher, self.embedder = load_matcher(), MiniLM()
        # A cause that no taxonomy has yet stands under a reason of its own; any will do, as long as they differ.
        names = sorted(name for name in load_reasons() if name not in {cause for cause in causes if not cause.startswith("new:")})
        self.names = dict(zip(sorted({cause for cause in causes if cause.startswith("new:")}), names, strict=False))
        self.entries: list[Entry] = []
        self.rows: list[Any] = []
        self.learnt: list[Rule] = []
        self.agreed: Counter[str] = Counter()
        self.settled: list[SettledIncident] = []

    def verdict(self, log: list[str]) -> tuple[str | None, str, Diagnosis]:
        """(cause or None, who named it, the verdict of the rules)."""
        diagnosis = rank(scan_text(("\n".join(log) + "\n").encode(), self.matcher, time.time), self.matcher.rules)
        if not diagnosis.lacks_cause:
            return diagnosis.reason, "rule", diagnosis
        active = [rule for rule in self.learnt if self.agreed[rule.code] >= AGREEING]
        named = name_cause(diagnosis, self.found(active, log))
        if not named.lacks_cause:
            return named.reason, "learnt rule", diagnosis
        text = evidence_text(diagnosis, log)
        if not text or not self.entries:
            return None, "nobody", diagnosis
        said = MemoryRecall(self.embedder, MemoryIndex(self.entries, np.stack(self.rows)), lambda: 0.0)(diagnosis, log)
        return said.reason, "memory" if said.reason else "nobody", diagnosis

    @staticmethod
    def found(rules: list[Rule], log: list[str]) -> list[tuple[Rule, Line]]:
        matcher = Matcher(rules)
        block = "".join(line + "\n" for line in log).encode()
        return [
            (matcher.rules[hit.rule], Line(log[hit.line], hit.line + 1))
            for hit in matcher.scan(block)
            if hit.clause is Clause.ANY
        ]

    def confirm(self, number: int, cause: str, log: list[str], diagnosis: Diagnosis) -> None:
        """What a person who looked at it says goes into memory, and through the gate into a rule."""
        text = evidence_text(diagnosis, log)
        if text:
            self.entries.append(Entry(str(number), cause, text, Origin.INCIDENT, feedback=Feedback.CONFIRMED))
            self.rows.append(self.embedder.embed([text])[0])
        self.settled.append(SettledIncident(str(number), cause, tuple(log)))
        hits = {rule.code for rule, _ in self.found(self.learnt, log)}
        self.agreed.update(rule.code for rule in self.learnt if rule.code in hits and rule.reason == cause)
        pattern = line_pattern(log[1]) if len(log) > 1 else None
        if pattern and not any(rule.any == (pattern,) for rule in self.learnt):
            rule = Rule(f"PS-LEARNT-{number:04d}", cause, "learnt", RuleRole.ROOT, cause, (pattern,))
            if inspect(Candidate(rule, (log[1],)), self.matcher, (), self.settled).passes:
                self.learnt.append(rule)


def load_reasons() -> list[str]:
    return [entry["name"] for entry in yaml.safe_load(TAXONOMY_FILE.read_text())["reasons"]]


def run() -> str:
    """A Markdown table: who named the cause, how often wrongly, and how many incidents a person had to look at."""
    if not CORPUS.exists():
        return "# A month replayed\n\nThe labelled corpus is not beside the project: nothing was measured."
    month = draw(random.Random(2024))
    desk = Desk([cause for cause, _ in month])
    named: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for number, (cause, log) in enumerate(month, 1):
        truth = desk.names.get(cause, cause)
        said, who, diagnosis = desk.verdict(log)
        named[who] += 1
        wrong[who] += said is not None and said != truth
        # A verdict that a person has to correct costs a look too; what memory names right is confirmed in passing half the time.
        if said is None or said != truth or (who == "memory" and number % 2):
            desk.confirm(number, truth, log, diagnosis)
    total, looks = len(month), named["nobody"]
    errors = sum(wrong.values())
    new = sum(cause.startswith("new:") for cause, _ in month)
    rows = [
        f"| {who} | {named[who]} | {named[who] / total:.1%} | {wrong[who]} |"
        for who in ("rule", "learnt rule", "memory", "nobody")
    ]
    return "\n".join(
        [
            "# A month replayed",
            "",
            f"{total} incidents drawn like Acme's table, {new} of them ({len(desk.names)} kinds) of causes that no rule knows.",
            "Without memory and learning a person looks at all of those.",
            "",
            "| the cause is named by | incidents | share | wrong |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            f"No person had to find the cause of {(total - looks) / total:.1%} ({(total - looks - errors) / total:.1%} rightly),",
            f"of the unknown kinds {1 - looks / new if new else 0:.1%}; {errors} verdicts were wrong.",
            "The known kinds are cases that the rules were written against: the share of rules says how often they speak.",
        ]
    )
