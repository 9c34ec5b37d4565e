"""A wave of job ends through the real hooks into a real service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.service.service_process import ServiceProcess
from tests.slurm_hooks import configuration, job_ends, stored_ends

COUNT = max(50, int(1000 * float(os.environ.get("SCALE", "1"))))


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(300)
def test_every_end_of_a_wave_of_jobs_is_taken_and_no_hook_fails(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        # On a busy machine starting the programs takes longer than asking: what counts here is that nothing is lost.
        calls = job_ends(COUNT, configuration(tmp_path, service.url, "PITSTOP_APART_SECONDS=30"), COUNT * 0.06)
        stored = stored_ends(tmp_path / "data" / "pitstop.sqlite", COUNT)
    assert stored == COUNT
    assert all(call.status == 0 for call in calls)
