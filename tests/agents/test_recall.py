"""A failure that came once is recognised when it comes again elsewhere; with the real embedding model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.embedding import DIMENSIONS, EmbeddingError, MiniLM, ModelFiles, packaged_files
from agents.memory import Entry, Feedback, Origin, vote
from agents.memory_index import MemoryIndex
from agents.normal_form import evidence_text, normal_form
from agents.recall import MemoryRecall, example_entries, example_vectors
from rules.diagnosis import Diagnosis, Evidence
from rules.pack import load_packs
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus" / "dev.jsonl"

FIRST = (
    "node7: [rank3]: PhaseLockError: frobnicator 0000:3b:00.0 lost its phase lock after 1234 ms (step 77, /data/alice/run-1/x.py)"
)
AGAIN = "gpu-12: [rank511]: PhaseLockError: frobnicator 0000:86:00.0 lost its phase lock after 9 ms (step 90210, /mnt/p/q/z/y.py)"
OTHER = "ValueError: the tokenizer has no padding token"


def unknown_failure(*lines: str) -> Diagnosis:
    evidence = tuple(Evidence(Role.ROOT, line) for line in lines)
    return Diagnosis.of(load_taxonomy()[UNKNOWN], "it failed", evidence=evidence)


def recall_of(embedder: MiniLM, *entries: Entry) -> MemoryRecall:
    vectors = embedder.embed([entry.text for entry in entries])
    return MemoryRecall(embedder, MemoryIndex(entries, vectors), lambda: 0.0)


def test_vectors_have_length_one_and_equal_texts_equal_vectors(embedder: MiniLM) -> None:
    rows = embedder.embed(["a", "the disk is full", "a"])
    assert rows.shape == (3, DIMENSIONS)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(rows[0], rows[2]) and not np.allclose(rows[0], rows[1])
    assert embedder.embed([]).shape == (0, DIMENSIONS)


def test_a_model_that_was_exchanged_is_refused(embedder: MiniLM, tmp_path: Path) -> None:
    files = packaged_files()
    fake = tmp_path / "model.onnx"
    fake.write_bytes(b"other weights")
    with pytest.raises(EmbeddingError, match="SHA-256"):
        MiniLM(ModelFiles(fake, files.tokenizer, files.model_sha256, files.tokenizer_sha256))


def test_a_failure_seen_once_and_confirmed_is_recognised_on_other_hosts_ranks_and_numbers(embedder: MiniLM) -> None:
    once = Entry("41", "nan_loss", normal_form([FIRST]), Origin.INCIDENT, feedback=Feedback.CONFIRMED)
    recall = recall_of(embedder, once)
    assert recall(unknown_failure(AGAIN)).reason == "nan_loss"
    assert recall(unknown_failure(OTHER)).reason is None
    assert "no line" in recall(unknown_failure()).why


def test_an_index_grows_in_step_with_its_entries(embedder: MiniLM) -> None:
    entries = [Entry(str(n), "nan_loss", text, Origin.INCIDENT) for n, text in enumerate((FIRST, OTHER))]
    vectors = embedder.embed([entry.text for entry in entries])
    index = MemoryIndex(entries[:1], vectors[:1])
    index.add(entries[1], vectors[1])
    assert [entry.key for entry, _ in index.search(vectors[1])] == ["1", "0"]
    with pytest.raises(ValueError, match="1 entries but 2"):
        MemoryIndex(entries[:1], vectors)


def test_examples_are_embedded_once_and_then_read(embedder: MiniLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entries = example_entries(load_packs())[:3]
    first = example_vectors(entries, embedder)

    class Broken:
        def embed(self, texts: object) -> np.ndarray:
            raise AssertionError("embedded again")

    assert np.array_equal(example_vectors(entries, Broken()), first)
    next((tmp_path / "pitstop").iterdir()).write_bytes(b"half a file")
    assert np.array_equal(example_vectors(entries, embedder), first)


def mutated(line: str, rng: random.Random) -> str:
    """`line` as it would stand in the log of another run on other machines and other versions."""
    line = re.sub(r"(?<![A-Za-z_.(])\d+|(?<=\b[vV])\d+|(?<=\bcu)\d+", lambda match: str(rng.randrange(10 ** len(match[0]))), line)
    line = re.sub(r"(/[\w.-]+){3,}", lambda match: f"/mnt/{rng.choice('abc')}/{match.group(0).rsplit('/', 1)[1]}", line)
    return re.sub(r"\b(node|worker|gpu|host|cn)-?\d+\b", lambda _match: f"dgx{rng.randrange(999)}", line)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip("the labelled corpus is not beside the project")
    return [json.loads(line) for line in CORPUS.read_text().splitlines()]


def recalled(embedder: MiniLM, reasons: Sequence[str], texts: Sequence[str], again: Sequence[str]) -> tuple[float, float]:
    """(recall, precision) where each of `texts` is remembered and comes once more as the one of `again` in its place."""
    entries = [Entry(str(n), reason, text, Origin.INCIDENT) for n, (reason, text) in enumerate(zip(reasons, texts, strict=True))]
    index = MemoryIndex(entries, embedder.embed(texts))
    said = [
        vote(index.search(row), 0.0, shared=lambda entry, text=text: index.wording.shared(text, entry.text)).reason
        if text
        else None
        for row, text in zip(embedder.embed(again), again, strict=True)
    ]
    right = sum(answer == reason for answer, reason in zip(said, reasons, strict=True))
    answered = sum(answer is not None for answer in said)
    print(f"recurrence: {len(reasons)} failures, recall {right / len(reasons):.3f}, precision {right / answered:.3f}")
    return right / len(reasons), right / answered


@pytest.mark.acceptance
def test_recurring_failures_are_recalled_precisely(embedder: MiniLM, cases: list[dict[str, Any]]) -> None:
    """Every case of the corpus again with other numbers, paths, versions, hosts and order: recall 0.95 at precision 0.98."""
    failures = [
        (case["label"]["reason"], [case["log"][n] for n in case["culprit_lines"]]) for case in cases if case["culprit_lines"]
    ]
    rng = random.Random(1)
    again = [normal_form(rng.sample([mutated(line, rng) for line in lines], len(lines))) for _, lines in failures]
    reasons, texts = [reason for reason, _ in failures], [normal_form(lines) for _, lines in failures]
    recall, precision = recalled(embedder, reasons, texts, again)
    assert recall >= 0.95 and precision >= 0.98


@pytest.mark.acceptance
def test_failures_that_no_rule_knows_are_recalled_among_other_lines(embedder: MiniLM, cases: list[dict[str, Any]]) -> None:
    """As if no rule knew any: what reads like a complaint is remembered, and comes again behind lines of healthy runs."""
    nobody_knows = unknown_failure()
    healthy = [line for case in cases if not case["culprit_lines"] for line in case["log"]]
    failures = [
        (case["label"]["reason"], case, evidence_text(nobody_knows, case["log"])) for case in cases if case["culprit_lines"]
    ]
    failures = [failure for failure in failures if failure[2]]
    rng = random.Random(1)

    def again(case: dict[str, Any]) -> str:
        labelled = {*case["culprit_lines"], *case["cascade_lines"], *case["teardown_lines"]}
        lines = [mutated(line, rng) for number, line in enumerate(case["log"]) if number in labelled]
        return evidence_text(nobody_knows, rng.sample(healthy, rng.randrange(6)) + lines)

    recall, precision = recalled(
        embedder,
        [reason for reason, _, _ in failures],
        [text for _, _, text in failures],
        [again(case) for _, case, _ in failures],
    )
    assert recall >= 0.75 and precision >= 0.98
