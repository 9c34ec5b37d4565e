"""How a rank is started: its interpreter, its environment, its files. Pure, but for looking a program up."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.formation import Place
from pitstop import protocol

__all__ = [
    "RankFiles",
    "StoreAddress",
    "job_interpreter",
    "launcher_environment",
    "monitor_folder",
    "rank_environment",
    "rank_files",
    "staging_folder",
    "starts_ranks_itself",
]

PYTHON_NAME = re.compile(r"python(\d+(\.\d+)*)?")
SHARED_MEMORY = Path("/dev/shm")
LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun"))
LAUNCHER_MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed"))


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the ranks of a generation meet; `served`: our store process listens there, else rank 0 will."""

    host: str
    port: int
    served: bool


@dataclass(frozen=True, slots=True)
class RankFiles:
    log: Path
    monitor: Path
    error_file: Path


def starts_ranks_itself(command: Sequence[str]) -> bool:
    """Whether the command is a launcher such as torchrun, which makes ranks and rendezvous: it is cared for as one process."""
    words = [Path(command[0]).name, *command[1:]]
    if PYTHON_NAME.fullmatch(words[0]):
        return any(words[at] == "-m" and words[at + 1] in LAUNCHER_MODULES for at in range(1, len(words) - 1))
    return words[0] in LAUNCHERS


def job_interpreter(option: str | None, command: Sequence[str], search_path: str | None) -> str | None:
    """The job's Python: `option`, else the command's first word where that is a Python, else python3 of the job's PATH."""
    if option:
        return option
    if command and PYTHON_NAME.fullmatch(Path(command[0]).name):
        return shutil.which(command[0], path=search_path)
    return shutil.which("python3", path=search_path)


def monitor_folder(job_folder: Path) -> Path:
    """Where monitor files go: memory, where a full or slow disk cannot hold a training step up; else beside the state."""
    if os.access(SHARED_MEMORY, os.W_OK):
        name = hashlib.sha256(str(job_folder.absolute()).encode()).hexdigest()[:16]
        return SHARED_MEMORY / f"pitstop-{os.getuid()}" / name
    return job_folder / "monitors"


def staging_folder(job_folder: Path) -> Path:
    """Where ranks stage their checkpoints: memory that outlives them."""
    monitors = monitor_folder(job_folder)
    return monitors.with_name(monitors.name + "-staged")


def rank_files(logs: Path, monitors: Path, generation: int, rank: int) -> RankFiles:
    folder = logs / str(generation)
    return RankFiles(folder / f"rank{rank}.log", monitors / f"{generation}-{rank}", folder / f"rank{rank}.error.json")


def launcher_environment(
    inherited: Mapping[str, str], *, job: str, generation: int, files: RankFiles, staging: Path
) -> dict[str, str]:
    """The environment of a launcher that starts the ranks itself: nothing that would speak of ranks."""
    return dict(inherited) | {
        protocol.ERROR_FILE: str(files.error_file),
        protocol.JOB: job,
        protocol.GENERATION: str(generation),
        protocol.MONITOR: str(files.monitor),
        protocol.STAGING: str(staging),
        "PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1"),
    }


def rank_environment(
    inherited: Mapping[str, str],
    *,
    job: str,
    rank: int,
    place: Place,
    generation: int,
    store: StoreAddress,
    files: RankFiles,
    resume: Mapping[str, Any],
    staging: Path,
    formation: Path,
) -> dict[str, str]:
    """The environment of one rank: what it inherits, torchrun's variables, and ours.

    TORCHELASTIC_USE_AGENT_STORE makes every rank a client of the store; without our store, rank 0 serves it as usual.
    """
    environment = dict(inherited)
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - place.first),
        "WORLD_SIZE": str(place.world),
        "LOCAL_WORLD_SIZE": str(place.ranks),
        "GROUP_RANK": str(place.group_rank),
        "GROUP_WORLD_SIZE": str(place.groups),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": str(generation),
        protocol.ERROR_FILE: str(files.error_file),
        protocol.JOB: job,
        protocol.GENERATION: str(generation),
        protocol.MONITOR: str(files.monitor),
        protocol.STAGING: str(staging),
        protocol.FORMATION: str(formation),
    }
    environment["TORCHELASTIC_USE_AGENT_STORE"] = str(store.served)
    # Our own interpreter's settings are not the job's; output reaches the log line by line.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.pop(protocol.RESUME, None)
    if resume:
        environment[protocol.RESUME] = json.dumps(dict(resume))
    return environment
