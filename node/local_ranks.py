"""This node's ranks with all that is followed of them: their processes, log lines, monitors, and what the detectors say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from detectors.statistics.judgement import Finding, Judgement
from detectors.supervisor import RankExit
from node.dumps import read_dumps
from node.formation import Place
from node.inquiry import Inquiry
from node.job_state import JobFolder, Placement
from node.log_shipping import BATCH_LINES, LogShipping, notice_log
from node.monitors import RankReading
from node.rank_group import Launch, RankGroup
from node.ranks import StoreAddress
from node.reforming import Marks
from node.watch import Watch

__all__ = ["LocalRanks"]

SHIP_SECONDS = 0.5
# A rank that writes a flood is caught up with, but not at the cost of looking at the others.
SHIP_BATCHES = 4


class LocalRanks:
    """The part that an agent plays for the ranks of its node, whoever keeps the generation."""

    def __init__(
        self,
        launch: Launch,
        folder: JobFolder,
        placement: Placement,
        shipping: LogShipping,
        say: Callable[[str], None],
        on_exit: Callable[[RankExit], None],
        on_raised: Callable[[RankExit], None],
    ) -> None:
        self.group = RankGroup(launch, folder, placement, on_exit, on_raised, say)
        self.shipping = shipping
        self._folder = folder
        self._say = say
        self._watch = Watch({})
        self._shipped_at = 0.0
        self._inquiry = Inquiry.here()
        self._held: list[Judgement] = []
        self._dumps_told: set[str] = set()

    @property
    def ranks(self) -> frozenset[int]:
        """Those that were started here last, running or not."""
        return frozenset(self.group.processes)

    @property
    def hang(self) -> Judgement | None:
        """What held them up at the last look, told before or not."""
        return self._watch.hang

    def readings(self) -> dict[int, RankReading]:
        return self.group.readings()

    def start(self, generation: int, resume: Mapping[str, Any], place: Place, store: StoreAddress | None = None) -> None:
        """Raises KeeperError; no rank runs then."""
        self.group.start(generation, resume, place, store)
        self.attend()

    def reform(self, generation: int, members: Collection[int], store: StoreAddress | None = None) -> None:
        """Raises KeeperError, OSError; the ranks then wait on."""
        self.group.reform(generation, members, store)
        self.attend()

    def rejoin(self, generation: int, ranks: Collection[int], place: Place, store: StoreAddress | None = None) -> None:
        """Start lost ranks beside the others; `reform` takes them in. Raises KeeperError."""
        self.group.rejoin(generation, ranks, place, store)
        self.shipping.refresh()

    def marks(self, running: Collection[int]) -> Marks:
        """What those of `running` that are here have told of themselves."""
        return self.group.marks({*running, *self.group.rejoining})

    def attend(self) -> None:
        """Watch the ranks that the group has now, as if they had just begun."""
        self._watch = Watch(self.group.processes)
        # Answers about ranks that are gone say nothing of these.
        self._inquiry, self._held = Inquiry.here(), []
        self.shipping.refresh()

    def flush(self, ended: Iterable[RankExit], generation: int) -> None:
        """Cut into batches what the ranks wrote up to now."""
        for text in read_dumps(self._folder.logs / str(generation)):
            if text not in self._dumps_told:
                self._dumps_told.add(text)
                self.note(text, generation)
        self.shipping.refresh()
        with contextlib.suppress(OSError):
            self.shipping.flush((item.generation, item.rank) for item in ended)

    def ship(self, ended: Iterable[RankExit], now: float) -> None:
        """Cut what was added into batches, as often as is worth it."""
        if now - self._shipped_at < SHIP_SECONDS:
            return
        self._shipped_at = now
        finished = [(item.generation, item.rank) for item in ended]
        with contextlib.suppress(OSError):
            for _ in range(SHIP_BATCHES):
                # What came while a batch was cut waits for the next turn: a request costs more than its lines.
                if self.shipping.ship(finished) < BATCH_LINES:
                    break

    def judge(self, readings: Mapping[int, RankReading], running: Iterable[int], generation: int, now: float) -> list[Judgement]:
        """What is new about the ranks that run; each is said, and written where the ranks' lines are shipped from.

        A hang is said at once, and given when the stacks of its ranks were taken: what follows from it may end them.
        """
        found = self._watch.look(readings, [rank for rank in running if rank in readings], now)
        for judgement in found:
            self._note(judgement, generation)
        if any(judgement.finding is Finding.HANG and judgement.firm for judgement in found):
            self._inquiry.begin({rank: process for rank, process in self.group.processes.items() if rank in readings})
        waits = self._inquiry.waits
        for text in self._inquiry.lines():
            self.note(text, generation)
        found, self._held = [*self._held, *found], []
        if waits:
            self._held = [judgement for judgement in found if judgement.finding is Finding.HANG]
            found = [judgement for judgement in found if judgement.finding is not Finding.HANG]
        return found

    def _note(self, judgement: Judgement, generation: int) -> None:
        word = judgement.finding.value.replace("_", " ")
        self.note(f"{word}{'' if judgement.firm else ' (suspected)'}: {judgement.why}", generation)

    def note(self, text: str, generation: int) -> None:
        """Say what the agent itself noticed, and keep it among the job's lines."""
        self._say(text)
        path = Path(notice_log(self._folder.logs, generation))
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with path.open("a", encoding="utf-8") as target:
                target.write(f"pitstop monitor: {text}\n")
        self.shipping.refresh()

    def finish(self, generation: int) -> None:
        """Everything of the job on this node ends; what it said is cut into batches to the last line."""
        ranks = self.ranks
        self.group.finish()
        self.shipping.refresh()
        with contextlib.suppress(OSError):
            self.shipping.flush((past, rank) for past in range(generation + 1) for rank in ranks)
