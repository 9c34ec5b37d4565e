"""The care of one job: where it stands, what may happen to it, and what an agent is told to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from detectors.supervisor import RankExit
from node.formation import Formation

__all__ = [
    "GRACE_SECONDS",
    "Action",
    "Care",
    "Command",
    "CommandArrived",
    "End",
    "Event",
    "Exited",
    "Formed",
    "Heard",
    "Interrupted",
    "KillRanks",
    "KillStuck",
    "NewerFormed",
    "NotFormed",
    "Noticed",
    "Overtaken",
    "Peers",
    "Phase",
    "PostFailure",
    "PostNotice",
    "Raised",
    "Reform",
    "Rejoined",
    "Report",
    "Respawn",
    "Returned",
    "Spawned",
    "Tick",
]

# What ranks that are told to end have for it, where no scheduler says otherwise.
GRACE_SECONDS = 30.0


class Phase(StrEnum):
    """`failed`: a rank failed, what to do is being decided; `restarting` and `stopping`: the ranks are being ended for that."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Command:
    """A command row of the service; `deadline` in seconds since the epoch, None for none."""

    id: int
    kind: str
    generation: int
    args: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None

    def is_over(self, generation: int) -> bool:
        """Whether a stop came too late for an agent of this generation. One that belongs to a recovery names the generation after
        the last that was heard of: who has begun that one has gone on by itself."""
        return self.generation < generation + ("recovery" in self.args)


@dataclass(frozen=True, slots=True)
class Care:
    """Where the job stands. Times are of the monotonic clock that `step` is given.

    `raised`: ranks that run still, but told of the exception that is about to end them. `formed`: who carries the present
    generation is settled; before that no rank of it runs. `elastic`: ranks that can go on in their process when others are lost;
    `priced`: that has a price for them. `alone`: enough of the nodes answer to go on without being told to.
    `nodes`: those that a command wants for the next one, else empty. `barred`: those that were isolated, taken back by command
    only. `leaves`: the job goes on, without this node. `reached`: the step when ranks last left their group with nobody lost.
    `grace_seconds`: what ranks that are told to end have for it.
    `held_until`: the ranks were stopped so that their nodes can be probed; what becomes of them is decided after that.
    """

    phase: Phase
    ranks: int
    generation: int = 0
    formed: bool = False
    nodes: tuple[str, ...] = ()
    barred: frozenset[str] = frozenset()
    leaves: bool = False
    restarts: int = 0
    max_restarts: int = 3
    reached: int | None = None
    running: frozenset[int] = frozenset()
    elastic: frozenset[int] = frozenset()
    priced: bool = False
    alone: bool = True
    exits: tuple[RankExit, ...] = ()
    raised: tuple[RankExit, ...] = ()
    done: Mapping[int, str] = field(default_factory=dict)
    failed_at: float | None = None
    last_exit_at: float | None = None
    noticed: frozenset[str] = frozenset()
    posted: bool = False
    accepted_at: float | None = None
    needs_approval: bool = False
    heard_at: float | None = None
    kill_at: float | None = None
    interrupted: bool = False
    grace_seconds: float = GRACE_SECONDS
    command: Command | None = None
    next_generation: int | None = None
    cause: str = "start"
    resume: Mapping[str, Any] = field(default_factory=dict)
    delay_seconds: float = 0.0
    respawn_at: float | None = None
    held_until: float | None = None
    why: str = ""

    @property
    def failures(self) -> tuple[RankExit, ...]:
        """The ranks that failed, or are about to."""
        return (*(item for item in self.exits if item.failed), *self.raised)

    @property
    def lasting(self) -> tuple[object, ...]:
        """What the next agent must know of, beside what was done."""
        return self.phase, self.exits, self.raised, self.done

    @property
    def attempt(self) -> int:
        return self.generation + 1


@dataclass(frozen=True, slots=True)
class Exited:
    """A rank of the generation in `exit` ended."""

    exit: RankExit


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """`in_place`: the nodes that it names are those whose ranks wait, in their processes, for a new group. `hindrance`: why they
    may not go on, where another half of the job may."""

    command: Command
    wall_time: float
    in_place: bool = False
    hindrance: str | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """The service answered something; `accepted`: it took the failure report; `approval`: a person has to approve the action."""

    accepted: bool = False
    approval: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user or the scheduler sent us this signal. `once`: one that another node passed on, which never means "at once"."""

    number: int
    once: bool = False


@dataclass(frozen=True, slots=True)
class Noticed:
    """The ranks run but get nowhere: `kind` is the detector's word for it, `rank` the one to blame, where it can be told.

    `bad_since`: the first step whose numbers were wrong, where numbers are what is noticed.
    """

    kind: str
    rank: int | None
    why: str
    bad_since: int | None = None


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another node leads the job by now, under the newer `generation`: it was told to while this one could not be reached.

    `ours`: the ranks of this node, the only ones that can still be ended from here.
    """

    generation: int
    ours: frozenset[int]


@dataclass(frozen=True, slots=True)
class NewerFormed:
    """A node has come whose ranks stood in `formation`, newer than any that this agent has led."""

    formation: Formation


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks left their group though nobody has died. `lost`: those that are to blame and still run; empty where nobody is.

    `gone`: of ranks that nobody can reach, as their end; `step`: the last one that was seen of any rank.
    """

    lost: frozenset[int]
    why: str
    gone: tuple[RankExit, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """A rank told of an exception that ends it. `exit` has no status: its process is still on its way out."""

    exit: RankExit


@dataclass(frozen=True, slots=True)
class Formed:
    """The nodes that carry `generation` are there; they start `ranks` ranks now."""

    generation: int
    ranks: int


@dataclass(frozen=True, slots=True)
class NotFormed:
    """Too few nodes came for `generation`, for as long as is worth waiting."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Nodes wait to carry ranks again, and a checkpoint has just been finished."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Lost ranks that were started anew beside the others are ready to be taken in."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Spawned:
    """All ranks of `generation` were started."""

    generation: int


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = (
    Exited
    | CommandArrived
    | Formed
    | Heard
    | Interrupted
    | NewerFormed
    | NotFormed
    | Noticed
    | Overtaken
    | Peers
    | Raised
    | Rejoined
    | Returned
    | Spawned
    | Tick
)


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Send `number` to the process group of every running rank."""

    number: int


@dataclass(frozen=True, slots=True)
class Respawn:
    """Find the nodes for `generation`, open a store for it and start all ranks under it. `nodes`: as in Care."""

    generation: int
    cause: str
    resume: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KillStuck:
    """End these ranks for good: their peers go on without them."""

    ranks: frozenset[int]
    why: str


@dataclass(frozen=True, slots=True)
class Reform:
    """Open a store for `generation` and let `members` go on in it, in their processes. `before`: the care that lost a rank.

    `command`: the one that told them to, None where nobody had to.
    """

    generation: int
    members: frozenset[int]
    before: Care
    command: Command | None = None


@dataclass(frozen=True, slots=True)
class PostFailure:
    exits: tuple[RankExit, ...]


@dataclass(frozen=True, slots=True)
class PostNotice:
    """Report ranks that get nowhere. Only a command follows from it: the agent by itself leaves running ranks alone."""

    rank: int | None
    why: str
    key: str
    bad_since: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command: done | failed | refused | expired."""

    command_id: int
    status: str
    detail: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over. Exit status 0: the command ended well; 1: given up."""

    status: int
    why: str


Action = KillRanks | KillStuck | Reform | Respawn | PostFailure | PostNotice | Report | End
