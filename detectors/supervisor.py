"""Process supervision, the pure part: what the exit status of a rank says about a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from detectors.processes import signal_name
from rules.signal import Line, Role, Signal, SignalKind, Trust

__all__ = ["EXIT_RULE", "RankExit", "exit_signal", "first_failure"]


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank (-1: a process without one) ended. `code` and `signal` are both None where nobody could learn it.

    `time` in seconds since the epoch. `error` is the message of the rank's error file (torchelastic's form), `error_time` what
    stands in it.
    """

    rank: int
    generation: int
    code: int | None
    signal: int | None
    time: float
    pid: int = 0
    error: str | None = None
    error_time: float | None = None
    step: int | None = None
    # We ended it ourselves, while stopping or restarting the others.
    by_us: bool = False

    @property
    def failed(self) -> bool:
        return not self.by_us and self.code != 0

    @property
    def description(self) -> str:
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        how = "ended with a status nobody could read" if self.code is None else f"exit code {self.code}"
        if not self.error:
            return how
        raised = self.error.splitlines()[0][:MAX_SAID] + ("" if self.step is None else f", at step {self.step}")
        return raised if self.code is None else f"{how} after {raised}"


# Of an exception's message, as much is said in a sentence.
MAX_SAID = 300
# The rule of rules/packs/life.yaml that reads the line below; what an exit means is ranking's to say.
EXIT_RULE = "PS-EXIT-001"
EXIT_PATH = "exit status"


def exit_signal(item: RankExit, trust: Trust, node: str | None = None, number: int = 1) -> Signal | None:
    """The signal that one exit is, as a line of its own; None where the rank ended well, was ended by us, or nobody knows how.

    `number` counts exits from 1, as the line number of the quoted evidence.
    """
    code = -item.signal if item.signal else item.code
    if not item.failed or code is None:
        return None
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    who = "a process" if item.rank < 0 else f"rank {item.rank}"
    text = f"{who} ended with {how}" + (f" on {node}" if node else "")
    line = Line(text, number, EXIT_PATH, None if item.rank < 0 else item.rank, node, item.time or None, trust)
    captures = {"exit_code": str(code)} | ({} if item.rank < 0 else {"rank": str(item.rank)}) | ({"node": node} if node else {})
    return Signal(EXIT_RULE, "", Role.CONTEXT, line, SignalKind.EXIT, captures)


def first_failure(exits: Iterable[RankExit]) -> RankExit | None:
    """The first observed failure (torchelastic's rule: the earliest timestamp over all ranks)."""
    return min((item for item in exits if item.failed), key=when, default=None)


def when(item: RankExit) -> float:
    # Error files hold whole seconds: they may order ranks only where they precede the exit by more than that.
    if item.error_time is not None and item.error_time + 1 < item.time:
        return item.error_time
    return item.time
