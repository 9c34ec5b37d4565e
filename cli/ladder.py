"""The ladder as `pitstop evaluate` builds it: memory from the rules' own examples, the model that PITSTOP_LLM_* names."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.main import UsageError
from rules.diagnosis import Diagnosis
from rules.pack import Rule, load_packs
from rules.taxonomy import load_taxonomy

if TYPE_CHECKING:
    from agents.failure_agent import Opinion
    from agents.ladder import LadderResult
    from agents.model import ModelClient
    from agents.recall import MemoryRecall

__all__ = ["LadderChoice", "RungTally", "build_ladder"]

# What the ladder is given of a case: its diagnosis by rules, its lines, its name.
Climb = Callable[[Diagnosis, Sequence[str], str], "LadderResult"]


class LadderChoice(StrEnum):
    """Which rungs may speak after the rules."""

    RULE = "rule"
    MEMORY = "memory"
    LLM = "llm"
    ALL = "all"


@dataclass(slots=True)
class Tally:
    asked: int = 0
    answered: int = 0
    right: int = 0
    wrong: int = 0
    seconds: float = 0.0
    tokens: int = 0
    abstained: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class RungTally:
    """How often each rung was asked and answered, and how often rightly."""

    rungs: dict[str, Tally] = field(default_factory=dict)

    def add(self, result: LadderResult, truth: str | None) -> None:
        """Count every rung of one climb. `truth`: the label, where there is one."""
        for rung in result.rungs:
            tally = self.rungs.setdefault(rung.source.value, Tally())
            tally.asked += 1
            tally.seconds += rung.seconds
            tally.tokens += rung.tokens
            if rung.reason is None:
                tally.abstained[rung.why] += 1
                continue
            tally.answered += 1
            tally.right += truth == rung.reason
            tally.wrong += truth is not None and truth != rung.reason

    def document(self) -> list[dict[str, Any]]:
        """One entry a rung, in the order of the ladder; the five commonest reasons for abstaining."""
        return [
            {
                "rung": name,
                "asked": tally.asked,
                "answered": tally.answered,
                "right": tally.right,
                "wrong": tally.wrong,
                "seconds": round(tally.seconds, 3),
                "tokens": tally.tokens,
                "abstained": dict(tally.abstained.most_common(5)),
            }
            for name, tally in self.rungs.items()
        ]


def build_recall() -> MemoryRecall:
    """Memory seeded with the rules' own examples. Raises UsageError where it is not installed."""
    try:
        from agents.embedding import EmbeddingError, MiniLM
        from agents.memory_index import MemoryIndex
        from agents.recall import MemoryRecall, example_entries, example_vectors

        try:
            embedder = MiniLM()
        except EmbeddingError as error:
            raise UsageError(str(error)) from None
        # Compiled rules carry no examples.
        entries = example_entries(load_packs())
        index = MemoryIndex(entries, example_vectors(entries, embedder))
    except ImportError as error:
        raise UsageError(f"memory needs {error.name}: install pitstop[memory]") from None
    return MemoryRecall(embedder, index, time.time)


def build_client() -> ModelClient:
    """The client of the model that the environment names. Raises UsageError where there is none."""
    from agents.model import ModelClient, ModelUnavailable, read_endpoint

    base_url, key_file = os.environ.get("PITSTOP_LLM_BASE_URL"), os.environ.get("PITSTOP_LLM_API_KEY_FILE")
    if not base_url:
        raise UsageError("no model is configured: set PITSTOP_LLM_BASE_URL and PITSTOP_LLM_MODEL (docs/models.md)")
    try:
        return ModelClient(read_endpoint(base_url, os.environ.get("PITSTOP_LLM_MODEL"), Path(key_file) if key_file else None))
    except ModelUnavailable as error:
        raise UsageError(str(error)) from None


def ask_model(client: ModelClient, rules: Sequence[Rule], lines: Sequence[str], name: str, diagnosis: Diagnosis) -> Opinion:
    """The failure agent's opinion on one case."""
    from agents.evidence import KeptEvidence, question_of
    from agents.failure_agent import FailureAgent
    from agents.placeholders import Placeholders

    numbered = dict(enumerate((line.replace("\n", " ") for line in lines), 1))
    agent = FailureAgent(client, load_taxonomy())
    tools = KeptEvidence(numbered, {rule.code: rule for rule in rules})
    return agent.ask(question_of(diagnosis, numbered, name), tools, Placeholders())


def build_ladder(choice: LadderChoice, rules: Sequence[Rule]) -> Climb:
    """How to climb. A rung that was asked for by name and cannot be had is a UsageError; under `all` it says so and abstains."""
    from agents.ladder import Ladder

    recall: MemoryRecall | None = None
    client: ModelClient | None = None
    off = {LadderChoice.MEMORY: "not asked for", LadderChoice.LLM: "not asked for"}
    if choice in (LadderChoice.MEMORY, LadderChoice.ALL):
        try:
            recall = build_recall()
        except UsageError as error:
            if choice is LadderChoice.MEMORY:
                raise
            off[LadderChoice.MEMORY] = str(error)
    if choice in (LadderChoice.LLM, LadderChoice.ALL):
        try:
            client = build_client()
        except UsageError as error:
            if choice is LadderChoice.LLM:
                raise
            off[LadderChoice.LLM] = str(error)

    def climb(diagnosis: Diagnosis, lines: Sequence[str], name: str) -> LadderResult:
        asked = None if client is None else partial(ask_model, client, rules, lines, name)
        recalled = None if recall is None else partial(recall, lines=lines)
        ladder = Ladder(load_taxonomy(), recalled, asked, time.monotonic, off[LadderChoice.MEMORY], off[LadderChoice.LLM])
        return ladder.climb(diagnosis)

    return climb
