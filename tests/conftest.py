"""What all tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.agents.scripted_endpoint import ScriptedEndpoint
from tests.slurm_cluster import SlurmCluster, missing_programs, open_slurm_cluster

# Deterministic, and fair on a busy machine.
settings.register_profile("pitstop", deadline=None, derandomize=True)
settings.load_profile("pitstop")


TESTS = Path(__file__).parent
# Begun first: no worker is to sit over one of these when the others have nothing left to do.
LONGEST = (
    "acceptance/test_thread.py",
    "browser/test_pages_in_chromium.py",
    "acceptance/test_trials.py",
    "acceptance/test_learning.py",
    "acceptance/test_loss_spike.py",
    "acceptance/test_adapting.py",
    "service/test_plans_end_to_end.py",
    "node/test_going_on.py",
    "node/test_nodes.py",
    "sdk/checkpoint/test_faults.py",
    "sdk/test_pipeline_executor.py",
    "acceptance/test_localize.py",
    "acceptance/test_hostile_jobs.py",
    "acceptance/test_accounts.py",
    "recovery/test_slurm_driver_on_a_cluster.py",
    "node/test_with_service.py",
    "browser/test_operator_path.py",
    "service/test_recovery_kills.py",
    "service/test_ingest_kills.py",
    "service/test_service_process.py",
    "service/test_openapi.py",
    "service/test_backup.py",
    "node/test_run.py",
    "node/test_noticing.py",
    "rules/test_check.py",
    "service/test_localizations.py",
    "service/test_learning.py",
)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Four nodes of real Slurm, started when the first test asks for them."""
    missing = missing_programs()
    if missing and os.environ.get("CI"):
        pytest.fail(f"{', '.join(missing)} is missing: install slurm-wlm and munge")
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and Slurm ({', '.join(missing) or 'not root'}): install slurm-wlm and munge")
    # Sockets lie in it: the path has to be short.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder,
        open_slurm_cluster(Path(folder)) as cluster,
    ):
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster) -> SlurmCluster:
    """The cluster with nothing left of the test before."""
    slurm_cluster.reset()
    return slurm_cluster


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    """A model endpoint whose answers the test writes down."""
    server = ScriptedEndpoint()
    yield server
    server.close()


def turn(item: pytest.Item) -> int:
    """When its file is begun; those not among the longest follow as they were collected."""
    return next((place for place, name in enumerate(LONGEST) if item.path == TESTS / name), len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first. Soaks marked `whole` take minutes at any scale: they are played at SCALE of 0.5 and more."""
    items.sort(key=turn)
    if float(os.environ.get("SCALE", "1")) >= 0.5:
        return
    skip = pytest.mark.skip(reason="played at SCALE of 0.5 and more")
    for item in items:
        if item.get_closest_marker("whole") is not None:
            item.add_marker(skip)
