"""The Slurm driver: drain and resume of nodes; requeue (with exclusion), cancel, hold and release of jobs. Pure: others run it.

Every move is chosen from what Slurm says at that moment, so that a call made twice, or one whose maker died half-way, does
nothing a second time. What others set is left alone: a drain without our mark, a hold that is not ours, a job that its user
cancelled. Only fields that no job can write are read (squeue and sinfo with chosen columns), never `scontrol show job`, whose
name, comment and paths are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recovery.drivers.command import NODE_NAME, OWN_MARK, DriverError, Operation, Template
from rules.hostlist import expand

__all__ = [
    "ENDED",
    "MENDABLE",
    "Carried",
    "Done",
    "JobGoal",
    "JobSeen",
    "Left",
    "Move",
    "Run",
    "SlurmSite",
    "Verb",
    "Wait",
    "carry_out",
    "foreseen",
    "holder_of_node",
    "next_move",
    "node_templates",
    "read_job",
]

JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,7})?")
OURS = re.compile(rf"{OWN_MARK} [0-9]*: ", re.ASCII)
WIDE = 4000
JOB_COLUMNS = f"State:40|,RestartCnt:20|,NodeList:{WIDE}|,Reason:100|,admin_comment:300"
NODE_COLUMNS = "StateComplete:200|,Reason:1000"
REQUEUED_HELD = "job requeued in held state"
HELD = frozenset({"JobHeldUser", "JobHeldAdmin", REQUEUED_HELD})
# Ended in a way that being run again can mend; a job that was cancelled, or ended well, is its user's affair.
MENDABLE = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED", "SPECIAL_EXIT"})
ENDED = MENDABLE | {"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE", "REVOKED"}
MAX_WHY = 200


class Verb(StrEnum):
    """What can be asked for a job."""

    REQUEUE = "requeue"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """How Slurm's tools are reached. `prefix`: what goes before each (["ssh", "ctl0"]), none where they are here."""

    prefix: tuple[str, ...] = ()
    timeout_seconds: float = 20.0

    @classmethod
    def parse(cls, document: object) -> SlurmSite:
        """From the settings' `slurm:` entry. Raises DriverError, naming what is wrong."""
        entry = {} if document is None else document
        if not isinstance(entry, Mapping):
            raise DriverError("slurm: give its settings, or {} for none")
        unknown = set(entry) - {"prefix", "timeout_seconds"}
        if unknown:
            raise DriverError(f"slurm: {sorted(map(str, unknown))[0]!r} is not known here: use prefix, timeout_seconds")
        prefix, timeout = entry.get("prefix", []), entry.get("timeout_seconds", 20.0)
        if not isinstance(prefix, list) or not all(isinstance(part, str) and part for part in prefix):
            raise DriverError("slurm: prefix is a list of words, such as [ssh, ctl0]")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 600:
            raise DriverError("slurm: timeout_seconds is a number up to 600")
        return cls(tuple(prefix), float(timeout))


def node_templates(site: SlurmSite) -> dict[Operation, Template]:
    """Slurm's own commands for taking a node out and putting it back; `state` is read by `holder_of_node`."""

    def template(*command: str) -> Template:
        return Template(command=(*site.prefix, *command), timeout_seconds=site.timeout_seconds)

    return {
        Operation.STATE: template("sinfo", "-h", "-N", "-n", "{node}", "-O", NODE_COLUMNS),
        Operation.CORDON: template("scontrol", "update", "NodeName={node}", "State=DRAIN", "Reason={why}"),
        Operation.UNCORDON: template("scontrol", "update", "NodeName={node}", "State=RESUME"),
    }


def holder_of_node(sinfo: str) -> tuple[str | None, bool]:
    """(who holds the node out of service and why, whether that is us), from what the `state` command printed.

    A node that is down without being drained is held by nobody: Slurm itself found it so. Raises DriverError where Slurm knows
    no such node.
    """
    line = next((line for line in sinfo.splitlines() if "|" in line), None)
    if line is None:
        raise DriverError("Slurm knows no node of this name")
    states, reason = (part.strip() for part in line.split("|", 1))
    words = set(re.split(r"[+,@*~#!%$^-]+", states.lower()))
    if not words & {"drain", "drained", "draining", "fail", "failing", "maint"}:
        return None, False
    return reason or states, OURS.match(reason) is not None


@dataclass(frozen=True, slots=True)
class JobGoal:
    """What is wanted of a job. `restarts`: Slurm's restart count of the attempt that it is about; `mark` names this call to
    Slurm and to people (as AdminComment); `exclude`: nodes that it must not run on again."""

    verb: Verb
    job: str
    restarts: int
    mark: str
    why: str
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not JOB_ID.fullmatch(self.job):
            raise DriverError(f"{self.job[:80]!r} cannot be a Slurm job id: nothing is run")
        for node in self.exclude:
            if not NODE_NAME.fullmatch(node):
                raise DriverError(f"{node[:80]!r} cannot be a node's name: nothing is run")

    @property
    def comment(self) -> str:
        text = f"{OWN_MARK} {self.mark}: {self.why}"
        return "".join(c if c.isprintable() and c != "|" else " " for c in text)[:MAX_WHY].rstrip()

    def is_marked_in(self, comment: str) -> bool:
        return comment.startswith(f"{OWN_MARK} {self.mark}:")


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What Slurm says of a job now."""

    state: str
    restarts: int
    nodes: tuple[str, ...]
    reason: str
    comment: str
    excluded: tuple[str, ...]

    @property
    def is_held(self) -> bool:
        return self.state == "PENDING" and self.reason in HELD


@dataclass(frozen=True, slots=True)
class Move:
    """The next command."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Slurm is about something that must end first."""

    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    detail: str


@dataclass(frozen=True, slots=True)
class Left:
    """It is left alone, and to whom or why."""

    detail: str


def read_job(columns: str, excluded: str) -> JobSeen | None:
    """From the two answers of squeue; None where Slurm does not know the job (any more)."""
    line = next((line for line in columns.splitlines() if line.count("|") >= 4), None)
    if line is None:
        return None
    state, restarts, nodes, reason, comment = (part.strip() for part in line.split("|", 4))
    return JobSeen(
        state=state,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        nodes=expand(nodes),
        reason=reason,
        comment="" if comment in ("(null)", "N/A") else comment,
        excluded=expand(next((line.strip() for line in excluded.splitlines() if line.strip()), "")),
    )


def next_move(goal: JobGoal, seen: JobSeen | None) -> Move | Wait | Done | Left:
    """What to do next towards the goal, from what Slurm says now."""
    if seen is None:
        return Left("Slurm does not know the job any more")
    match goal.verb:
        case Verb.REQUEUE:
            return _requeue(goal, seen)
        case Verb.CANCEL:
            if seen.state in ENDED:
                return Done(f"it is {seen.state} already")
            if seen.restarts > goal.restarts:
                return Left(f"it was started again meanwhile ({seen.restarts} restarts)")
            return Move(("scancel", goal.job))
        case Verb.HOLD:
            if seen.is_held:
                return Done(f"it is held: {seen.reason}")
            if seen.state != "PENDING":
                return Left(f"it is {seen.state}: only what waits in the queue can be held")
            return _marked(goal, seen) or Move(("scontrol", "hold", goal.job))
        case Verb.RELEASE:
            if not seen.is_held:
                return Done(f"it is not held: {seen.state}")
            if not goal.is_marked_in(seen.comment):
                return Left(f"held by others: {seen.comment or seen.reason}")
            return Move(("scontrol", "release", goal.job))


def _marked(goal: JobGoal, seen: JobSeen) -> Move | None:
    """Our mark goes on first: whoever finds the job half-way knows whose work it is."""
    if goal.is_marked_in(seen.comment):
        return None
    return Move(("scontrol", "update", f"JobId={goal.job}", f"AdminComment={goal.comment}"))


def _requeue(goal: JobGoal, seen: JobSeen) -> Move | Wait | Done | Left:
    excluded = tuple(dict.fromkeys((*seen.excluded, *goal.exclude)))
    excludes = set(goal.exclude) <= set(seen.excluded)
    where = f" without {', '.join(goal.exclude)}" if goal.exclude else ""
    if seen.state == "COMPLETING":
        return Wait("the processes of the job are being ended")
    if seen.state == "PENDING":
        if not excludes:
            return Move(("scontrol", "update", f"JobId={goal.job}", f"ExcNodeList={','.join(excluded)}"))
        if seen.reason == REQUEUED_HELD and goal.is_marked_in(seen.comment):
            return Move(("scontrol", "release", goal.job))
        return Done(f"it waits in the queue{where}" + (f", held: {seen.reason}" if seen.is_held else ""))
    again = seen.restarts > goal.restarts
    if again and not set(goal.exclude) & set(seen.nodes):
        return Done(f"it was started again{where}")
    if seen.state in ENDED and seen.state not in MENDABLE:
        return Left(f"it is {seen.state}: it is left to its user")
    marked = _marked(goal, seen)
    return marked or Move(("scontrol", "requeuehold" if goal.exclude else "requeue", goal.job))


@dataclass(frozen=True, slots=True)
class Carried:
    """What came of a goal. `did`: the commands made, word for word; `final`: whether trying again would change nothing."""

    done: bool
    final: bool
    detail: str
    did: tuple[str, ...] = ()


def foreseen(goal: JobGoal) -> tuple[str, ...]:
    """The commands that a requeue of a running job would take, as a dry run shows them."""
    comment, steps = goal.comment, []
    if goal.exclude:
        steps.append(JobSeen("PENDING", goal.restarts + 1, (), REQUEUED_HELD, comment, ()))
        steps.append(JobSeen("PENDING", goal.restarts + 1, (), REQUEUED_HELD, comment, goal.exclude))
    running = [JobSeen("RUNNING", goal.restarts, goal.exclude, "None", mark, ()) for mark in ("", comment)]
    moves = (next_move(goal, seen) for seen in (*running, *steps))
    return tuple(" ".join(move.argv) for move in moves if isinstance(move, Move))


# Runs a command within a time limit: (whether it succeeded, what it said).
Run = Callable[[Sequence[str], float], tuple[bool, str]]
MAX_MOVES = 8


def carry_out(goal: JobGoal, site: SlurmSite, run: Run) -> Carried:
    """Look, move, look again, until the goal is reached, must be left, or has to be waited for (not final: try again later)."""
    did: list[str] = []
    for _ in range(MAX_MOVES):
        seen = look(goal.job, site, run)
        if isinstance(seen, str):
            return Carried(False, False, seen, tuple(did))
        match next_move(goal, seen):
            case Done(detail=detail):
                return Carried(True, True, detail, tuple(did))
            case Left(detail=detail):
                return Carried(False, True, f"left alone: {detail}", tuple(did))
            case Wait(detail=detail):
                return Carried(False, False, detail, tuple(did))
            case Move(argv=argv):
                succeeded, said = run((*site.prefix, *argv), site.timeout_seconds)
                did.append(" ".join(argv))
                if not succeeded:
                    return Carried(False, False, f"{' '.join(argv[:2])}: {said[:300]}", tuple(did))
                if goal.verb is Verb.REQUEUE and argv[1] == "requeue":
                    return Carried(True, True, "requeued", tuple(did))
    return Carried(False, False, "Slurm does not come to rest about it", tuple(did))


def look(job: str, site: SlurmSite, run: Run) -> JobSeen | str | None:
    """The job as Slurm sees it; None where it knows none; a text where Slurm cannot be asked."""
    asked = (*site.prefix, "squeue", "-h", "-t", "all", "-j", job)
    succeeded, columns = run((*asked, "-O", JOB_COLUMNS), site.timeout_seconds)
    if not succeeded:
        return None if "Invalid job id" in columns else f"Slurm cannot be asked: {columns[:300]}"
    succeeded, excluded = run((*asked, "-o", "%x"), site.timeout_seconds)
    if not succeeded:
        return f"Slurm cannot be asked: {excluded[:300]}"
    seen = read_job(columns, excluded)
    return f"Slurm's answer cannot be read: {columns[:300]}" if seen is None and columns.strip() else seen
