"""Ranks that go on in their processes when others are lost: what the agent tells them, and what they tell the agent.

Both through files beside the monitors (`pitstop.elastic.membership` is the ranks' side): the formation, which the agent replaces
whole, and a mark of each rank that can go on, with the generation above which it waits once it has left its group.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from detectors.processes import ProcessId, scheduling

__all__ = ["FORMATION", "Marks", "Stuck", "judge_stuck", "read_marks", "remove_formation", "stopped_ranks", "write_formation"]

FORMATION = "formation"
# A rank whose peers have left learns of it when it comes to its next collective; one that does not come to it hangs.
STUCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Marks:
    """Ranks that can go on in their process, and of them those that wait for a generation above the one given."""

    elastic: frozenset[int] = frozenset()
    waiting: Mapping[int, int] | None = None

    def waiting_above(self, generation: int) -> frozenset[int]:
        return frozenset(rank for rank, above in (self.waiting or {}).items() if above >= generation)


@dataclass(frozen=True, slots=True)
class Stuck:
    """What to do about ranks whose peers wait: `lost` are to be ended; without any, all of them go on in a new group."""

    lost: frozenset[int]
    why: str


def read_marks(path: Path, processes: Mapping[int, ProcessId]) -> Marks:
    """The marks that the present processes made."""
    elastic, waiting = set(), {}
    for rank, process in processes.items():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(path.with_name(f"{path.name}.{rank}").read_text(encoding="utf-8"))
            if document["pid"] != process.pid:
                continue
            elastic.add(rank)
            if document["waits_above"] is not None:
                waiting[rank] = int(document["waits_above"])
    return Marks(frozenset(elastic), waiting)


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


def judge_stuck(running: Collection[int], waiting: Collection[int], stopped: Collection[int], seconds: float) -> Stuck | None:
    """Ranks wait for a new group though nobody has died, since `seconds`: because of whom?

    A stopped process is lost at once: it must not wake up among those that went on. Where all wait, nobody is to blame.
    """
    others = frozenset(running) - frozenset(waiting)
    if not waiting:
        return None
    if not others:
        return Stuck(frozenset(), "all ranks left their group, and all of them are there")
    halted = others & frozenset(stopped)
    if halted:
        return Stuck(halted, f"rank {min(halted)} is stopped, and its peers went on without it")
    if seconds >= STUCK_SECONDS:
        return Stuck(others, f"rank {min(others)} did not leave its group within {seconds:.1f} s of its peers")
    return None


def stopped_ranks(processes: Mapping[int, ProcessId]) -> frozenset[int]:
    found = {rank: scheduling(process) for rank, process in processes.items()}
    return frozenset(rank for rank, state in found.items() if state is not None and state.state in "Tt")
