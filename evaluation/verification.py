"""Metric jobs: outputs verified on a CPU, sample by sample, each verdict written before the next; an interrupted job resumes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evaluation.sandbox import Ending, Limits, run_sandboxed

__all__ = [
    "Judge",
    "JudgeUnavailable",
    "SampleVerdict",
    "Summary",
    "Verifier",
    "code_verifier",
    "exact_verifier",
    "judge_verifier",
    "number_verifier",
    "verify_samples",
]

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class SampleVerdict:
    """`score` in [0, 1]. `failed` says in a few words why a sample could not be run to its end; such a sample scores 0."""

    score: float
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a metric job did. `left` samples have outputs and no verdict yet, for the reason `why`."""

    verified: int
    failed: int
    left: int
    why: str | None = None


class JudgeUnavailable(Exception):
    """No judgement is to be had now; the sample stays unverified."""


class Judge(Protocol):
    """A model that marks an answer."""

    def __call__(self, question: str, answer: str, reference: str) -> float:
        """The mark in [0, 1]. Raises JudgeUnavailable."""


Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], SampleVerdict]
"""(output record, reference record) -> verdict."""


def text_of(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    return value if isinstance(value, str) else "" if value is None else str(value)


def exact_verifier(output: Mapping[str, Any], reference: Mapping[str, Any]) -> SampleVerdict:
    """1 where the output is the answer, white space at the ends aside."""
    return SampleVerdict(float(text_of(output, "output").strip() == text_of(reference, "answer").strip()))


def number_verifier(output: Mapping[str, Any], reference: Mapping[str, Any]) -> SampleVerdict:
    """1 where the last number of the output equals the answer's last (GSM8K's rule)."""
    numbers = [NUMBER.findall(text) for text in (text_of(output, "output"), text_of(reference, "answer"))]
    if not all(numbers):
        return SampleVerdict(0.0)
    given, wanted = (float(found[-1].replace(",", "")) for found in numbers)
    return SampleVerdict(float(given == wanted))


def code_verifier(limits: Limits, python: str) -> Verifier:
    """1 where prompt, output and the reference's tests, one after another in the sandbox, end well (HumanEval, MBPP)."""

    def verify(output: Mapping[str, Any], reference: Mapping[str, Any]) -> SampleVerdict:
        program = "\n".join((text_of(reference, "prompt") + text_of(output, "output"), text_of(reference, "tests"), ""))
        verdict = run_sandboxed(program, limits, python=python)
        failed = verdict.detail if verdict.ending in (Ending.TIMED_OUT, Ending.KILLED) else None
        return SampleVerdict(float(verdict.ending is Ending.PASSED), failed)

    return verify


def judge_verifier(judge: Judge) -> Verifier:
    """The judge's mark."""

    def verify(output: Mapping[str, Any], reference: Mapping[str, Any]) -> SampleVerdict:
        return SampleVerdict(judge(text_of(reference, "prompt"), text_of(output, "output"), text_of(reference, "answer")))

    return verify


def verify_samples(
    outputs: Mapping[int, Mapping[str, Any]],
    references: Mapping[int, Mapping[str, Any]],
    done: Iterable[int],
    verifier: Verifier,
    write: Callable[[Mapping[str, Any]], None],
) -> Summary:
    """Verify every output that has no verdict yet and `write` each verdict at once.

    An output without a reference is a failed sample. Where the judge cannot be had the job ends and says how many are left.
    """
    known = set(done)
    waiting = [sample for sample in sorted(outputs) if sample not in known]
    verified = failed = 0
    for sample in waiting:
        reference = references.get(sample)
        if reference is None:
            verdict = SampleVerdict(0.0, "no reference for this sample")
        else:
            try:
                verdict = verifier(outputs[sample], reference)
            except JudgeUnavailable as problem:
                return Summary(verified, failed, len(waiting) - verified, str(problem))
        write({"sample": sample, "score": verdict.score, "failed": verdict.failed})
        verified += 1
        failed += verdict.failed is not None
    return Summary(verified, failed, 0)
