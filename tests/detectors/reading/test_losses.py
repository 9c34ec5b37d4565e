"""Losses in printed logs: a jump that stays is the diagnosis where no line explains the end; healthy curves never are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from detectors.reading.scan import scan_inputs, scan_text
from rules.artefact import load_compiled
from rules.diagnosis import Diagnosis
from rules.matcher import Matcher
from rules.ranking import rank

NOW = 1_800_000_000.0
STEPS, ONSET = 120, 100

FORMATS: dict[str, Callable[[int, float], str]] = {
    "megatron": lambda step, loss: (
        f" [2025-11-28 10:{step // 60:02d}:{step % 60:02d}] iteration {step:8d}/    8000 | consumed samples: {step * 64:12d} | "
        f"elapsed time per iteration (ms): 7613.1 | learning rate: 3.0E-04 | lm loss: {loss:.6E} | loss scale: 1.0 | "
        f"grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "trainer": lambda step, loss: (
        f"{{'loss': {loss:.4f}, 'grad_norm': 0.71, 'learning_rate': 2.9e-05, 'epoch': {step / 1000:.2f}}}"
    ),
    "lightning": lambda step, loss: (
        f"Epoch 3:  41%|####      | {step}/1980 [02:10<31:53,  0.61it/s, loss={loss:.3f}, v_num=0, val_loss=2.10]"
    ),
    "nanogpt": lambda step, loss: f"iter {step}: loss {loss:.4f}, time 251.32ms, mfu 31.40%",
    "torchtitan": lambda step, loss: (
        f"[rank0]:[titan] 2025-11-28 10:00:00,123 - root - INFO - \x1b[31mstep: {step:2d}  \x1b[32mloss: {loss:7.4f}  "
        f"\x1b[33mmemory: 20.1GiB(25.5%)  \x1b[34mtps: 7,345\x1b[39m"
    ),
    "deepspeed": lambda step, loss: f"steps: {step} loss: {loss:.4f} iter time (s): 1.204 samples/sec: 212.5",
    "nemo": lambda step, loss: f"Training: step {step} | reduced_train_loss={loss:.3f} | train_step_timing in s: 5.7",
    "table": lambda step, loss: f"Epoch: [0][{step}/1736]\t Time 0.3 (0.3)\t Loss {loss:.4f} (2.1)",
}


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return load_compiled().matcher()


def falling(step: int, noise: random.Random) -> float:
    return (2.0 + 8 * math.exp(-step / 20)) * math.exp(noise.gauss(0, 0.02))


def curve(steps: int = STEPS, onset: int | None = None, length: int = STEPS, seed: int = 1) -> list[float]:
    """A healthy loss, which from `onset` for `length` steps is three times as high."""
    noise = random.Random(seed)
    losses = [falling(step, noise) for step in range(steps)]
    return [loss * 3 if onset is not None and onset <= step < onset + length else loss for step, loss in enumerate(losses)]


def printed(losses: Sequence[float], show: Callable[[int, float], str] = FORMATS["nanogpt"]) -> list[str]:
    return [show(step, loss) for step, loss in enumerate(losses)]


def diagnose(lines: Sequence[str], matcher: Matcher) -> Diagnosis:
    return rank(scan_text("".join(f"{line}\n" for line in lines).encode(), matcher, lambda: NOW), matcher.rules)


@pytest.mark.parametrize("form", FORMATS)
def test_a_loss_that_jumps_and_stays_is_the_diagnosis_with_the_line_where_it_jumped(form: str, matcher: Matcher) -> None:
    found = diagnose(printed(curve(onset=ONSET), FORMATS[form]), matcher)
    assert (found.reason, found.remedy) == ("loss_spike", "rollback_checkpoint")
    assert [item.line for item in found.evidence if item.role == "root"] == [ONSET + 1, STEPS]


@pytest.mark.parametrize("form", FORMATS)
def test_a_healthy_loss_is_no_failure(form: str, matcher: Matcher) -> None:
    assert diagnose(printed(curve(), FORMATS[form]), matcher).reason == "none"


@pytest.mark.parametrize("seed", range(5))
def test_a_small_noisy_run_is_no_failure(seed: int, matcher: Matcher) -> None:
    noise = random.Random(seed)
    losses = [2.0 * math.exp(noise.gauss(0, 0.35)) for _ in range(400)]
    assert diagnose(printed(losses), matcher).reason == "none"


def test_one_high_value_that_falls_again_is_no_failure(matcher: Matcher) -> None:
    assert diagnose(printed(curve(onset=ONSET, length=4)), matcher).reason == "none"


def test_warm_up_is_no_failure(matcher: Matcher) -> None:
    losses = [11.0 + min(step, 30) / 20 if step < 40 else 12.5 * math.exp(-(step - 40) / 40) for step in range(STEPS)]
    assert diagnose(printed(losses), matcher).reason == "none"


def test_losses_of_an_evaluation_are_not_those_of_training(matcher: Matcher) -> None:
    lines = printed([2.0] * 60, FORMATS["trainer"])
    lines += [f"{{'eval_loss': 9.1, 'eval_runtime': 3.1, 'epoch': {0.06 + step / 1000}}}" for step in range(9)]
    lines += [f" validation loss at iteration {step} | lm loss value: 9.1E+00 | lm loss PPL: 8.9E+03 |" for step in range(60, 69)]
    assert diagnose(lines, matcher).reason == "none"


def test_a_second_job_in_the_same_file_begins_anew(matcher: Matcher) -> None:
    again = [10.0 - step / 100 for step in range(20)]
    for form in ("nanogpt", "trainer", "megatron"):
        assert diagnose(printed([2.0] * 60, FORMATS[form]) + printed(again, FORMATS[form]), matcher).reason == "none"


def test_a_loss_that_was_rolled_back_is_no_failure(matcher: Matcher) -> None:
    lines = printed(curve(onset=ONSET)) + [FORMATS["nanogpt"](step, 2.0) for step in range(80, 130)]
    assert diagnose(lines, matcher).reason == "none"


def test_ranks_that_print_the_same_step_a_little_later_are_one_curve(matcher: Matcher) -> None:
    lines = printed(curve(onset=ONSET))
    late = [line for step in range(STEPS) for line in (lines[step], lines[max(0, step - 2)])]
    assert diagnose(late, matcher).reason == "loss_spike"


def test_a_jump_is_never_the_root_above_what_a_line_says(matcher: Matcher) -> None:
    lines = printed(curve(onset=ONSET))
    lines += ["NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, name=python3, GPU has fallen off the bus."]
    assert diagnose(lines, matcher).reason == "gpu_fallen_off_bus"


def test_a_jump_explains_an_end_of_which_no_cause_is_known(matcher: Matcher) -> None:
    end = ["Traceback (most recent call last):", '  File "/app/train.py", line 9, in <module>', "RuntimeError: giving up"]
    assert diagnose([*printed(curve()), *end], matcher).reason == "unknown"
    assert diagnose([*printed(curve(onset=ONSET)), *end], matcher).reason == "loss_spike"


def test_the_end_of_a_large_log_is_judged_too(tmp_path: Path) -> None:
    compiled = load_compiled()
    lines = [FORMATS["nanogpt"](step, 2.0 + 0.01 * (step % 7)) for step in range(24_000)]
    lines += [FORMATS["nanogpt"](step, 7.0 + 0.01 * (step % 7)) for step in range(24_000, 24_050)]
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    matcher = compiled.matcher()
    found = rank(scan_inputs([str(log)], matcher, lambda: NOW, compiled.shapes), matcher.rules)
    assert found.reason == "loss_spike"
    assert [item.line for item in found.evidence if item.role == "root"] == [24_001, 24_050]
