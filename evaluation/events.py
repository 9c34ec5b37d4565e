"""What happens in an evaluation run, and what the coordinator asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evaluation.workload import Piece, Slot

__all__ = [
    "Command",
    "Event",
    "Finish",
    "GiveUp",
    "LeaveNode",
    "NodeLost",
    "NodeModel",
    "PieceWritten",
    "SlotsChanged",
    "StageEnded",
    "StageModel",
    "StartTrial",
    "StartVerification",
    "StopTrial",
    "Tick",
    "TrialEnded",
    "VerificationEnded",
]


class NodeModel(StrEnum):
    """Where a node's trials read the model."""

    COMING = "coming"
    STAGED = "staged"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but that time passed; the first event of a run."""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The slots that may be used from now on; a trial on another one is stopped and its slot is given back."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node can take no more; what ends badly there is not the doing of its dataset. Told before the ends of its processes."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class StageEnded:
    """`error` None: the model is in the node's shared memory. `again`: its precursor died or it was evicted, so try once more."""

    node: str
    error: str | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class PieceWritten:
    """All of a running trial's outputs of one dataset that are on disk by now."""

    trial: int
    dataset: str
    samples: frozenset[int]


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """`samples` on disk by dataset; `error` None where it ended well; `lost`: killed from outside, its node may be gone."""

    trial: int
    samples: Mapping[str, frozenset[int]]
    error: str | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class VerificationEnded:
    """`samples` of the job that have a verdict now; `error` says why others have none."""

    job: int
    samples: frozenset[int]
    error: str | None = None


Event = Tick | SlotsChanged | NodeLost | StageEnded | PieceWritten | TrialEnded | VerificationEnded


@dataclass(frozen=True, slots=True)
class StageModel:
    node: str


@dataclass(frozen=True, slots=True)
class StartTrial:
    trial: int
    slot: Slot
    pieces: tuple[Piece, ...]
    model: NodeModel


@dataclass(frozen=True, slots=True)
class StopTrial:
    trial: int
    why: str


@dataclass(frozen=True, slots=True)
class StartVerification:
    job: int
    dataset: str
    samples: frozenset[int]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A dataset is left unfinished."""

    dataset: str
    why: str


@dataclass(frozen=True, slots=True)
class LeaveNode:
    """No trial is started on this node any more."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do, or nothing can be done."""

    why: str


Command = StageModel | StartTrial | StopTrial | StartVerification | GiveUp | LeaveNode | Finish
