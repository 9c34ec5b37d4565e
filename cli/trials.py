"""`pitstop trials`: evaluate a checkpoint on many datasets, with loading, generation and verification taken apart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import CommandLine
from cli.main import UsageError, fail
from evaluation.records import Appender, dataset_folder, read_records, records_of
from evaluation.runner import TEMPORARY_FAILURE, RunFolder, RunInUse, Runner
from evaluation.sources import PathSource, StagingError
from evaluation.spec import DatasetSpec, RunSpec, SpecError, VerifyCommand, VerifyKind, read_spec
from evaluation.staging import ModelCache
from rules.file_errors import cannot_read

if TYPE_CHECKING:
    from cli.trials_service import ServiceListener
    from evaluation.verification import Verifier

__all__ = ["app"]

SHARED_MEMORY = Path("/dev/shm/pitstop-models")

app = CommandLine(help="Evaluate a checkpoint without waiting.", rich_markup_mode=None)

SpecPath = Annotated[Path, typer.Argument(help="SPEC.yaml: model, nodes, datasets (docs/evaluation.md).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SharedMemory = Annotated[Path, typer.Option(help="folder of staged models")]


def specification(path: Path) -> RunSpec:
    try:
        return read_spec(path)
    except SpecError as problem:
        raise UsageError(str(problem)) from None


def own_command() -> tuple[str, ...]:
    """How a process on a node starts this same `pitstop`."""
    beside = Path(sys.executable).with_name("pitstop")
    found = str(beside) if beside.exists() else shutil.which("pitstop")
    if found is None:
        raise UsageError("the pitstop command is not found beside the Python that runs it")
    return (found,)


@app.command("run")
def run_trials(
    spec_path: SpecPath,
    folder: Annotated[Path | None, typer.Option(help="folder of the run; the same again goes on")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="start trials as steps of this Slurm allocation")] = False,
    service: Annotated[str | None, typer.Option(help="tell this pitstop serve of progress and failures")] = None,
    token_file: Annotated[Path | None, typer.Option(envvar="PITSTOP_TOKEN_FILE", help="file with the token")] = None,
    shared_memory: SharedMemory = SHARED_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Carry out SPEC.yaml; started again on the same folder it goes on where it was. Exit status 1: something was given up."""
    from cli.run import data_directory
    from cli.trials_progress import Listeners
    from evaluation.drivers.local import LocalDriver
    from evaluation.drivers.slurm import SlurmDriver, allocated_nodes
    from evaluation.gantt import draw
    from evaluation.priors import read_priors, write_priors
    from evaluation.report import bars_of, learnt, run_report

    spec = specification(spec_path)
    slots = spec.slots
    if slurm:
        try:
            nodes = allocated_nodes(os.environ)
        except OSError as problem:
            raise UsageError(str(problem)) from None
        slots = tuple(slot for slot in slots if slot.node in nodes)
        if not slots:
            raise UsageError(f"none of the nodes in {spec_path} is in this allocation ({', '.join(nodes)})")
    path = folder or data_directory(None) / "trials" / spec.name
    priors_path = path.parent / "run-times.json"
    try:
        run_folder = RunFolder(path)
    except RunInUse as problem:
        raise UsageError(str(problem)) from None
    except OSError as problem:
        raise UsageError(f"the run's folder {path} cannot be made: {problem.strerror}") from None
    priors = read_priors(priors_path)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopped.append(received))
    told = listener(spec, service, token_file) if service else None
    listeners = Listeners(slots, told, progress=not as_json and sys.stderr.isatty())
    driver = SlurmDriver() if slurm else LocalDriver()
    try:
        runner = Runner(
            spec,
            spec_path,
            run_folder,
            driver,
            own_command(),
            shared_memory,
            priors,
            slots=listeners.slots,
            tell=listeners.hear,
            failed=listeners.failed,
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    with listeners:
        state = runner.run(stop=lambda: bool(stopped))
        timeline = run_folder.timeline()
        report = run_report(spec.name, str(spec.model), path, state, timeline)
        if told is not None:
            told.ended(report)
    (path / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (path / "gantt.svg").write_text(draw(bars_of(timeline), f"{spec.name} on {len(slots)} slots"))
    write_priors(priors_path, learnt(priors, timeline))
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report, path)
    raise SystemExit(0 if state.finished and not any(entry.given_up for entry in state.datasets.values()) else 1)


def listener(spec: RunSpec, service: str, token_file: Path | None) -> ServiceListener:
    """Raises UsageError where the address or the token file is not one."""
    from cli.run import service_clients
    from cli.trials_service import ServiceListener
    from node.service_client import ServiceClient

    address, token = service_clients(service, token_file)
    return ServiceListener(spec, lambda: ServiceClient(address, token, timeout_seconds=10.0))


def print_report(report: Mapping[str, Any], folder: Path) -> None:
    width = max(len(dataset["name"]) for dataset in report["datasets"])
    for dataset in report["datasets"]:
        score = "-" if dataset["score"] is None else f"{dataset['score']:.4f}"
        trouble = f"  {dataset['failed_samples']} failed samples" if dataset["failed_samples"] else ""
        trouble += f"  GIVEN UP: {dataset['given_up']}" if dataset["given_up"] else ""
        print(f"{dataset['name']:<{width}}  {score:>7}  {dataset['verified']}/{dataset['samples']}{trouble}")
    print(f"{report['state']} after {report['makespan_seconds']:.1f} s, {report['trials']} trials on {report['slots']} slots")
    if report["saved"]:
        shares = ", ".join(f"{name} {ratio:.2f}" for name, ratio in report["saved"].items())
        print(f"one trial per dataset, all inline, would take this many times as long (simulated at these times): {shares}")
    print(f"{folder}/report.json, {folder}/gantt.svg")


@app.command()
def plan(spec_path: SpecPath, as_json: AsJson = False) -> None:
    """Show the plan of SPEC.yaml without starting anything."""
    from dataclasses import asdict

    from cli.run import data_directory
    from evaluation.planner import Site, plan_trials
    from evaluation.priors import expected_times, read_priors

    spec = specification(spec_path)
    priors = read_priors(data_directory(None) / "trials" / "run-times.json")
    datasets = [dataset.expected(expected_times(priors, dataset.name, dataset.samples)) for dataset in spec.datasets]
    planned = plan_trials(Site(spec.slots, spec.cpu_workers, spec.startup_seconds, spec.trial_seconds), datasets)
    if as_json:
        print(json.dumps(asdict(planned)))
        return
    for trial in planned.trials:
        work = ", ".join(f"{piece.dataset}[{piece.first}:{piece.last}]" for piece in trial.pieces)
        print(f"{trial.start:8.1f} s  {trial.slot!s:<16} {work}")
    guessed = [dataset.name for dataset in datasets if not dataset.known]
    if guessed:
        print(f"run times of {', '.join(guessed)} are guessed: give gpu_seconds and cpu_seconds, or run once")
    print(planned.reason)


@app.command()
def stage(
    model: Annotated[Path, typer.Argument(help="the checkpoint, a folder or a file; or SPEC.yaml, for the model that it names")],
    shared_memory: SharedMemory = SHARED_MEMORY,
    limit_bytes: Annotated[int, typer.Option(min=1, help="bytes that all staged models may take")] = 64 << 30,
    as_json: AsJson = False,
) -> None:
    """Bring a model into this node's shared memory, once; exit status 75 where another try may help."""
    source = specification(model).model if model.suffix in (".yaml", ".yml") else PathSource(model)
    try:
        staged = ModelCache(shared_memory, limit_bytes).stage(source)
    except StagingError as problem:
        fail(str(problem), TEMPORARY_FAILURE if problem.again else 1)
    except OSError as problem:
        fail(f"{shared_memory} cannot be used: {problem.strerror}", TEMPORARY_FAILURE)
    if as_json:
        print(json.dumps({"key": staged.key, "path": str(staged.path), "size": staged.size, "reused": staged.reused}))
    else:
        print(f"{staged.path}: {staged.size:,} bytes{' (were there)' if staged.reused else ''}")


@app.command()
def hold(
    key: Annotated[str, typer.Argument(help="key of a staged model")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...")],
    shared_memory: SharedMemory = SHARED_MEMORY,
) -> None:
    """Become COMMAND, and count as a user of the staged model until it ends; exit status 75 where the model is gone."""
    try:
        ModelCache(shared_memory, 1).hold(key, os.getpid())
    except (StagingError, OSError) as problem:
        fail(str(problem), TEMPORARY_FAILURE)
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        fail(f"{command[0]} cannot be started: {problem.strerror}", 127)


@app.command()
def verify(
    spec_path: SpecPath,
    run: Annotated[Path, typer.Option(help="folder of the run")],
    dataset: Annotated[str, typer.Option(help="name of the dataset")],
    verdicts: Annotated[Path, typer.Option(help="file that takes the verdicts")],
    samples: Annotated[Path | None, typer.Option(help="JSON list of samples; all that are open without it")] = None,
) -> None:
    """Verify outputs that have no verdict yet; exit status 75 where some are left for another try."""
    spec = specification(spec_path)
    entry = next((entry for entry in spec.datasets if entry.name == dataset), None)
    if entry is None:
        raise UsageError(f"{spec_path} has no dataset {dataset!r}")
    outputs = dict(read_records(dataset_folder(run / "outputs", dataset), entry.samples).by_sample)
    done = read_records(dataset_folder(run / "verdicts", dataset), entry.samples).by_sample.keys()
    if samples is not None:
        try:
            asked = set(json.loads(samples.read_text()))
        except (OSError, ValueError, TypeError) as problem:
            raise UsageError(f"--samples {samples} is no JSON list of numbers: {problem}") from None
        outputs = {sample: output for sample, output in outputs.items() if sample in asked}
    if isinstance(entry.verify, VerifyCommand):
        verify_by_command(entry, entry.verify, outputs, set(done), verdicts)
        return
    from evaluation.sandbox import SandboxUnavailable
    from evaluation.verification import verify_samples

    assert entry.references is not None  # read_spec saw to it
    try:
        references = {record["sample"]: record for record in records_of(entry.references) if type(record.get("sample")) is int}
    except OSError as problem:
        raise UsageError(cannot_read(f"the references of {dataset}, {entry.references}", problem)) from None
    with Appender(verdicts) as appender:

        def write(record: Mapping[str, Any]) -> None:
            appender.write(record)
            appender.file.flush()

        try:
            summary = verify_samples(outputs, references, done, verifier_of(entry, entry.verify, spec.python), write)
        except SandboxUnavailable as problem:
            fail(str(problem), 1)
    if summary.left:
        fail(f"{summary.left} samples are left: {summary.why}", TEMPORARY_FAILURE)
    print(f"{summary.verified} verified, {summary.failed} of them failed")


def verifier_of(entry: DatasetSpec, kind: VerifyKind, python: str) -> Verifier:
    from evaluation import verification

    match kind:
        case VerifyKind.EXACT:
            return verification.exact_verifier
        case VerifyKind.NUMBER:
            return verification.number_verifier
        case VerifyKind.CODE:
            return verification.code_verifier(entry.limits, python)
        case VerifyKind.JUDGE:
            from cli.judge import model_judge

            return verification.judge_verifier(model_judge(entry.name))


def verify_by_command(
    entry: DatasetSpec, command: VerifyCommand, outputs: Mapping[int, Mapping[str, Any]], done: set[int], verdicts: Path
) -> None:
    """Hand the open outputs to the site's command, which appends verdicts."""
    import subprocess

    waiting = [outputs[sample] for sample in sorted(outputs) if sample not in done]
    verdicts.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(json.dumps(output) + "\n" for output in waiting)
        file.flush()
        words = [word.format(dataset=entry.name, outputs=file.name, verdicts=verdicts) for word in command.words]
        try:
            status = subprocess.run(words, check=False).returncode
        except OSError as problem:
            fail(f"{words[0]} cannot be started: {problem.strerror}", 1)
    if status:
        fail(f"{words[0]} ended with status {status}", 1)
