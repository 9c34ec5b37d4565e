"""Process supervision, the pure part: what the exit status of a rank says about a failure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from detectors.processes import signal_name
from rules.signal import Line, Role, Signal, SignalKind, Trust

__all__ = ["EXIT_RULES", "RankExit", "exit_signal", "exit_signals", "first_failure"]


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended. `code` and `signal` are both None where nobody could learn it; `time` in seconds since the epoch.

    `error` is the message of the rank's error file (torchelastic's form), `error_time` what stands in it.
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
        return "ended with a status nobody could read" if self.code is None else f"exit code {self.code}"


# signal -> (rule, reason). The codes are those of an exit, not of a line: no pack holds them.
EXIT_RULES: dict[int, tuple[str, str]] = {
    signal.SIGKILL: ("PS-EXIT-SIGKILL", "process_killed_sigkill"),
    signal.SIGSEGV: ("PS-EXIT-SIGSEGV", "process_segfault"),
    signal.SIGBUS: ("PS-EXIT-SIGBUS", "process_bus_error"),
    signal.SIGTERM: ("PS-EXIT-SIGTERM", "terminated_by_sigterm"),
    signal.SIGINT: ("PS-EXIT-SIGINT", "user_interrupt"),
    signal.SIGHUP: ("PS-EXIT-SIGHUP", "terminal_hangup"),
}
UNATTRIBUTED = ("PS-EXIT", "process_exit_unattributed")
# Shells and containers report a death by signal as 128 + its number.
SHELL_OFFSET = 128


def exit_signal(item: RankExit, trust: Trust, node: str | None = None) -> Signal | None:
    """The signal that one exit is; None where the rank ended well or was ended by us.

    A death by signal names its reason; an exit code alone only says that something ended: the lines before it know more.
    """
    if not item.failed:
        return None
    number = item.signal
    if number is None and item.code is not None and item.code - SHELL_OFFSET in EXIT_RULES:
        number = item.code - SHELL_OFFSET
    rule, reason = EXIT_RULES.get(number, UNATTRIBUTED) if number is not None else UNATTRIBUTED
    text = f"rank {item.rank}: {item.description}" + (f": {item.error}" if item.error else "")
    captures = {"rank": str(item.rank)}
    if item.code is not None:
        captures["exit_code"] = str(item.code)
    if number is not None:
        captures["signal"] = signal_name(number)
    line = Line(text, 1, path="exit status", rank=item.rank, node=node, time=item.time, trust=trust)
    role = Role.ROOT if number is not None else Role.CONTEXT
    return Signal(rule, reason, role, line, kind=SignalKind.EXIT, captures=captures)


def exit_signals(exits: Iterable[RankExit], trust: Trust, node: str | None = None) -> tuple[Signal, ...]:
    """Signals of all failed ranks, the first observed failure first; ranks that failed after it are its cascade.

    A peer's death breaks the collectives of the others within milliseconds, so that only the first exit may be a root.
    """
    signals: list[Signal] = []
    for item in sorted((item for item in exits if item.failed), key=when):
        found = exit_signal(item, trust, node)
        if found is not None:
            cascade = bool(signals) and found.role is Role.ROOT
            signals.append(
                Signal(found.rule, found.reason, Role.CASCADE, found.line, found.kind, found.captures) if cascade else found
            )
    return tuple(signals)


def first_failure(exits: Iterable[RankExit]) -> RankExit | None:
    """The first observed failure (torchelastic's rule: the earliest timestamp over all ranks)."""
    return min((item for item in exits if item.failed), key=when, default=None)


def when(item: RankExit) -> float:
    # Error files hold whole seconds: they may order ranks only where they precede the exit by more than that.
    if item.error_time is not None and item.error_time + 1 < item.time:
        return item.error_time
    return item.time
