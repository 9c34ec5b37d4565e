"""Ranks that go on in their processes when others are lost: what the agent tells them, and what they tell the agent.

Both through files beside the monitors (`pitstop.elastic.membership` is the ranks' side): the formation, which the agent replaces
whole, and a mark of each rank that can go on, with the generation above which it waits once it has left its group.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId, scheduling

__all__ = [
    "FORMATION",
    "Marks",
    "Patience",
    "Stuck",
    "judge_stuck",
    "marks_document",
    "marks_of",
    "read_marks",
    "remove_formation",
    "write_formation",
]

FORMATION = "formation"
# A rank whose peers have left learns of it when it comes to its next collective; one that does not come to it hangs.
STUCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Marks:
    """Ranks that can go on in their process; of them those that wait for a generation above the one given.

    `priced`: those of them for which going on with fewer has its price, so that the service says whether it is the best way;
    `stopped`: ranks whose processes a signal or a debugger holds, as far as somebody waits for them.
    """

    elastic: frozenset[int] = frozenset()
    waiting: Mapping[int, int] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()
    priced: frozenset[int] = frozenset()

    def waiting_above(self, generation: int) -> frozenset[int]:
        return frozenset(rank for rank, above in self.waiting.items() if above >= generation)

    def __or__(self, other: Marks) -> Marks:
        return Marks(
            self.elastic | other.elastic,
            {**self.waiting, **other.waiting},
            self.stopped | other.stopped,
            self.priced | other.priced,
        )


def marks_document(marks: Marks) -> dict[str, Any]:
    """As one agent tells them to another."""
    return {
        "elastic": sorted(marks.elastic),
        "waiting": sorted(marks.waiting.items()),
        "stopped": sorted(marks.stopped),
        "priced": sorted(marks.priced),
    }


def marks_of(document: Mapping[str, Any]) -> Marks:
    """None at all where it says nothing. Raises TypeError, ValueError."""
    waiting = {int(rank): int(above) for rank, above in document.get("waiting", ())}
    elastic, stopped, priced = (frozenset(document.get(name, ())) for name in ("elastic", "stopped", "priced"))
    return Marks(elastic, waiting, stopped, priced)


@dataclass(frozen=True, slots=True)
class Stuck:
    """What to do about ranks whose peers wait: `lost` are to be ended; without any, all of them go on in a new group.

    `unreachable`: nobody can end them, and nobody need: they are fenced off by the generation.
    """

    lost: frozenset[int]
    why: str
    unreachable: bool = False


class Patience:
    """Since when ranks wait for a new group though nobody has died."""

    def __init__(self) -> None:
        self._since: float | None = None

    def judge(
        self, running: Collection[int], marks: Marks, generation: int, out_of_reach: Collection[int], now: float
    ) -> Stuck | None:
        """As `judge_stuck`; `now` of a monotonic clock."""
        waiting = marks.waiting_above(generation) & frozenset(running)
        if not waiting:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        return judge_stuck(running, waiting, marks.stopped, now - self._since, out_of_reach)


def read_marks(path: Path, processes: Mapping[int, ProcessId]) -> Marks:
    """The marks that the present processes made."""
    elastic, priced, waiting = set(), set(), dict[int, int]()
    names: set[str] = set()
    # Of most jobs no rank makes a mark: to look into the folder costs less than to miss the file of each, ten times a second.
    with contextlib.suppress(OSError), os.scandir(path.parent) as found:
        names = {entry.name for entry in found}
    for rank, process in processes.items():
        if f"{path.name}.{rank}" not in names:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(path.with_name(f"{path.name}.{rank}").read_text(encoding="utf-8"))
            if document["pid"] != process.pid:
                continue
            elastic.add(rank)
            if document.get("priced"):
                priced.add(rank)
            if document["waits_above"] is not None:
                waiting[rank] = int(document["waits_above"])
    return Marks(frozenset(elastic), waiting, stopped_ranks(processes) if waiting else frozenset(), frozenset(priced))


def write_formation(
    path: Path, generation: int, members: Iterable[int], store: tuple[str, int], logs: Mapping[int, Path]
) -> None:
    """Tell the ranks. Raises OSError."""
    document = {
        "generation": generation,
        "members": sorted(members),
        "store": {"host": store[0], "port": store[1]},
        "logs": {str(rank): str(log) for rank, log in logs.items()},
    }
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    unfinished.replace(path)


def remove_formation(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def judge_stuck(
    running: Collection[int],
    waiting: Collection[int],
    stopped: Collection[int],
    seconds: float,
    out_of_reach: Collection[int] = (),
) -> Stuck | None:
    """Ranks wait for a new group though nobody has died, since `seconds`: because of whom?

    A stopped process is lost at once: it must not wake up among those that went on. So are ranks whose agent does not answer
    (`out_of_reach`) once they are all that is missing: their peers' collective is the second witness. Where all wait, nobody is
    to blame.
    """
    others = frozenset(running) - frozenset(waiting)
    if not waiting:
        return None
    if not others:
        return Stuck(frozenset(), "all ranks left their group, and all of them are there")
    if others <= frozenset(out_of_reach):
        return Stuck(others, f"ranks {sorted(others)} do not answer, and neither does their agent", unreachable=True)
    others -= frozenset(out_of_reach)
    halted = others & frozenset(stopped)
    if halted:
        return Stuck(halted, f"rank {min(halted)} is stopped, and its peers went on without it")
    if seconds >= STUCK_SECONDS:
        return Stuck(others, f"rank {min(others)} did not leave its group within {seconds:.1f} s of its peers")
    return None


def stopped_ranks(processes: Mapping[int, ProcessId]) -> frozenset[int]:
    found = {rank: scheduling(process) for rank, process in processes.items()}
    return frozenset(rank for rank, state in found.items() if state is not None and state.state in "Tt")
