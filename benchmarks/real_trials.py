"""Each decoupling of an evaluation on real processes: a small model behind a throttled link, datasets of known length, code that
is really verified in the sandbox; one after another on the same machine, each against one trial per dataset with all inline.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from agents.embedding import packaged_files
from evaluation.planner import Site, plan_trials
from evaluation.records import dataset_folder
from evaluation.simulation import Decoupling
from evaluation.workload import Dataset, Piece, Slot, cut

__all__ = ["measured", "why_not"]

PITSTOP = Path(sys.executable).with_name("pitstop")
TRIAL = Path(__file__).with_name("known_length_trial.py")
PORT = 8000
LINK_MBIT = 92
SLOTS, CPU_WORKERS = 2, 2
START_SECONDS = 1.0
VERIFY_SECONDS = 0.4
# Name: (samples, seconds of generation, whether each sample is code that takes VERIFY_SECONDS of processor time).
DATASETS = {
    "exact_a": (20, 1.0, False), "exact_b": (20, 1.5, False), "exact_c": (20, 1.0, False), "exact_d": (20, 2.0, False),
    "long": (60, 10.0, False), "exact_e": (20, 2.5, False), "exact_f": (20, 3.0, False), "code_a": (8, 2.0, True),
    "code_b": (12, 3.0, True), "code_c": (6, 2.0, True),
}  # fmt: skip
INLINE = Decoupling(loading=False, metrics=False, planned=False)
WAYS = {
    "all inline": INLINE,
    "loading": Decoupling(loading=True, metrics=False, planned=False),
    "metrics": Decoupling(loading=False, metrics=True, planned=False),
    "planning": Decoupling(loading=False, metrics=False, planned=True),
}


def why_not() -> str | None:
    """Why it cannot be measured here; None where it can."""
    if os.geteuid() != 0:
        return "a throttled link needs root"
    missing = [program for program in ("ip", "tc", "bwrap") if shutil.which(program) is None]
    return f"{missing[0]} is not installed" if missing else None


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def storage(folder: Path) -> Iterator[str]:
    """The address of a server in a network namespace of its own that gives out `folder` over a link of LINK_MBIT."""
    tag = f"pse{os.getpid() % 100000}"
    sh("ip", "netns", "add", tag)
    try:
        sh("ip", "link", "add", f"{tag}h", "type", "veth", "peer", "name", f"{tag}s", "netns", tag)
        sh("ip", "addr", "add", "10.231.77.1/30", "dev", f"{tag}h")
        sh("ip", "link", "set", f"{tag}h", "up")
        inside = ("ip", "netns", "exec", tag)
        sh(*inside, "ip", "addr", "add", "10.231.77.2/30", "dev", f"{tag}s")
        sh(*inside, "ip", "link", "set", f"{tag}s", "up")
        shaped = ("rate", f"{LINK_MBIT}mbit", "burst", "64kb", "latency", "100ms")
        sh(*inside, "tc", "qdisc", "add", "dev", f"{tag}s", "root", "tbf", *shaped)
        serving = [*inside, sys.executable, "-m", "http.server", str(PORT), "--directory", str(folder), "--protocol", "HTTP/1.1"]
        server = subprocess.Popen(serving, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"http://10.231.77.2:{PORT}"
        finally:
            server.kill()
            server.wait()
    finally:
        subprocess.run(["ip", "netns", "del", tag], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{tag}h"], capture_output=True, check=False)


@dataclass(frozen=True, slots=True)
class Bench:
    """Files of one way to run: its specification, the folder of its outputs and verdicts, where the model is had."""

    folder: Path
    address: str

    def write(self) -> None:
        burn = f"import time\nwhile time.process_time() < {VERIFY_SECONDS}: pass\nassert answer() is not None"
        rows = [{"sample": i, "answer": f"return {i}", "prompt": "def answer():\n", "tests": burn} for i in range(60)]
        (self.folder / "references.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        each = {name: gpu / samples for name, (samples, gpu, _) in DATASETS.items()}
        (self.folder / "seconds.json").write_text(json.dumps(each))
        entries = [
            {
                "name": name,
                "samples": samples,
                "references": "references.jsonl",
                "verify": "code" if code else "exact",
                "gpu_seconds": gpu,
                "cpu_seconds": dataset.cpu_seconds,
            }
            for (name, (samples, gpu, code)), dataset in zip(DATASETS.items(), datasets(), strict=True)
        ]
        document = {
            "run": "bench",
            "model": self.address,
            "nodes": {"localhost": SLOTS},
            "cpu_workers": CPU_WORKERS,
            "startup_seconds": START_SECONDS,
            "generate": " ".join(self.words("{model}", "{work}")),
            "datasets": entries,
        }
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(document))

    def words(self, model: str, work: str) -> list[str]:
        return [sys.executable, str(TRIAL), "--model", model, "--work", work, "--seconds", str(self.folder / "seconds.json")]

    def generate(self, name: str, pieces: Sequence[Piece], model: str) -> None:
        tasks = []
        for piece in pieces:
            output = dataset_folder(self.folder / "run" / "outputs", piece.dataset)
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"{piece.first:09d}-{piece.last:09d}.{name}.jsonl"
            tasks.append({"dataset": piece.dataset, "first": piece.first, "last": piece.last, "output": str(path)})
        work = self.folder / f"work-{name}.jsonl"
        work.write_text("".join(json.dumps(task) + "\n" for task in tasks))
        subprocess.run(self.words(model, str(work)), check=True)

    def verify(self, name: str, piece: Piece) -> None:
        asked = self.folder / f"asked-{name}-{piece.dataset}-{piece.first}.json"
        asked.write_text(json.dumps(list(range(piece.first, piece.last))))
        verdicts = dataset_folder(self.folder / "run" / "verdicts", piece.dataset) / f"{name}-{piece.first}.jsonl"
        files = ["--run", str(self.folder / "run"), "--samples", str(asked), "--verdicts", str(verdicts)]
        words = [str(PITSTOP), "trials", "verify", str(self.folder / "spec.yaml"), "--dataset", piece.dataset, *files]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def stage(self) -> str:
        words = [str(PITSTOP), "trials", "stage", str(self.folder / "spec.yaml"), "--json"]
        done = subprocess.run([*words, "--shared-memory", str(self.folder / "shm")], check=True, capture_output=True, text=True)
        return str(json.loads(done.stdout)["path"])

    def verdicts(self) -> int:
        """Samples with a verdict; each file holds others."""
        return sum(len(path.read_text().splitlines()) for path in (self.folder / "run" / "verdicts").glob("*/*.jsonl"))


def datasets() -> list[Dataset]:
    return [
        Dataset(name, samples, gpu, samples * (VERIFY_SECONDS + 0.1) if code else 0.2)
        for name, (samples, gpu, code) in DATASETS.items()
    ]


def run_way(bench: Bench, way: Decoupling) -> None:
    """Slots that take trials as they fall free, with what `way` leaves inline done while the slot is held."""
    model = bench.stage() if way.loading else bench.address
    slots = tuple(Slot("localhost", index) for index in range(SLOTS))
    if way.planned:
        load = packaged_files().model.stat().st_size * 8 / (LINK_MBIT * 1e6) * SLOTS
        inline = [Dataset(item.name, item.samples, item.gpu_seconds + item.cpu_seconds) for item in datasets()]
        plan = plan_trials(Site(slots, CPU_WORKERS, START_SECONDS + load), inline)
        queues = {slot: deque(trial.pieces for trial in plan.trials if trial.slot == slot) for slot in slots}
    else:
        shared: deque[tuple[Piece, ...]] = deque((piece,) for piece in cut(datasets(), {}, 0.0))
        queues = dict.fromkeys(slots, shared)
    with ThreadPoolExecutor(CPU_WORKERS) as workers, ThreadPoolExecutor(SLOTS) as running:

        def serve(slot: Slot) -> None:
            while queues[slot]:
                pieces = queues[slot].popleft()
                name = f"{slot.index}-{len(queues[slot])}"
                bench.generate(name, pieces, model)
                jobs = [workers.submit(bench.verify, name, piece) for piece in pieces] if way.metrics else []
                verifications.extend(jobs)
                for piece in pieces if not way.metrics else ():
                    bench.verify(name, piece)

        verifications: list[Future[None]] = []
        for future in [running.submit(serve, slot) for slot in slots]:
            future.result()
        for future in verifications:
            future.result()


def run_all(bench: Bench) -> None:
    words = [str(PITSTOP), "trials", "run", str(bench.folder / "spec.yaml"), "--folder", str(bench.folder / "run"), "--json"]
    subprocess.run([*words, "--shared-memory", str(bench.folder / "shm")], check=True, capture_output=True)


def measured() -> list[str]:
    """Rows of Markdown: wall seconds of each way, and how many times as long all inline takes."""
    samples = sum(samples for samples, _, _ in DATASETS.values())
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        given = Path(root) / "storage"
        given.mkdir()
        shutil.copy(packaged_files().model, given / "model.onnx")
        with storage(given) as address:
            for name in (*WAYS, "all"):
                bench = Bench(Path(root) / name.replace(" ", "-"), f"{address}/model.onnx")
                bench.folder.mkdir()
                bench.write()
                began = time.monotonic()
                if name in WAYS:
                    run_way(bench, WAYS[name])
                else:
                    run_all(bench)
                seconds[name] = time.monotonic() - began
                if bench.verdicts() != samples:
                    raise RuntimeError(f"{name}: {bench.verdicts()} verdicts of {samples} samples")
    size = packaged_files().model.stat().st_size
    gpu, cpu = sum(item.gpu_seconds for item in datasets()), sum(samples * code for samples, _, code in DATASETS.values())
    what = (
        f"Real processes: {len(DATASETS)} datasets ({samples} samples, {gpu:.0f} s of generation, {cpu} samples of code of "
        f"{VERIFY_SECONDS} s of processor each, in the sandbox), {SLOTS} slots, {CPU_WORKERS} CPU workers, all-MiniLM-L6-v2 as "
        f"ONNX ({size / 1e6:.0f} MB) behind a link of {LINK_MBIT} Mbit/s (tbf, network namespace). All inline: one trial per "
        "dataset, each loading over the link and verified while it holds its slot. One run of each, one after another."
    )
    return [
        what,
        "",
        "| decoupled | seconds | all inline takes times as long |",
        "|---|---:|---:|",
        *(f"| {name} | {value:.1f} | {seconds['all inline'] / value:.2f} |" for name, value in seconds.items()),
    ]
