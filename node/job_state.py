"""What the agent keeps on disk about a job, so that one that starts after it finds the ranks and takes them over."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId
from detectors.supervisor import RankExit
from node.care_states import Care, Command, Phase
from node.formation import Formation, Member, formation_of
from node.ranks import StoreAddress

__all__ = ["JobBusyError", "JobFolder", "JobState", "Placement", "RankProcess", "taken_over", "write_atomically"]

VERSION = 2
# Of Care, what is a set there and a list in the file.
SETS = ("running", "noticed", "elastic", "barred")


class JobBusyError(Exception):
    """Another agent has this job."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank of one generation: its process and the files that belong to it."""

    rank: int
    generation: int
    process: ProcessId
    log: str
    monitor: str
    error_file: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The processes of a job on this node. `host`: the one that holds staged checkpoints; `spare`: the warm one."""

    processes: tuple[RankProcess, ...] = ()
    keeper: ProcessId | None = None
    store: ProcessId | None = None
    host: ProcessId | None = None
    spare: ProcessId | None = None
    store_host: str = ""
    store_port: int = 0
    store_served: bool = False

    @property
    def meeting(self) -> StoreAddress:
        """Where the ranks of the present generation meet."""
        return StoreAddress(self.store_host, self.store_port, self.store_served)

    @property
    def helpers(self) -> tuple[ProcessId | None, ...]:
        """What runs for the ranks and outlives them."""
        return self.store, self.host, self.spare


@dataclass(frozen=True, slots=True)
class JobState:
    """`after`: the id of the last command row that was read. `boot_id`: the processes are those of this boot. `met`: all nodes
    that this one ever carried ranks with, and itself, as it knew them last.

    `formation`: of the present generation, None before the first; `leads`: whether this node's agent keeps the generation.
    `incarnation`: which start of the job by its scheduler it belongs to.
    """

    job: str
    command: tuple[str, ...]
    boot_id: str
    started_at: float
    care: Care
    placement: Placement = Placement()
    after: int = 0
    exit_status: int | None = None
    formation: Formation | None = None
    leads: bool = True
    incarnation: str = ""
    met: tuple[Member, ...] = ()

    def stands_in(self, formation: Formation) -> JobState:
        """The job with `formation` as the last one."""
        newest = {member.node: member for member in (*self.met, *formation.members)}
        return replace(self, formation=formation, met=tuple(newest.values()))

    @property
    def told(self) -> Care:
        """The care as others are told of it: while nodes are looked for, all that is here is of the generation formed last."""
        if self.care.formed or self.formation is None:
            return self.care
        return replace(self.care, generation=self.formation.generation)


def taken_over(state: JobState, now: float) -> JobState:
    """The job as the next agent goes on with it, at `now` of its own clock. What was being started is started anew, under a
    generation that nobody used: nobody knows how far it had come."""
    care = state.care
    match care.phase:
        case Phase.STARTING | Phase.RESTARTING:
            care = replace(care, phase=Phase.STARTING, generation=care.generation + 1, running=frozenset(), exits=())
            care = replace(care, raised=(), formed=False, nodes=())
        case Phase.FAILED:
            # A patience of its own: the service may have heard the other agent's report, or not.
            care = replace(care, failed_at=now, last_exit_at=now, posted=False)
        case Phase.STOPPING:
            care = replace(care, kill_at=now)
    return replace(state, care=care)


def write_atomically(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace `path` whole; `durable`: on disk before this returns. Raises OSError; the old content then stands."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("wb") as target:
        target.write(content)
        target.flush()
        if durable:
            os.fsync(target.fileno())
    unfinished.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(slots=True)
class JobFolder:
    """The state directory of one job on one node; held by one agent at a time."""

    path: Path
    _lock: int | None = field(default=None)

    @classmethod
    def of(cls, data_directory: Path, job: str) -> JobFolder:
        """The folder of `job`; a name that is no safe file name is spelt with its other characters in hexadecimal."""
        safe = re.sub(r"[^A-Za-z0-9._-]", lambda found: "%" + found[0].encode().hex(), job)
        return cls(data_directory / "run" / ("%2e" + safe[1:] if safe.startswith(".") else safe))

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    def hold(self) -> None:
        """Make the folder ours. Raises JobBusyError while another agent lives, OSError where it cannot be made."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.logs, self.spool):
            folder.mkdir(exist_ok=True, mode=0o700)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise JobBusyError from None
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def save(self, state: JobState) -> None:
        write_atomically(self.path / "state.json", json.dumps(encode_state(state), indent=1).encode())

    def load(self) -> JobState | None:
        """None where the job never ran here. Raises ValueError where the file is of another version or damaged."""
        try:
            text = (self.path / "state.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return decode_state(json.loads(text))
        except (KeyError, TypeError) as problem:
            raise ValueError(f"{self.path / 'state.json'} is not a job's state: {problem!r}") from None


def encode_state(state: JobState) -> dict[str, Any]:
    document = asdict(state)
    document["version"] = VERSION
    care = document["care"]
    for name in SETS:
        care[name] = sorted(care[name])
    # Times of a monotonic clock mean nothing to the next agent, which starts its own patience.
    for name in ("failed_at", "last_exit_at", "heard_at", "accepted_at", "kill_at", "respawn_at", "held_until"):
        care.pop(name)
    return document


def decode_state(document: Mapping[str, Any]) -> JobState:
    if document.get("version") != VERSION:
        raise ValueError(f"state of version {document.get('version')}; this agent knows {VERSION}")
    care = dict(document["care"])
    command = care.pop("command")
    care["phase"] = Phase(care["phase"])
    for name in SETS:
        care[name] = frozenset(care.get(name, ()))
    for name in ("exits", "raised"):
        care[name] = tuple(RankExit(**item) for item in care.get(name, ()))
    care["nodes"] = tuple(care["nodes"])
    care["done"] = {int(key): value for key, value in care["done"].items()}
    care["command"] = None if command is None else Command(**command)

    return JobState(
        job=document["job"],
        command=tuple(document["command"]),
        boot_id=document["boot_id"],
        started_at=document["started_at"],
        care=Care(**care),
        placement=decode_placement(document["placement"]),
        after=document["after"],
        exit_status=document["exit_status"],
        formation=None if document["formation"] is None else formation_of(document["formation"]),
        leads=document["leads"],
        incarnation=document.get("incarnation", ""),
        met=tuple(Member(**member) for member in document.get("met", ())),
    )


def decode_placement(document: Mapping[str, Any]) -> Placement:
    def process(value: Mapping[str, int] | None) -> ProcessId | None:
        return None if value is None else ProcessId(**value)

    return Placement(
        processes=tuple(RankProcess(**{**item, "process": ProcessId(**item["process"])}) for item in document["processes"]),
        keeper=process(document["keeper"]),
        store=process(document["store"]),
        host=process(document.get("host")),
        spare=process(document.get("spare")),
        store_host=document["store_host"],
        store_port=document["store_port"],
        store_served=document["store_served"],
    )
