"""`pitstop trials run` on real processes: crashes, a killed coordinator, full shared memory, model-written code."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from agents.model import Endpoint
from tests.agents.scripted_endpoint import completion

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(shutil.which("bwrap") is None and "CI" not in os.environ, reason="bubblewrap is not installed"),
]

PITSTOP = Path(sys.executable).with_name("pitstop")

# Generates from the staged model; dies once in dataset `fragile` after three samples, always in `broken`.
GENERATOR = """
import json, os, sys, time
model, work, marks = sys.argv[1:]
assert os.path.getsize(os.path.join(model, "weights.bin")) == 1 << 20
for line in open(work):
    task = json.loads(line)
    with open(task["output"], "a") as output:
        for sample in range(task["first"], task["last"]):
            if task["dataset"] == "broken":
                raise KeyError("no such task")
            if task["dataset"] == "fragile" and sample == 3 and not os.path.exists(marks):
                open(marks, "w").close()
                os.kill(os.getpid(), 9)
            time.sleep(0.01)
            text = "    while True: pass" if sample % 4 == 0 else "    return a + b"
            output.write(json.dumps({"sample": sample, "output": text if task["dataset"] == "code" else str(sample)}) + "\\n")
            output.flush()
"""


@pytest.fixture
def site(tmp_path):
    """A specification with its model, references and generator; the folder of its run; a shared memory of its own."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(bytes(1 << 20))
    (tmp_path / "generate.py").write_text(GENERATOR)
    (tmp_path / "numbers.jsonl").write_text("".join(json.dumps({"sample": i, "answer": str(i)}) + "\n" for i in range(200)))
    reference = {"prompt": "def add(a, b):\n", "tests": "assert add(1, 2) == 3"}
    (tmp_path / "code.jsonl").write_text("".join(json.dumps({"sample": i, **reference}) + "\n" for i in range(8)))
    return tmp_path


def specification(site, *datasets, **fields):
    document = {
        "run": "acceptance",
        "model": "model",
        "nodes": {"localhost": 2},
        "cpu_workers": 2,
        "startup_seconds": 0.2,
        "generate": f"{sys.executable} {site}/generate.py {{model}} {{work}} {site}/died-once",
        "datasets": [{"references": "numbers.jsonl", "gpu_seconds": 1, "cpu_seconds": 1, **dataset} for dataset in datasets],
        **fields,
    }
    (site / "spec.yaml").write_text(yaml.safe_dump(document))
    return site / "spec.yaml"


def command(site, path):
    shared = ["--folder", str(site / "run"), "--shared-memory", str(site / "shm"), "--json"]
    return [str(PITSTOP), "trials", "run", str(path), *shared]


def run(site, path):
    finished = subprocess.run(command(site, path), capture_output=True, text=True, timeout=200, cwd=site)
    return json.loads(finished.stdout), finished


def by_name(report):
    return {dataset["name"]: dataset for dataset in report["datasets"]}


def counted(site, dataset):
    """How often each sample has a verdict on disk."""
    lines = [line for path in (site / "run" / "verdicts" / dataset).glob("*.jsonl") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["sample"] for line in lines)


def trials_of(site):
    """Living generators of this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if f"{site}/generate.py".encode() in words:
            found.append(path)
    return found


def test_crashes_hanging_samples_and_a_broken_dataset_cost_only_themselves(site):
    path = specification(
        site,
        {"name": "plain", "samples": 100},
        {"name": "fragile", "samples": 20},
        {"name": "broken", "samples": 5},
        {"name": "code", "samples": 8, "references": "code.jsonl", "verify": "code", "timeout_seconds": 3},
    )
    report, finished = run(site, path)
    assert finished.returncode == 1, "something was given up"
    datasets = by_name(report)
    assert {name: dataset["score"] for name, dataset in datasets.items()} == {
        "plain": 1.0,
        "fragile": 1.0,
        "broken": None,
        "code": 0.75,
    }
    assert datasets["code"]["failed_samples"] == 2
    assert "KeyError: 'no such task'" in datasets["broken"]["given_up"]
    assert any("killed by signal 9" in failure["error"] for failure in report["failures"])
    assert all(counted(site, name) == Counter(range(datasets[name]["samples"])) for name in ("plain", "fragile", "code"))
    assert "broken is given up" in finished.stderr and "Traceback" not in finished.stderr
    assert (site / "run" / "gantt.svg").read_text().startswith("<svg")
    assert report["saved"]["all"] > 0


def test_a_killed_coordinator_goes_on_where_it_was(site):
    fetched = {"command": f"cp {site}/model/weights.bin {{target}}", "sha256": hashlib.sha256(bytes(1 << 20)).hexdigest()}
    path = specification(site, {"name": "plain", "samples": 150}, {"name": "more", "samples": 150}, model=fetched)
    coordinator = subprocess.Popen(
        command(site, path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    outputs = site / "run" / "outputs"
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size for file in outputs.glob("*/*.jsonl")):
        assert time.monotonic() < deadline and coordinator.poll() is None
        time.sleep(0.02)
    coordinator.kill()
    coordinator.wait()
    while trials_of(site):
        assert time.monotonic() < deadline, "its trials end with it"
        time.sleep(0.02)
    before = {file: file.read_bytes() for file in outputs.glob("*/*.jsonl")}
    report, finished = run(site, path)
    assert finished.returncode == 0, finished.stderr
    assert all(dataset["score"] == 1.0 for dataset in report["datasets"])
    assert all(file.read_bytes().startswith(content) for file, content in before.items()), "nothing that was written is touched"
    assert counted(site, "plain") == Counter(range(150)) and counted(site, "more") == Counter(range(150))


def test_a_killed_precursor_and_a_judge_that_is_away_cost_only_time(site, endpoint, monkeypatch):
    """The precursor dies as it begins; the judge is down when it is first asked, and marks later."""
    (site / "fetch.sh").write_text("[ -e $0.died ] || { touch $0.died; kill -9 $PPID; }\ncp -r model/. $1\n")
    mark = completion(json.dumps({"score": 0.5, "why": "so so"}))
    attempts = Endpoint(endpoint.base_url, "scripted").attempts

    def away_until_somebody_gave_up(_body, number):
        asked = Counter(str(body["messages"]) for body in endpoint.requests[:number])
        return mark if max(asked.values(), default=0) >= attempts else (503, "{}")

    endpoint.script = away_until_somebody_gave_up
    monkeypatch.setenv("PITSTOP_LLM_BASE_URL", endpoint.base_url)
    monkeypatch.setenv("PITSTOP_LLM_MODEL", "scripted")
    judged = {"name": "judged", "samples": 4, "verify": "judge"}
    path = specification(site, {"name": "plain", "samples": 10}, judged, model={"command": f"sh {site}/fetch.sh {{target}}"})
    report, finished = run(site, path)
    assert finished.returncode == 0, finished.stderr
    assert {name: dataset["score"] for name, dataset in by_name(report).items()} == {"plain": 1.0, "judged": 0.5}
    assert all(counted(site, name) == Counter(range(count)) for name, count in (("plain", 10), ("judged", 4)))
    assert "stage of model on localhost: killed by signal 9" in finished.stderr
    assert (
        "verification of judged on localhost: exit status 75" in finished.stderr and "the judge gives no mark" in finished.stderr
    )


def test_without_room_in_shared_memory_trials_read_from_storage(site):
    path = specification(site, {"name": "plain", "samples": 10}, shared_memory_gib=0.001)
    (site / "model" / "more.bin").write_bytes(bytes(1 << 20))
    report, finished = run(site, path)
    assert finished.returncode == 0 and by_name(report)["plain"]["score"] == 1.0
    assert "the model needs 2,097,152 bytes" in finished.stderr


def test_two_coordinators_of_one_run_are_one_too_many(site):
    path = specification(site, {"name": "plain", "samples": 150})
    first = subprocess.Popen(command(site, path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (site / "run" / "work" / "life-0").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        second = subprocess.run(command(site, path), capture_output=True, text=True, timeout=120)
        assert second.returncode == 2 and "another pitstop trials run is at work" in second.stderr
    finally:
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait(120) in (0, 1)


def test_a_run_shows_on_its_page_and_its_failures_are_incidents(site, stage):
    stage.serve()
    path = specification(site, {"name": "plain", "samples": 30}, {"name": "broken", "samples": 5})
    trials = stage.start("trials", *command(site, path)[1:], "--service", stage.url)
    incident = stage.wait_for("the diagnosis of its failure", lambda: diagnosed(stage), 180)
    assert trials.wait(120) == 1
    told = stage.wait_for("the report", lambda: finished_run(stage), 120)
    assert by_name(told)["plain"]["score"] == 1.0 and "KeyError" in by_name(told)["broken"]["given_up"]
    assert told["bars"]
    assert incident["category"] == "script" and incident["severity"] == "NONE" and incident["node"] == "localhost"
    assert any("KeyError: 'no such task'" in line["text"] for line in incident["diagnosis"]["evidence"])


def finished_run(stage):
    told = stage.get("/api/v1/trials/acceptance")
    return told if told and told["state"] == "finished" else None


def diagnosed(stage):
    incident = stage.incident_of("acceptance")
    return incident if incident and incident["reason"] == "python_key_error" else None
