"""The words of recovery: actions, modes, directives, and a decision with the reasons it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from rules.signal import Trust

__all__ = [
    "CLUSTER_ACTIONS",
    "DEFAULT_MODES",
    "FAR_ACTIONS",
    "RELAUNCHES",
    "Action",
    "Audience",
    "Decision",
    "DirectiveKind",
    "Ground",
    "Mode",
    "Resume",
]


class Action(StrEnum):
    """What the policy chooses, all but the last. All but the last three concern the processes of the failed job alone.

    `adapt`: the ranks that are left go on in their processes, with the work of those that are lost shared out among them.
    `reconfigure` moves a job that did not fail, or onto nodes that another gave up, because a plan says so.
    """

    NONE = "none"
    RETRY = "retry"
    RESTART = "restart"
    ROLLBACK = "rollback"
    SHRINK = "shrink"
    ADAPT = "adapt"
    STOP = "stop"
    RESET_GPU = "reset_gpu"
    ISOLATE = "isolate"
    RECONFIGURE = "reconfigure"


# An action that lets the job go on after a failure, and so spends the budget of its root cause.
RELAUNCHES = frozenset({Action.RETRY, Action.RESTART, Action.ROLLBACK, Action.SHRINK, Action.ADAPT})
# What reaches beyond the job: it takes something from everybody.
CLUSTER_ACTIONS = frozenset({Action.RESET_GPU, Action.ISOLATE})
# What a caller that nobody vouched for may not cause.
FAR_ACTIONS = CLUSTER_ACTIONS | {Action.RECONFIGURE}


class Mode(StrEnum):
    """How far an action of one kind may go by itself, in rising order."""

    OBSERVE = "observe"
    SUGGEST = "suggest"
    APPROVE = "approve"
    AUTO = "auto"


# A job's own processes: auto (shrinking never goes below the minimum that the owner set); beyond the job: only observe.
DEFAULT_MODES: Mapping[Action, Mode] = MappingProxyType(
    {
        Action.NONE: Mode.AUTO,
        Action.RETRY: Mode.AUTO,
        Action.RESTART: Mode.AUTO,
        Action.ROLLBACK: Mode.AUTO,
        Action.SHRINK: Mode.AUTO,
        Action.ADAPT: Mode.AUTO,
        Action.STOP: Mode.AUTO,
        Action.RESET_GPU: Mode.OBSERVE,
        Action.ISOLATE: Mode.OBSERVE,
        Action.RECONFIGURE: Mode.OBSERVE,
    }
)


class DirectiveKind(StrEnum):
    """What a launcher is told (CONTRACT.md)."""

    NONE = "none"
    RETRY = "retry"
    RESTART = "restart"
    ROLLBACK = "rollback"
    SHRINK = "shrink"
    ADAPT = "adapt"
    WAIT = "wait"
    STOP = "stop"


class Audience(StrEnum):
    """Whom the reason of a stop is addressed to."""

    OWNER = "owner"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True)
class Ground:
    """One line that a decision rests on, and who vouches for it."""

    rule: str | None
    path: str
    line: int | None
    trust: Trust


@dataclass(frozen=True, slots=True)
class Resume:
    """Where training goes on from. `skip_batches`: half-open intervals of batch indices to leave out."""

    step: int | None = None
    checkpoint: str | None = None
    skip_batches: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one failure, in which mode, and why. `would`: what mode auto would have said; `out_of_reach`: nodes
    of the job that nobody may take for stopped, since they are lost or cut off from the others."""

    action: Action
    directive: DirectiveKind
    mode: Mode
    why: tuple[str, ...]
    would: str
    grounds: tuple[Ground, ...] = ()
    audience: Audience | None = None
    localise: bool = False
    exclude: tuple[str, ...] = ()
    use: tuple[str, ...] = ()
    out_of_reach: tuple[str, ...] = ()
    resume: Resume = field(default_factory=Resume)
    delay_seconds: float = 0.0

    @property
    def sentence(self) -> str:
        """The reasons as one text."""
        return "; ".join(self.why)
