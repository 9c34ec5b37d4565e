"""A failure that came once is recognised when it comes again elsewhere; with the real embedding model."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from agents.embedding import DIMENSIONS, EmbeddingError, MiniLM, ModelFiles, packaged_files
from agents.memory import Entry, Feedback, Origin, vote
from agents.memory_index import MemoryIndex
from agents.normal_form import normal_form
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
    """`line` as it would stand in the log of another run on other machines."""
    line = re.sub(r"(?<![A-Za-z_.(])\d+", lambda match: str(rng.randrange(10 ** len(match.group(0)))), line)
    line = re.sub(r"(/[\w.-]+){3,}", lambda match: f"/mnt/{rng.choice('abc')}/{match.group(0).rsplit('/', 1)[1]}", line)
    return re.sub(r"\b(node|worker|gpu|host|cn)-?\d+\b", lambda _match: f"dgx{rng.randrange(999)}", line)


@pytest.mark.acceptance
@pytest.mark.skipif(not CORPUS.exists(), reason="the labelled corpus is not beside the project")
def test_recurring_failures_are_recalled_precisely(embedder: MiniLM) -> None:
    """Every case of the corpus again with other numbers, paths, hosts and order: recall 0.95 at precision 0.98."""
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    failures = [
        (case["label"]["reason"], [case["log"][n] for n in case["culprit_lines"]]) for case in cases if case["culprit_lines"]
    ]
    texts = [normal_form(lines) for _, lines in failures]
    entries = [
        Entry(str(n), reason, text, Origin.INCIDENT) for n, ((reason, _), text) in enumerate(zip(failures, texts, strict=True))
    ]
    index = MemoryIndex(entries, embedder.embed(texts))
    rng = random.Random(1)
    again = [normal_form(rng.sample([mutated(line, rng) for line in lines], len(lines))) for _, lines in failures]
    said = [
        vote(index.search(row), 0.0, shared=lambda entry, text=text: index.wording.shared(text, entry.text)).reason
        for row, text in zip(embedder.embed(again), again, strict=True)
    ]
    right = sum(answer == reason for answer, (reason, _) in zip(said, failures, strict=True))
    answered = sum(answer is not None for answer in said)
    print(f"recurrence: {len(failures)} failures, recall {right / len(failures):.3f}, precision {right / answered:.3f}")
    assert right / len(failures) >= 0.95
    assert right / answered >= 0.98
