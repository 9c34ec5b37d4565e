"""What Slurm's own answers and hooks say of jobs and nodes, and what that means for a job in Pitstop's care. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.hostlist import expand

__all__ = [
    "NODE_COLUMNS",
    "QUEUE_COLUMNS",
    "Ending",
    "Meaning",
    "NodeWord",
    "QueueWord",
    "down_among",
    "ending_of_requeue",
    "ending_of_state",
    "parse_environment",
    "parse_nodes",
    "parse_queue",
]

QUEUE_COLUMNS = "JobID:24|,State:40|,RestartCnt:12|,PreemptTime:30|,NodeList:4000"
NODE_COLUMNS = "NodeList:120|,StateComplete:200|,Reason:1000"
# Slurm prints flags behind the state: mixed+drain, down+not_responding; older versions down*.
FLAGS = re.compile(r"[+,]")
HELD = frozenset({"drain", "drained", "draining", "fail", "failing", "maint"})
STATE = re.compile(r"[A-Z_]{2,32}")
MAX_FIELDS = 200
MAX_VALUE = 4096


class Meaning(StrEnum):
    """What the end of an attempt means: `failure` is diagnosed and recovered from; `intended` is left to whoever ended it."""

    FAILURE = "failure"
    WELL = "well"
    INTENDED = "intended"


FAILURES = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "DEADLINE"})
INTENDED = frozenset({"CANCELLED", "REVOKED", "REQUEUED"})
OVER = FAILURES | INTENDED | {"COMPLETED"}


@dataclass(frozen=True, slots=True)
class Ending:
    """How Slurm ended an attempt. `evidence`: a line in the form of its own records, for the rules to read."""

    state: str
    meaning: Meaning
    evidence: str
    why: str


@dataclass(frozen=True, slots=True)
class QueueWord:
    """A job as squeue has it now."""

    job: str
    state: str
    restarts: int
    preempted: bool
    nodes: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True, slots=True)
class NodeWord:
    """A node as sinfo has it now; `flags` in lower case, the base state among them."""

    name: str
    flags: tuple[str, ...]
    reason: str

    @property
    def is_down(self) -> bool:
        return "down" in self.flags

    @property
    def is_held(self) -> bool:
        """Somebody took it out of service: a drain, a maintenance."""
        return not HELD.isdisjoint(self.flags)

    @property
    def line(self) -> str:
        """As `scontrol show node` shows it."""
        return f"NodeName={self.name} State={'+'.join(self.flags).upper()} Reason={self.reason}"


def parse_queue(squeue: str) -> dict[str, QueueWord]:
    """By job id, from `squeue -O QUEUE_COLUMNS`."""
    found = {}
    for line in squeue.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 5 and parts[2].isdecimal() and STATE.fullmatch(parts[1]):
            job, state, restarts, preempted, nodes = parts
            found[job] = QueueWord(job, state, int(restarts), preempted not in ("", "N/A", "None"), expand(nodes))
    return found


def parse_nodes(sinfo: str) -> dict[str, NodeWord]:
    """By name, from `sinfo -N -O NODE_COLUMNS`; a node in several partitions is one node."""
    found = {}
    for line in sinfo.splitlines():
        name, bar, rest = line.partition("|")
        states, second, reason = rest.partition("|")
        if bar and second:
            flags = tuple(word for word in FLAGS.split(states.strip().lower().replace("*", "+not_responding")) if word)
            reason = reason.strip()
            found[name.strip()] = NodeWord(name.strip(), flags, "" if reason == "none" else reason)
    return found


def ending_of_state(job: str, state: str, nodes: Sequence[str], detail: str = "") -> Ending:
    """What it means that Slurm says `state` of an attempt that is over. `detail`: more of the record, such as its exit code."""
    meaning = Meaning.WELL if state == "COMPLETED" else Meaning.FAILURE if state in FAILURES else Meaning.INTENDED
    more = f" {detail}" if detail else ""
    line = f"JobId={job} JobState={state}{more} NodeList={','.join(nodes)}"
    return Ending(state, meaning, line, f"Slurm ended it: {state}")


def ending_of_requeue(job: str, nodes: Sequence[str], known: Mapping[str, NodeWord], preempted: bool) -> Ending:
    """Why Slurm put a job back into the queue, as far as that still shows: a node of it is down, or somebody preempted it.

    Where neither shows, people requeued it: that is left to them.
    """
    down = down_among(nodes, known)
    if down:
        ending = ending_of_state(job, "NODE_FAIL", nodes)
        return replace(ending, why=f"Slurm requeued it: {', '.join(node.name for node in down)} is down")
    if preempted:
        return replace(ending_of_state(job, "PREEMPTED", nodes), why="Slurm preempted and requeued it")
    return Ending("REQUEUED", Meaning.INTENDED, "", "put back into the queue, and Slurm does not say why")


def down_among(nodes: Sequence[str], known: Mapping[str, NodeWord]) -> tuple[NodeWord, ...]:
    """Those of these nodes that are down."""
    return tuple(known[node] for node in nodes if node in known and known[node].is_down)


def parse_environment(body: bytes) -> dict[str, str]:
    """A hook's environment, NUL between the variables (`env -0`). Raises ValueError with what is wrong."""
    fields: dict[str, str] = {}
    for raw in body.split(b"\0"):
        name, bar, value = raw.decode("utf-8", "replace").partition("=")
        if not raw.strip():
            continue
        if not bar or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name):
            raise ValueError("send a hook's environment as NAME=VALUE with NUL between (env -0)")
        if len(fields) >= MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} variables")
        fields[name] = value[:MAX_VALUE].replace("\0", "")
    return fields
