"""The way back of a node that Pitstop took out, as a pure step function: (state, event) -> (state, commands).

cordoned -> repaired -> probing alone -> probing with a good node -> probation -> returned. Each part that Pitstop would do by
itself has a mode of its own. What others cordoned is never uncordoned; what they uncordon is theirs from then on.
Times: seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from recovery.decision import Mode
from recovery.states import Approved, Rejected

__all__ = [
    "DEFAULT_RETURN_MODES",
    "Approved",
    "AskApproval",
    "Command",
    "Cordon",
    "CordonedByOthers",
    "Event",
    "Faulted",
    "Part",
    "Phase",
    "Probe",
    "Probed",
    "Rejected",
    "RepairNoted",
    "ReturnState",
    "Terms",
    "Tick",
    "Uncordon",
    "Uncordoned",
    "step",
]


class Phase(StrEnum):
    CORDONED = "cordoned"
    REPAIRED = "repaired"
    PROBING_ALONE = "probing_alone"
    PROBING_PAIRED = "probing_paired"
    PROBATION = "probation"
    CLEARED = "cleared"
    RETURNED = "returned"
    CANCELLED = "cancelled"


OVER = frozenset({Phase.RETURNED, Phase.CANCELLED})


class Part(StrEnum):
    """What Pitstop would do by itself, each under a mode of its own. Taking the node out is the isolation's mode."""

    REQUALIFY = "requalify"
    UNCORDON = "uncordon"


DEFAULT_RETURN_MODES: Mapping[Part, Mode] = MappingProxyType({Part.REQUALIFY: Mode.OBSERVE, Part.UNCORDON: Mode.OBSERVE})


@dataclass(frozen=True, slots=True)
class Terms:
    """Modes of the parts, and how long a node must stay clean before it gets work again."""

    modes: Mapping[Part, Mode] = field(default_factory=lambda: DEFAULT_RETURN_MODES)
    probation_seconds: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class ReturnState:
    """`since`: when the phase began; `awaits`: the part that a person has to approve; `held_by`: others who cordoned it too."""

    node: str
    phase: Phase
    since: float
    why: str
    awaits: Part | None = None
    held_by: str | None = None
    trail: tuple[tuple[str, float, str], ...] = ()

    @classmethod
    def taken_out(cls, node: str, at: float, why: str) -> tuple[ReturnState, tuple[Command, ...]]:
        """The beginning: the node is cordoned by us."""
        return cls(node, Phase.CORDONED, at, why, trail=((Phase.CORDONED.value, at, why),)), (Cordon(why),)

    @property
    def is_over(self) -> bool:
        return self.phase in OVER


@dataclass(frozen=True, slots=True)
class RepairNoted:
    """Somebody (or a driver that reset the GPU) says that it is repaired, and how."""

    at: float
    by: str
    note: str


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe has ended: alone, or together with a node known to be good."""

    at: float
    paired: bool
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Faulted:
    """The node itself or the cluster reported a new fault of it."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Uncordoned:
    """The node is in service again; `by` ourselves or somebody else."""

    at: float
    by: str
    ours: bool


@dataclass(frozen=True, slots=True)
class CordonedByOthers:
    """Somebody else took the node out, or (`by` None) has let it go again."""

    at: float
    by: str | None


@dataclass(frozen=True, slots=True)
class Tick:
    at: float


Event = RepairNoted | Approved | Rejected | Probed | Faulted | Uncordoned | CordonedByOthers | Tick


@dataclass(frozen=True, slots=True)
class Cordon:
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    paired: bool


@dataclass(frozen=True, slots=True)
class Uncordon:
    pass


@dataclass(frozen=True, slots=True)
class AskApproval:
    part: Part


Command = Cordon | Probe | Uncordon | AskApproval
Result = tuple[ReturnState, tuple[Command, ...]]


def step(state: ReturnState, event: Event, terms: Terms) -> Result:
    """Advance by one event. Events that say nothing new in this phase change nothing."""
    if state.is_over:
        return state, ()
    match event:
        case Uncordoned():
            if event.ours and state.phase is Phase.CLEARED:
                return _to(state, Phase.RETURNED, event.at, "back in service"), ()
            return _to(state, Phase.CANCELLED, event.at, f"{event.by} put it back by hand"), ()
        case CordonedByOthers():
            return _held(state, event, terms)
        case Faulted():
            if state.phase is Phase.CORDONED:
                return state, ()
            return _to(state, Phase.CORDONED, event.at, f"a new fault: {event.why}"), ()
        case RepairNoted():
            if state.phase is not Phase.CORDONED:
                return state, ()
            return _ask(_to(state, Phase.REPAIRED, event.at, f"{event.by}: {event.note}"), Part.REQUALIFY, terms)
        case Approved():
            if state.awaits is None:
                return state, ()
            return _do(replace(state, awaits=None), state.awaits, event.at, f"approved by {event.by}")
        case Rejected():
            if state.awaits is None:
                return state, ()
            return _to(state, Phase.CORDONED, event.at, f"rejected by {event.by}: {event.why}"), ()
        case Probed():
            return _probed(state, event)
        case Tick():
            if state.phase is Phase.PROBATION and event.at - state.since >= terms.probation_seconds:
                clean = f"{terms.probation_seconds / 3600:g} clean hours"
                return _ask(_to(state, Phase.CLEARED, event.at, clean), Part.UNCORDON, terms)
            return state, ()


def _to(state: ReturnState, phase: Phase, at: float, why: str) -> ReturnState:
    return replace(state, phase=phase, since=at, why=why, awaits=None, trail=(*state.trail, (phase.value, at, why)))


def _ask(state: ReturnState, part: Part, terms: Terms) -> Result:
    """Go on by ourselves in mode auto; ask in mode approve; else it stays with people, who approve without being asked."""
    mode = terms.modes[part]
    if mode is Mode.AUTO:
        return _do(state, part, state.since, "mode auto")
    waiting = replace(state, awaits=part)
    return waiting, ((AskApproval(part),) if mode in (Mode.APPROVE, Mode.SUGGEST) else ())


def _do(state: ReturnState, part: Part, at: float, why: str) -> Result:
    if part is Part.REQUALIFY:
        return _to(state, Phase.PROBING_ALONE, at, why), (Probe(paired=False),)
    if state.held_by is not None:
        return replace(state, why=f"{state.held_by} cordoned it too: it is left to them"), ()
    return replace(state, why=why), (Uncordon(),)


def _probed(state: ReturnState, event: Probed) -> Result:
    expected = Phase.PROBING_PAIRED if event.paired else Phase.PROBING_ALONE
    if state.phase is not expected:
        return state, ()
    if not event.passed:
        where = "with a good node" if event.paired else "alone"
        return _to(state, Phase.CORDONED, event.at, f"the probe {where} failed: {event.detail}"), ()
    if event.paired:
        return _to(state, Phase.PROBATION, event.at, event.detail), ()
    return _to(state, Phase.PROBING_PAIRED, event.at, event.detail), (Probe(paired=True),)


def _held(state: ReturnState, event: CordonedByOthers, terms: Terms) -> Result:
    if event.by == state.held_by:
        return state, ()
    held = replace(state, held_by=event.by, trail=(*state.trail, ("held", event.at, event.by or "let go")))
    if event.by is None and state.phase is Phase.CLEARED and state.awaits is None:
        return _ask(replace(held, since=event.at), Part.UNCORDON, terms)
    return held, ()
