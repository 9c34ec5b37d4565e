"""The recovery of one failure: its state, the events that move it, the commands that it gives. Times: seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recovery.decision import Action, Audience, Decision, DirectiveKind, Mode

__all__ = [
    "TERMINAL",
    "Act",
    "Approved",
    "AskApproval",
    "Command",
    "Decide",
    "Decided",
    "Diagnosed",
    "Ended",
    "Event",
    "FailedAgain",
    "Limits",
    "Localise",
    "Localised",
    "NodesLost",
    "Notify",
    "Plan",
    "Planned",
    "Recovery",
    "Rejected",
    "Reported",
    "Stage",
    "Started",
    "Step",
    "Stepped",
    "Tick",
    "Withheld",
]


class Stage(StrEnum):
    DETECTED = "detected"
    DIAGNOSED = "diagnosed"
    DECIDED = "decided"
    APPROVED = "approved"
    LOCALISED = "localised"
    PLANNED = "planned"
    ACTED = "acted"
    VERIFIED = "verified"
    ESCALATED = "escalated"
    STOPPED = "stopped"


TERMINAL = frozenset({Stage.VERIFIED, Stage.ESCALATED, Stage.STOPPED})


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the trail: the stage reached, when, and why."""

    stage: Stage
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each wait may last, in seconds, and how often one recovery may decide anew."""

    approval_seconds: float = 900.0
    localise_seconds: float = 60.0
    act_seconds: float = 60.0
    verify_seconds: float = 300.0
    settle_seconds: float = 60.0
    queue_seconds: float = 86_400.0
    escalations: int = 3


@dataclass(frozen=True, slots=True)
class Recovery:
    """The state. `first`: the generation whose failure began it; `generation`: the last one that failed or was proposed in vain;
    `successor`: the generation that goes on after it, once known; `step_before`: the last step the failed attempt was seen at;
    `progress`: the highest step seen of the successor; `localised`: nodes that probes confirmed to be faulty."""

    job: str
    attempt: int
    first: int
    generation: int
    step_before: int | None
    trail: tuple[Step, ...]
    decision: Decision | None = None
    escalation: int = 0
    denied: tuple[tuple[Action, str], ...] = ()
    approved: tuple[Action, ...] = ()
    localised: tuple[str, ...] = ()
    successor: int | None = None
    started: bool = False
    superseded: bool = False
    progress: int | None = None
    gone: bool = False
    deadline: float | None = None

    @classmethod
    def detected(cls, job: str, attempt: int, generation: int, step_before: int | None, at: float, why: str) -> Recovery:
        return cls(job, attempt, generation, generation, step_before, (Step(Stage.DETECTED, at, why),))

    @property
    def stage(self) -> Stage:
        return self.trail[-1].stage

    @property
    def is_over(self) -> bool:
        return self.stage in TERMINAL

    @property
    def awaits_approval(self) -> bool:
        return self.stage is Stage.DECIDED and self.decision is not None and self.decision.mode is Mode.APPROVE

    @property
    def is_stop(self) -> bool:
        return self.decision is not None and self.decision.directive is DirectiveKind.STOP


@dataclass(frozen=True, slots=True)
class Diagnosed:
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Decided:
    at: float
    decision: Decision


@dataclass(frozen=True, slots=True)
class Approved:
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Rejected:
    at: float
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """The safety envelope does not let the action through any more (it did when it was decided)."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Localised:
    """Localisation is over. `nodes`: those that its probes confirmed to be faulty, none where nothing is sure."""

    at: float
    why: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """Who runs where is settled. `heard`: the last generation heard of; `agents`: whether somebody is there to be commanded;
    `queued`: the job's scheduler starts it, when its turn comes; `decision`: in the place of the one decided, where the plan came
    out differently."""

    at: float
    heard: int
    agents: bool
    why: str
    queued: bool = False
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent's answer to a command, with the generation it is at. `complete`: every agent of the action has answered done."""

    at: float
    status: str
    generation: int
    detail: str
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The job's processes were started under `generation`."""

    at: float
    generation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """All ranks under `generation` run; `step`: the lowest of their steps, None where the job reports none."""

    at: float
    generation: int
    step: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """Every process of the job is gone."""

    at: float
    generation: int
    exit_status: int | None


@dataclass(frozen=True, slots=True)
class FailedAgain:
    """The job failed under a later generation than the one this recovery is about."""

    at: float
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class NodesLost:
    """Nodes that were to go on with the job are lost (a silent lease and a second witness each), or cut off from the others."""

    at: float
    nodes: tuple[str, ...]
    how: str = "lost"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    at: float


Event = (
    Diagnosed
    | Decided
    | Approved
    | Rejected
    | Withheld
    | Localised
    | Planned
    | Reported
    | Started
    | Stepped
    | Ended
    | FailedAgain
    | NodesLost
    | Tick
)


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the policy, with what has failed and been refused so far."""

    escalation: int
    denied: tuple[tuple[Action, str], ...]
    approved: tuple[Action, ...]
    localised: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskApproval:
    until: float


@dataclass(frozen=True, slots=True)
class Localise:
    until: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Settle who runs where; answered by `Planned`."""


@dataclass(frozen=True, slots=True)
class Act:
    """Carry the decision out under this generation; worthless after the deadline."""

    decision: Decision
    generation: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Notify:
    audience: Audience
    text: str


Command = Decide | AskApproval | Localise | Plan | Act | Notify
