"""Chaos on real training of a small GPT, under the real service: it resumes by itself, or stops for the right reason.

At SCALE=1 every fault is played; below that, as many as fit, the most different first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.peer import Runs, wait_for
from tests.service.service_process import ServiceProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SCALE = float(os.environ.get("SCALE", "1"))
SCRIPT = Path(__file__).with_name("gpt.py")
RANKS, STEPS = 2, 30


def scaled(cases: list[Any], least: int) -> list[Any]:
    return cases[: max(least, round(SCALE * len(cases)))]


# (faults, how often it is started again)
HEALED = [
    ("1@10:kill", 1),
    ("1@10:stop", 1),
    ("0@10:kill 1@10:segfault", 1),
    ("twice:1@10:kill", 2),
    ("1@10:raise_slowly", 1),
    ("1@10:spin", 1),
    ("0@11:exit=3", 1),
    ("0@10:stop 1@10:kill", 1),
    ("1@10:slow=1.5", 0),
]
STOPPED = [
    ("always:1@10:raise", "python_code_error"),
    ("0@10:corrupt", "checkpoint_corrupted"),
    ("always:0@10:full_disk", None),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    folder = tmp_path / "service"
    folder.mkdir()
    with ServiceProcess(folder) as process:
        yield process


class Training:
    """One job of the small GPT in `folder`."""

    def __init__(self, folder: Path, service: str) -> None:
        folder.mkdir()
        self.runs = Runs(folder, service, python=sys.executable)
        self.checkpoint, self.result = folder / "model.pt", folder / "result"
        self.runs.environment["FAULTS_CHECKPOINT"] = str(self.checkpoint)

    def start(self, faults: str = "", **options: Any) -> Any:
        self.runs.environment["FAULTS"] = faults
        return self.runs.start(SCRIPT, str(self.checkpoint), str(STEPS), str(self.result), ranks=RANKS, **options)

    def run(self, faults: str = "", **options: Any) -> tuple[int, str]:
        """Exit status, and what the launcher said."""
        process = self.start(faults, **options)
        _, said = process.communicate(timeout=600)
        return process.returncode, said

    @property
    def generations(self) -> int:
        return int(self.runs.state()["care"]["generation"])


@pytest.fixture
def training(tmp_path: Path, service: ServiceProcess) -> Iterator[Callable[[str], Training]]:
    made: list[Training] = []

    def make(name: str) -> Training:
        made.append(Training(tmp_path / name, service.url))
        return made[-1]

    yield make
    for item in made:
        item.runs.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The final parameters of a run that nothing happens to, and that nobody watches."""
    calm = Training(tmp_path_factory.mktemp("calm") / "job", "http://127.0.0.1:9")
    status, said = calm.run()
    assert status == 0, said
    yield calm.result.read_text()
    calm.runs.end()


@pytest.mark.parametrize(("faults", "restarts"), scaled(HEALED, 2))
def test_training_resumes_by_itself_and_ends_equal_to_the_last_bit(
    training: Callable[[str], Training], undisturbed: str, faults: str, restarts: int
) -> None:
    job = training("job")
    status, said = job.run(faults)
    assert status == 0, said
    assert job.generations == restarts, said
    assert job.result.read_text() == undisturbed
    assert job.runs.processes() == []


@pytest.mark.parametrize(("faults", "reason"), scaled(STOPPED, 1))
def test_what_no_restart_heals_is_stopped_within_its_budget_and_its_owner_told(
    training: Callable[[str], Training], service: ServiceProcess, faults: str, reason: str | None
) -> None:
    job = training("job")
    status, said = job.run(faults)
    assert status == 1, said
    assert job.generations <= 3
    listed = service.get("/api/v1/incidents?job=job")["items"]
    incident = service.get(f"/api/v1/incidents/{listed[0]['id']}")
    assert reason is None or reason in {item["reason"] for item in listed}
    assert incident["notifications"], "somebody was told"
    assert job.runs.processes() == []


def test_a_service_killed_in_the_middle_of_a_recovery_costs_no_bit(
    training: Callable[[str], Training], service: ServiceProcess, undisturbed: str
) -> None:
    job = training("job")
    process = job.start("1@10:kill")
    wait_for(lambda: service.get("/api/v1/incidents?job=job").get("items"), 120, "the incident")
    service.kill()
    service.start()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert job.generations == 1 and job.result.read_text() == undisturbed


@pytest.mark.skipif(SCALE < 0.5, reason="played at SCALE of 0.5 and more")
def test_with_pitstop_dead_all_the_time_the_job_lives_on_as_it_would_without_it(tmp_path: Path, undisturbed: str) -> None:
    job = Training(tmp_path / "job", "http://127.0.0.1:9")
    try:
        status, said = job.run("1@10:kill")
        assert status == 0, said
        assert job.generations == 1 and job.result.read_text() == undisturbed
    finally:
        job.runs.end()
