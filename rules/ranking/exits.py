"""What exit codes and launcher summaries tell: which rank failed first, and what its signal usually means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.diagnosis import FaultDomain
from rules.pack import Mark
from rules.ranking.inference import Inference
from rules.ranking.observation import Observation, position
from rules.ranking.timeline import Timeline
from rules.taxonomy import UNKNOWN

__all__ = ["Exit", "exits_of", "first_to_fail", "infer_exits", "signal_number"]

SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGABRT": 6, "SIGBUS": 7, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15}
# A bar of weights being read is drawn until the process dies: one further up than this is of another time.
LOADING_LINES = 200
# Signal -> (reason, weight, what it says). Weights stay under those of any line that names a cause.
MEANING = {
    1: ("terminal_hangup", 38, "signal 1: the controlling terminal closed"),
    2: ("user_interrupt", 38, "signal 2: a person interrupted the job"),
    7: ("process_bus_error", 40, "signal 7: shared memory or a mapped file could not be backed"),
    9: ("process_killed_sigkill", 36, "signal 9 without a statement who sent it; host memory is the first suspect"),
    11: ("process_segfault", 40, "signal 11: a crash in native code"),
    15: ("terminated_by_sigterm", 24, "signal 15: stopped from outside or because a sibling failed"),
}
ABORTED = (
    "process_exit_unattributed",
    26,
    "signal 6: aborted by a watchdog or an uncaught exception; the summary alone names no cause",
)
ENDED = ("process_exit_unattributed", 22, "only the exit of the process is visible")
# A process that died by its own signal is why its peers lost it; that they did says nothing more.
DIED_ALONE = frozenset((-7, -9, -11))
SURVIVORS_COMPLAIN = frozenset(("remote_peer_lost", "nccl_timeout_unattributed", "process_exit_unattributed"))


@dataclass(frozen=True, slots=True)
class Exit:
    """One process's end as a launcher or scheduler reports it. `code` is negative for a signal; `failed_at` as printed."""

    code: int
    rank: str | None
    node: str | None
    failed_at: str | None
    source: Observation


def signal_number(text: str | None) -> int | None:
    """The number of a signal given as a number or a name."""
    if text is None:
        return None
    name = text.strip().upper()
    if name.isdigit():
        return int(name)
    return SIGNALS.get(name if name.startswith("SIG") else f"SIG{name}")


def exits_of(observations: Sequence[Observation]) -> tuple[Exit, ...]:
    """Every reported end of a process. A shell's 128+n counts as signal n; exit status 0 is no failure."""
    found = []
    for item in observations:
        if not item.marks(Mark.EXIT):
            continue
        code = item.number("exit_code")
        signal = signal_number(item.capture("signal"))
        if code is None and signal is not None:
            code = -signal
        if code is not None and 128 < code < 160:
            code = 128 - code
        if code is None or code == 0:
            continue
        rank = item.capture("rank") or (f"local rank {item.capture('local_rank')}" if item.capture("local_rank") else None)
        found.append(Exit(code, rank, item.capture("node"), item.capture("failed_at"), item))
    return tuple(found)


def first_to_fail(exits: Sequence[Exit]) -> Exit | None:
    """The exit with the earliest time, where times differ; with equal or no times the summary carries no information."""
    timed = sorted((item for item in exits if item.failed_at), key=lambda item: item.failed_at or "")
    if len(timed) > 1 and timed[0].failed_at != timed[1].failed_at:
        return timed[0]
    return None


def is_victim(code: int) -> bool:
    """Whether this end is usually the work of a launcher that tears a job down, or of a watchdog after another rank's failure."""
    return code in (-15, -6, 1)


def infer_exits(observations: Sequence[Observation], timeline: Timeline) -> list[Inference]:
    """The reason that exit codes alone support; the most telling code first: a rank's own signal before aborts, aborts
    before exit 1.
    """
    exits = exits_of(observations)
    if not exits:
        return []
    telling = [item for item in exits if not is_victim(item.code)]
    first = first_to_fail(exits)
    if first is not None and (not is_victim(first.code) or not telling):
        chosen = [first]
    elif telling:
        chosen = [item for item in telling if item.code == telling[0].code]
    else:
        aborted = [item for item in exits if item.code == -6]
        ended = [item for item in exits if item.code == 1]
        chosen = aborted or ended or list(exits)
    code = chosen[0].code
    reason, weight, why = MEANING.get(-code, ABORTED if code == -6 else ENDED)
    roots = tuple(item.source for item in chosen)
    ranks = {item.rank for item in chosen if item.rank}
    nodes = {item.node for item in chosen if item.node}
    domain = FaultDomain(rank=next(iter(ranks)) if len(ranks) == 1 else None, node=next(iter(nodes)) if len(nodes) == 1 else None)
    first_root = min(roots, key=lambda item: item.order)
    loading = timeline.standing(first_root, Mark.LOADING)
    # Equal bars are counted as one: the first or the last of them may be the one that stood there.
    ends = (loading.line.number, loading.last.number) if loading else ()
    if code == -9 and loading and any(0 <= first_root.line.number - end <= LOADING_LINES for end in ends):
        why = f"killed with signal 9 while weights were being loaded ({position(loading.last)})"
        return [Inference("host_oom_model_loading", 46, (loading, *roots), why, domain, frozenset(("process_killed_sigkill",)))]
    explains = SURVIVORS_COMPLAIN | {UNKNOWN} if code in DIED_ALONE else frozenset((UNKNOWN,))
    return [Inference(reason, weight, roots, why, domain, explains, established=False)]
