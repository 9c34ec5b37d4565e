"""A run carried out: the coordinator's commands become processes and files, their ends become its events.

RUN/ holds outputs/, verdicts/, work/ (what each process was asked), logs/ and timeline.jsonl. All state is there: a coordinator
that died is started again on the same folder, reads what is on disk and goes on with the rest.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from evaluation.coordinator import RunState, begin, step
from evaluation.drivers import Driver, Ended
from evaluation.events import (
    Command,
    Event,
    NodeLost,
    NodeModel,
    PieceWritten,
    SlotsChanged,
    StageEnded,
    StageModel,
    StartTrial,
    StartVerification,
    StopTrial,
    Tick,
    TrialEnded,
    VerificationEnded,
)
from evaluation.planner import Site
from evaluation.priors import Prior, expected_times
from evaluation.records import Appender, dataset_folder, read_records, records_of
from evaluation.spec import DatasetSpec, RunSpec
from evaluation.workload import Piece, Slot

__all__ = ["TEMPORARY_FAILURE", "Entry", "Failure", "RunFolder", "RunInUse", "Runner"]

TICK_SECONDS = 2.0
TEMPORARY_FAILURE = 75
"""Exit status (EX_TEMPFAIL) of our own commands for what another try may mend."""


class RunInUse(Exception):
    """Another coordinator works on this run's folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One process of a run in its timeline. Seconds since the epoch; `label` names datasets, `row` the slot, node or "cpu".

    `measured`: [dataset, samples, seconds] of each piece that it finished; `size`: bytes that a precursor brought in.
    """

    kind: str
    row: str
    label: str
    start: float
    end: float
    error: str | None
    measured: tuple[tuple[str, int, float], ...] = ()
    size: int = 0


class RunFolder:
    """The folder of one run, locked for as long as this object lives. Raises RunInUse."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("outputs", "verdicts", "work", "logs"):
            (path / name).mkdir(parents=True, exist_ok=True)
        self.lock: IO[str] = (path / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUse(f"another pitstop trials run is at work in {path}") from None
        life = sum(1 for _ in (path / "work").glob("life-*"))
        (path / "work" / f"life-{life}").touch()
        self.life = f"a{life}"

    def samples(self, kind: str, dataset: DatasetSpec) -> frozenset[int]:
        return frozenset(read_records(dataset_folder(self.path / kind, dataset.name), dataset.samples).by_sample)

    def timeline(self) -> list[Entry]:
        """Every process of all lives of the run."""
        path = self.path / "timeline.jsonl"
        entries = [Entry(**record) for record in records_of(path)] if path.exists() else []
        return [
            replace(entry, measured=tuple((name, count, seconds) for name, count, seconds in entry.measured)) for entry in entries
        ]


@dataclass(frozen=True, slots=True)
class Failure:
    """A process of the run that ended badly: exit `status` (negative: by that signal), its last words, its log."""

    key: str
    kind: str
    label: str
    node: str
    status: int
    error: str
    log: Path


@dataclass(slots=True)
class Process:
    """What a driver's key stands for."""

    command: StageModel | StartTrial | StartVerification
    started: float
    node: str
    outputs: dict[Piece, Path] = field(default_factory=dict)
    reported: int = 0


def last_words(log: Path) -> str:
    """The last line that a process printed, for a person; at most 300 characters."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return "it printed nothing"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it printed nothing")


class Runner:
    """One coordinator. `own_command` starts `pitstop` (with the subcommands stage, hold, verify) on a node.

    `slots` is asked between events for the slots that may be used now. `tell` hears the state after each change.
    """

    def __init__(
        self,
        spec: RunSpec,
        spec_path: Path,
        folder: RunFolder,
        driver: Driver,
        own_command: Sequence[str],
        shared_memory: Path,
        priors: Mapping[str, Prior],
        *,
        slots: Callable[[], tuple[Slot, ...]],
        tell: Callable[[RunState, Sequence[Command]], None] = lambda state, commands: None,
        failed: Callable[[Failure], None] = lambda failure: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.spec, self.spec_path, self.folder, self.driver = spec, spec_path, folder, driver
        self.own_command, self.shared_memory = tuple(own_command), shared_memory
        self.slots, self.tell, self.failed = slots, tell, failed
        self.clock, self.monotonic, self.sleep = clock, monotonic, sleep
        self.datasets = {dataset.name: dataset for dataset in spec.datasets}
        self.processes: dict[str, Process] = {}
        self.staged: dict[str, Mapping[str, str]] = {}
        self.refused: list[Event] = []
        self.started = 0
        self.next_tick = 0.0
        site = Site(slots(), spec.cpu_workers, spec.startup_seconds, spec.trial_seconds)
        expected = [dataset.expected(expected_times(priors, dataset.name, dataset.samples)) for dataset in spec.datasets]
        self.state = begin(
            site,
            expected,
            {dataset.name: folder.samples("outputs", dataset) for dataset in spec.datasets},
            {dataset.name: folder.samples("verdicts", dataset) for dataset in spec.datasets},
            mounted=spec.model.mounted,
        )

    def run(self, stop: Callable[[], bool] = lambda: False, poll_seconds: float = 0.1) -> RunState:
        """Carry the run on until it is finished or `stop` says so; then everything it started has ended."""
        try:
            self.handle(Tick())
            while not self.state.finished and not stop():
                for event in self.look():
                    self.handle(event)
                self.sleep(poll_seconds)
        finally:
            self.driver.close()
        return self.state

    def look(self) -> list[Event]:
        """What happened since the last look."""
        events, self.refused = self.refused, []
        for ended in self.driver.ended():
            if ended.key in self.processes:
                events += [NodeLost(self.processes[ended.key].node, ended.node_down)] if ended.node_down else []
                events.append(self.ended(ended))
        for process in self.processes.values():
            if isinstance(process.command, StartTrial):
                events += self.written(process, process.command)
        slots = self.slots()
        if slots != self.state.site.slots:
            events.append(SlotsChanged(slots))
        if not events and self.monotonic() >= self.next_tick:
            # Time passes for metric jobs that wait for another try.
            self.next_tick = self.monotonic() + TICK_SECONDS
            events.append(Tick())
        return events

    def handle(self, event: Event) -> None:
        before = self.state
        self.state, commands = step(self.state, event, self.monotonic())
        for command in commands:
            self.carry_out(command)
        if commands or self.state is not before:
            self.tell(self.state, commands)

    def written(self, process: Process, command: StartTrial) -> list[Event]:
        """Pieces of a running trial that are whole: those before one whose output has begun."""
        events: list[Event] = []
        outputs = list(process.outputs.items())
        while process.reported + 1 < len(outputs) and outputs[process.reported + 1][1].exists():
            piece, path = outputs[process.reported]
            events.append(PieceWritten(command.trial, piece.dataset, self.samples_in(piece, path)))
            process.reported += 1
        return events

    def samples_in(self, piece: Piece, path: Path) -> frozenset[int]:
        found = {record.get("sample") for record in records_of(path)}
        return frozenset(sample for sample in range(piece.first, piece.last) if sample in found)

    def carry_out(self, command: Command) -> None:
        match command:
            case StageModel(node):
                room = ("--shared-memory", str(self.shared_memory), "--limit-bytes", str(self.spec.shared_memory_bytes), "--json")
                staging = (*self.own_command, "trials", "stage", str(self.spec_path), *room)
                self.start(f"stage{self.started}", command, node, staging, {})
            case StartTrial():
                self.start_trial(command)
            case StopTrial(trial):
                self.driver.stop(self.key(f"t{trial}"))
            case StartVerification(job, dataset, samples):
                asked = self.folder.path / "work" / f"{self.folder.life}-v{job}.json"
                asked.write_text(json.dumps(sorted(samples)))
                target = dataset_folder(self.folder.path / "verdicts", dataset) / f"{self.folder.life}-v{job}.jsonl"
                files = ("--run", str(self.folder.path), "--samples", str(asked), "--verdicts", str(target))
                verifying = (*self.own_command, "trials", "verify", str(self.spec_path), "--dataset", dataset, *files)
                node = self.state.site.slots[0].node if self.state.site.slots else "localhost"
                whole = Piece(dataset, 0, self.datasets[dataset].samples, 0.0, 0.0)
                self.start(f"v{job}", command, node, verifying, {"CUDA_VISIBLE_DEVICES": ""}, {whole: target})
            case _:
                return

    def start_trial(self, command: StartTrial) -> None:
        """Write what is asked, and start the command that the first piece's dataset names (pieces of a trial share it)."""
        name = f"{self.folder.life}-t{command.trial}"
        outputs: dict[Piece, Path] = {}
        for piece in command.pieces:
            folder = dataset_folder(self.folder.path / "outputs", piece.dataset)
            folder.mkdir(exist_ok=True)
            outputs[piece] = folder / f"{piece.first:09d}-{piece.last:09d}.{name}.jsonl"
        work = self.folder.path / "work" / f"{name}.jsonl"
        work.write_text(
            "".join(
                json.dumps({"dataset": piece.dataset, "first": piece.first, "last": piece.last, "output": str(path)}) + "\n"
                for piece, path in outputs.items()
            )
        )
        staged = self.staged.get(command.slot.node) if command.model is NodeModel.STAGED else None
        model = staged["path"] if staged else str(self.spec.model)
        first, path = next(iter(outputs.items()))
        values = {"model": model, "dataset": first.dataset, "first": first.first, "last": first.last, "output": path}
        words = [word.format(**values, work=work, slot=command.slot.index) for word in self.datasets[first.dataset].generate]
        if staged:
            hold = ("trials", "hold", staged["key"], "--shared-memory", str(self.shared_memory))
            words = [*self.own_command, *hold, "--", *words]
        environment = {"CUDA_VISIBLE_DEVICES": str(command.slot.index), "PITSTOP_TRIAL": name, "PITSTOP_MODEL": model}
        self.start(f"t{command.trial}", command, command.slot.node, words, environment, outputs)

    def key(self, name: str) -> str:
        return f"{self.folder.life}-{name}"

    def log(self, key: str) -> Path:
        return self.folder.path / "logs" / f"{key}.log"

    def start(
        self,
        name: str,
        command: StageModel | StartTrial | StartVerification,
        node: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        outputs: dict[Piece, Path] | None = None,
    ) -> None:
        """Start a process; one that cannot be started has ended at once, with the reason as its last words."""
        key = self.key(name)
        self.started += 1
        self.processes[key] = Process(command, self.clock(), node, outputs or {})
        try:
            self.driver.start(key, words, node, environment, self.log(key))
        except OSError as problem:
            with self.log(key).open("a") as log:
                log.write(f"{words[0]} cannot be started: {problem.strerror or problem}\n")
            self.refused.append(self.ended(Ended(key, 127)))

    def ended(self, ended: Ended) -> Event:
        """The event that the end of a process is, and its line in the timeline."""
        process = self.processes.pop(ended.key)
        words = last_words(self.log(ended.key))
        how = f"killed by signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}: {words}"
        error = None if ended.status == 0 else how
        match process.command:
            case StageModel(node):
                if error is None:
                    self.staged[node] = json.loads(words)
                size = 0 if error or self.staged[node]["reused"] else int(self.staged[node]["size"])
                self.record(process, ended, "stage", node, "model", error, size=size)
                return StageEnded(node, error, again=ended.status < 0 or ended.status == TEMPORARY_FAILURE)
            case StartTrial(trial, slot, pieces):
                samples: dict[str, frozenset[int]] = {}
                measured: list[tuple[str, int, float]] = []
                before = process.started + self.spec.startup_seconds
                for piece, path in process.outputs.items():
                    if path.exists():
                        found = self.samples_in(piece, path)
                        samples[piece.dataset] = samples.get(piece.dataset, frozenset()) | found
                        end = path.stat().st_mtime
                        measured.append((piece.dataset, len(found), max(0.0, end - before)))
                        before = end
                label = "+".join(dict.fromkeys(piece.dataset for piece in pieces))
                self.record(process, ended, "trial", str(slot), label, error, measured)
                return TrialEnded(trial, samples, error, ended.lost)
            case StartVerification(job, dataset, samples_asked):
                verdicts = [self.samples_in(piece, path) for piece, path in process.outputs.items() if path.exists()]
                verified = frozenset[int]().union(*verdicts) & samples_asked
                self.record(
                    process,
                    ended,
                    "verification",
                    "cpu",
                    dataset,
                    error,
                    [(dataset, len(verified), self.clock() - process.started)],
                )
                return VerificationEnded(job, verified, error)

    def record(
        self,
        process: Process,
        ended: Ended,
        kind: str,
        row: str,
        label: str,
        error: str | None,
        measured: Sequence[tuple[str, int, float]] = (),
        size: int = 0,
    ) -> None:
        entry = Entry(kind, row, label, process.started, self.clock(), error, tuple(measured), size)
        with Appender(self.folder.path / "timeline.jsonl") as timeline:
            timeline.write(asdict(entry))
        if error is not None:
            self.failed(Failure(ended.key, kind, label, process.node, ended.status, error, self.log(ended.key)))
