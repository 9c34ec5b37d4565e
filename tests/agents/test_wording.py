"""Words tell failures apart that read alike."""

from __future__ import annotations

import pytest

from agents.memory import Calibration
from agents.wording import Wording

REMEMBERED = (
    "slurmstepd: error: *** JOB <n> ON <host> CANCELLED AT <time> DUE TO TIME LIMIT ***",
    "[ERROR] [tid <n>] detected NVSwitch fatal error <n> on fid <n> on NVSwitch pci bus id <pci> physical id <n> port <n>",
    "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
)


@pytest.mark.parametrize(
    ("asked", "remembered", "same"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered at <path>", REMEMBERED[3], True),
        (REMEMBERED[0].replace("<host>", "<n>"), REMEMBERED[0], True),
        ("slurmstepd: error: *** STEP <n> CANCELLED DUE TO JOB REQUEUE ***", REMEMBERED[0], False),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", REMEMBERED[2], False),
        ("other words", "than these", False),
    ],
)
def test_a_recurrence_shares_its_rare_words(asked: str, remembered: str, same: bool) -> None:
    shared = Wording(REMEMBERED).shared(asked, remembered)
    assert (shared >= Calibration().least_shared) is same, shared


def test_without_any_word_the_vectors_alone_decide() -> None:
    assert Wording(()).shared("<n> <hex>", "<n>") == 1.0
