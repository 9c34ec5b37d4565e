"""Bad batches ruin a real training: it goes back before them, leaves them out, and ends as if they had never been."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.stories.observing import directive_of, settled
from cli.stories.stage import Stage
from pitstop.sampler import Sampler
from tests.acceptance import spike_training

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(500)]


def test_a_training_that_bad_batches_ruined_ends_as_one_that_never_saw_them(stage: Stage, tmp_path: Path) -> None:
    stage.serve()
    result = tmp_path / "result.json"
    script = Path(spike_training.__file__)
    command = [sys.executable, str(script), str(tmp_path / "checkpoints"), str(result)]
    launcher: Any = stage.start("spiky", "run", "--job", "spiky", "--ranks", "1", "--", *command)
    incident = stage.wait_for("the recovery to be verified", lambda: settled(stage, "spiky"), 200)
    assert incident["reason"] == "loss_spike" and directive_of(incident) == "rollback"
    assert launcher.wait(timeout=200) == 0
    found = json.loads(result.read_text())
    (skipped,) = found["skip"]
    assert skipped[0] == spike_training.BAD.start - 1 and skipped[1] > spike_training.BAD.start
    sampler = Sampler(spike_training.SAMPLES, spike_training.BATCH, seed=4, skip=found["skip"])
    expected = spike_training.train(sampler)
    assert found["parameters"] == expected["parameters"] and found["loss"] == expected["loss"] < 1.0
