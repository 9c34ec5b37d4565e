"""The specification of an evaluation run: SPEC.yaml as checked dataclasses."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from evaluation.sandbox import Limits
from evaluation.sources import CommandSource, ModelSource, PathSource, UrlSource
from evaluation.workload import Dataset, Slot
from rules.file_errors import cannot_read
from rules.identity import addressable

__all__ = ["DatasetSpec", "RunSpec", "SpecError", "VerifyCommand", "VerifyKind", "read_spec"]

GENERATE_FIELDS = ("model", "dataset", "first", "last", "output", "work", "slot")
VERIFY_FIELDS = ("dataset", "outputs", "verdicts")
MODEL = {"path", "url", "command", "sha256"}
ADDRESS = ("http://", "https://")
HARNESS = {"python", "model", "model_args", "batch_size", "include_path"}
TOP = {
    "harness",
    "run",
    "model",
    "nodes",
    "cpu_workers",
    "datasets",
    "generate",
    "shared_memory_gib",
    "startup_seconds",
    "trial_seconds",
    "python",
}
ENTRY = {
    "name",
    "samples",
    "references",
    "verify",
    "gpu_seconds",
    "cpu_seconds",
    "splittable",
    "generate",
    "timeout_seconds",
    "memory_mib",
}


class SpecError(ValueError):
    """The specification cannot be used; one line that says what to change."""


class VerifyKind(StrEnum):
    """How Pitstop itself verifies a sample; anything else is a command of the site's."""

    EXACT = "exact"
    NUMBER = "number"
    CODE = "code"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """A command's words: it reads {outputs} (JSON lines) and appends {"sample", "score"} lines to {verdicts}."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """`generate`: the command's words with their placeholders. `gpu_seconds`, `cpu_seconds`: None where nobody said."""

    name: str
    samples: int
    references: Path | None
    verify: VerifyKind | VerifyCommand
    limits: Limits
    generate: tuple[str, ...]
    gpu_seconds: float | None
    cpu_seconds: float | None
    splittable: bool

    def expected(self, prior: tuple[float, float, bool]) -> Dataset:
        """For the planner: the times that the specification gives, else `prior` (gpu seconds, cpu seconds, known).

        Only commands that take a list of work generate several pieces in one process.
        """
        gpu = prior[0] if self.gpu_seconds is None else self.gpu_seconds
        cpu = prior[1] if self.cpu_seconds is None else self.cpu_seconds
        runner = " ".join(self.generate) if any("{work}" in word for word in self.generate) else ""
        return Dataset(self.name, self.samples, gpu, cpu, prior[2] or self.gpu_seconds is not None, self.splittable, runner)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: `name` is its folder's and its page's name. `python`: the interpreter that verifies code samples."""

    name: str
    model: ModelSource
    slots: tuple[Slot, ...]
    cpu_workers: int
    datasets: tuple[DatasetSpec, ...]
    shared_memory_bytes: int
    startup_seconds: float
    trial_seconds: float
    python: str


def number(document: Mapping[str, Any], name: str, default: Any, *, least: float, whole: bool = False) -> Any:
    """The field as a number of at least `least`, or `default`. Raises SpecError."""
    value = document.get(name, default)
    if value is default and name not in document:
        return default
    right = isinstance(value, int) if whole else isinstance(value, int | float)
    if not right or isinstance(value, bool) or not least <= value < 1e12:
        raise SpecError(f"{name}: {value!r} is not {'a whole number' if whole else 'a number'} of at least {least:g}")
    return value


def known_fields(document: object, allowed: set[str], where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise SpecError(f"{where} has to be a mapping of names to values")
    strangers = sorted(str(name) for name in document if name not in allowed)
    if strangers:
        raise SpecError(f"{where}: {strangers[0]!r} is not a field; there are {', '.join(sorted(allowed))}")
    return document


def command_words(value: str, fields: Sequence[str], where: str) -> tuple[tuple[str, ...], set[str]]:
    """The words of a command template and the placeholders in it. Raises SpecError where one is not ours."""
    try:
        words = tuple(shlex.split(value))
        names = {name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None}
    except ValueError as problem:
        raise SpecError(f"{where}: the command cannot be read: {problem}") from None
    if names - set(fields):
        raise SpecError(f"{where}: {{{sorted(names - set(fields))[0]}}} is not a placeholder; there are {', '.join(fields)}")
    return words, names


def read_generate(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{where}: 'generate' has to be a command, such as: python gen.py --model {{model}} --work {{work}}")
    words, names = command_words(value, GENERATE_FIELDS, where)
    if "work" not in names and not {"dataset", "output"} <= names:
        raise SpecError(f"{where}: 'generate' has to name {{work}}, or {{dataset}} and {{output}}")
    return words


def read_verify(value: object, where: str) -> VerifyKind | VerifyCommand:
    if isinstance(value, str) and value in list(VerifyKind):
        return VerifyKind(value)
    if not isinstance(value, str) or "{" not in value:
        raise SpecError(
            f"{where}: verify {value!r} is neither one of {', '.join(VerifyKind)} nor a command with {{outputs}} and {{verdicts}}"
        )
    words, names = command_words(value, VERIFY_FIELDS, where)
    if not {"outputs", "verdicts"} <= names:
        raise SpecError(f"{where}: the command in 'verify' has to name {{outputs}} and {{verdicts}}")
    return VerifyCommand(words)


@dataclass(frozen=True, slots=True)
class Harness:
    """How lm-evaluation-harness generates and scores, each dataset being one of its tasks."""

    generate: tuple[str, ...]
    verify: VerifyCommand


def read_harness(document: object, base: Path) -> Harness | None:
    """`harness: {python, model, model_args, include_path}`: evaluation/harness.py under the interpreter that has lm_eval."""
    if document is None:
        return None
    entry = known_fields(document, HARNESS, "'harness'")
    python, model = entry.get("python"), entry.get("model")
    if not isinstance(python, str) or not isinstance(model, str):
        raise SpecError("'harness' has to name 'python' (the interpreter that has lm_eval) and 'model' (such as hf or vllm)")
    texts = {name: str(entry[name]) for name in ("model_args", "batch_size") if name in entry}
    include = ("--include-path", str((base / str(entry["include_path"])).resolve())) if "include_path" in entry else ()
    options = [word for name, text in texts.items() for word in (f"--{name.replace('_', '-')}", text)]
    script = str(Path(__file__).with_name("harness.py"))
    plain = [word.replace("{", "{{").replace("}", "}}") for word in (python, script, model, *options, *include)]
    python, script, model, *rest = plain
    return Harness(
        (python, script, "generate", "--model", model, "--path", "{model}", "--work", "{work}", *rest),
        VerifyCommand(
            (python, script, "score", "--dataset", "{dataset}", "--outputs", "{outputs}", "--verdicts", "{verdicts}", *include)
        ),
    )


def read_dataset(document: object, base: Path, common: object, harness: Harness | None) -> DatasetSpec:
    entry = known_fields(document, ENTRY, "an entry of 'datasets'")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError("an entry of 'datasets' has no name")
    where = f"dataset {name}"
    by_harness = harness is not None and "generate" not in entry
    verify = harness.verify if harness is not None and "verify" not in entry else read_verify(entry.get("verify", "exact"), where)
    references = entry.get("references")
    if isinstance(verify, VerifyKind) and not isinstance(references, str):
        raise SpecError(f"{where}: 'references' has to name a file of JSON lines with 'sample' and what '{verify}' compares with")
    generate = harness.generate if harness is not None and by_harness else read_generate(entry.get("generate", common), where)
    samples = number(entry, "samples", None, least=1, whole=True)
    if samples is None:
        raise SpecError(f"{where}: 'samples' (how many prompts it has) is missing")
    splittable = entry.get("splittable", True)
    if not isinstance(splittable, bool):
        raise SpecError(f"{where}: splittable has to be true or false")
    limits = Limits(
        seconds=number(entry, "timeout_seconds", 10.0, least=0.1),
        memory_bytes=number(entry, "memory_mib", 1024, least=16, whole=True) << 20,
    )
    takes_parts = any("{work}" in word or "{first}" in word for word in generate)
    return DatasetSpec(
        name,
        samples,
        None if references is None else (base / references).resolve(),
        verify,
        limits,
        generate,
        number(entry, "gpu_seconds", None, least=0),
        number(entry, "cpu_seconds", None, least=0),
        splittable and takes_parts,
    )


def read_slots(nodes: object) -> tuple[Slot, ...]:
    if not isinstance(nodes, Mapping) or not nodes:
        raise SpecError("'nodes' has to say how many slots each node gives, such as: nodes: {localhost: 2}")
    slots: list[Slot] = []
    for node, count in nodes.items():
        if not isinstance(node, str) or not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= 1024:
            raise SpecError(f"nodes: {node!r}: {count!r} is not a number of slots from 1 to 1024")
        slots += [Slot(node, index) for index in range(count)]
    return tuple(slots)


def read_model(document: object, base: Path) -> ModelSource:
    """`model: PATH`, `model: https://...`, or `model: {path|url|command: ..., sha256: HEX or {name: HEX}}`."""
    if isinstance(document, str) and document:
        document = {"url" if document.startswith(ADDRESS) else "path": document}
    if document is None:
        raise SpecError("'model' has to name the checkpoint: a folder, a file, an http(s) address, or {command: ...}")
    entry = known_fields(document, MODEL, "'model'")
    kinds = [name for name in ("path", "url", "command") if name in entry]
    if len(kinds) != 1 or not isinstance(entry[kinds[0]], str) or not entry[kinds[0]].strip():
        raise SpecError("'model' has to have one of 'path', 'url' and 'command', a text")
    digests = entry.get("sha256", {})
    digests = {"": digests} if isinstance(digests, str) else digests
    if not isinstance(digests, Mapping) or not all(
        isinstance(name, str) and isinstance(digest, str) and re.fullmatch("[0-9a-fA-F]{64}", digest)
        for name, digest in digests.items()
    ):
        raise SpecError("model: 'sha256' has to be 64 hexadecimal digits, or a mapping of file names to such")
    value = entry[kinds[0]]
    match kinds[0]:
        case "path":
            return PathSource((base / value).resolve(), digests)
        case "url" if value.startswith(ADDRESS):
            return UrlSource(value, digests)
        case "url":
            raise SpecError(f"model: {value!r} is no http(s) address; give other stores as a 'command' that fills {{target}}")
    words, names = command_words(value, ("target",), "model")
    if "target" not in names:
        raise SpecError("model: 'command' has to name {target}, the folder that it fills")
    return CommandSource(words, digests)


def read_spec(path: Path) -> RunSpec:
    """Read and check SPEC.yaml; paths in it are relative to its folder. Raises SpecError."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise SpecError(cannot_read(path, problem)) from None
    except yaml.YAMLError as problem:
        raise SpecError(f"{path} is not YAML: {' '.join(str(problem).split())[:200]}") from None
    document = known_fields(loaded, TOP, str(path))
    entries = document.get("datasets")
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise SpecError("'datasets' has to be a list of at least one dataset")
    base = path.parent.resolve()
    harness = read_harness(document.get("harness"), base)
    datasets = tuple(read_dataset(entry, base, document.get("generate"), harness) for entry in entries)
    names = [dataset.name for dataset in datasets]
    if len(set(names)) != len(names):
        raise SpecError(f"dataset {next(name for name in names if names.count(name) > 1)} is listed twice")
    name, python = document.get("run", path.stem), document.get("python", "/usr/bin/python3")
    if not isinstance(name, str) or not isinstance(python, str):
        raise SpecError("'run' and 'python' have to be texts")
    if not addressable(name):
        raise SpecError(f"'run': {name!r} names no folder: a name without a slash is needed")
    return RunSpec(
        name,
        read_model(document.get("model"), base),
        read_slots(document.get("nodes", {"localhost": 1})),
        number(document, "cpu_workers", 1, least=1, whole=True),
        datasets,
        int(number(document, "shared_memory_gib", 64, least=0.001) * (1 << 30)),
        number(document, "startup_seconds", 10.0, least=0),
        number(document, "trial_seconds", 600.0, least=1),
        python,
    )
