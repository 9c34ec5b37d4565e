"""What a statistical detector says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.signal import Line, Role, Signal, SignalKind, Trust
from rules.taxonomy import UNKNOWN

__all__ = ["Finding", "Judgement", "judgement_signal"]


class Finding(StrEnum):
    HANG = "hang"
    SLOW_DOWN = "slow_down"
    STRAGGLER = "straggler"
    LOSS_SPIKE = "loss_spike"
    NOT_FINITE = "not_finite"
    VANISHED_FIELD = "vanished_field"
    NO_PROGRESS = "no_progress"
    UNDER_USE = "under_use"


# The taxonomy's reason, for the findings that name one by themselves.
REASONS = {Finding.NOT_FINITE: "nan_loss", Finding.LOSS_SPIKE: "loss_spike"}
HOLDING_BACK = {"data": "data_loading_bottleneck"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """`value` went past `limit`, in the unit that `why` names. `rank` None: no one rank can be named.

    `since`: the first step of which this holds, where that is not `step`.
    """

    finding: Finding
    why: str
    value: float
    limit: float
    rank: int | None = None
    step: int | None = None
    firm: bool = True
    holding_back: str | None = None
    since: int | None = None

    @property
    def began(self) -> int | None:
        """The first step of which it holds."""
        return self.step if self.since is None else self.since


def judgement_signal(judgement: Judgement, time: float, trust: Trust, node: str | None = None) -> Signal:
    """The judgement as a signal: `time` in seconds since the epoch. It is a cause only where the taxonomy has a reason for it."""
    reason = REASONS.get(judgement.finding) or HOLDING_BACK.get(judgement.holding_back or "", UNKNOWN)
    line = Line(judgement.why, 1, path="monitor", rank=judgement.rank, node=node, time=time, trust=trust)
    captures = {"finding": judgement.finding.value, "value": f"{judgement.value:g}", "limit": f"{judgement.limit:g}"}
    if judgement.step is not None:
        captures["step"] = str(judgement.step)
    role = Role.ROOT if judgement.finding in REASONS else Role.CONTEXT
    code = f"PS-STAT-{judgement.finding.value.upper().replace('_', '-')}"
    return Signal(code, reason, role, line, kind=SignalKind.MEASUREMENT, captures=captures)
