"""What the agent notices by looking: monitors and process states go in, judgements come out, each one once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from detectors.processes import ProcessId, Scheduling, scheduling
from detectors.statistics.hang import HangLimits, ProcessState, RankPulse, judge_hang
from detectors.statistics.judgement import Finding, Judgement
from detectors.statistics.loss import judge_finite, judge_loss_spike, judge_vanished
from detectors.statistics.pace import judge_slow_down, judge_stragglers
from detectors.statistics.usage import judge_under_use
from node.monitors import RankReading
from pitstop.layout import Progress, Section

__all__ = ["Watch"]

LOSS = "loss"
WINDOW_STEPS = 128
# Own seconds a step are compared over windows of this many steps of the slowest rank.
STRAGGLER_STEPS = 5
# A change point costs a millisecond to look for.
PACE_STEPS, PACE_WINDOW = 16, 64
USAGE_SECONDS = 60.0
SCHEDULING_SECONDS = 0.3
BUSY_SHARE = 0.6
# A first checkpoint or evaluation says how long they take; of steps it takes a few more.
FEW = 2
# A single NaN may be skipped by the trainer; a loss that stays NaN is lost work.
LASTING_STEPS = 3


@dataclass(slots=True)
class RankHistory:
    """What one rank said so far in this generation."""

    completed: int = 0
    paced: int = 0
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    reported: dict[str, deque[int]] = field(default_factory=dict)
    not_finite_since: int | None = None
    window_start: Progress | None = None
    usage_start: tuple[float, Progress] | None = None


class Watch:
    """Of one generation. `now` is CLOCK_MONOTONIC in seconds, as in the monitor files."""

    def __init__(self, processes: Mapping[int, ProcessId], limits: HangLimits = HangLimits()) -> None:
        self._processes = processes
        self._limits = limits
        self._histories = {rank: RankHistory() for rank in processes}
        self._windows: deque[dict[int, float]] = deque(maxlen=8)
        self._scheduling: dict[int, tuple[float, Scheduling]] = {}
        self._states: dict[int, ProcessState] = {}
        self._said: set[tuple[object, ...]] = set()
        # What holds the ranks up at present, said before or not.
        self.hang: Judgement | None = None

    def look(self, readings: Mapping[int, RankReading], running: Iterable[int], now: float) -> list[Judgement]:
        """What is new since the last look. A judgement is repeated only after it ceased to hold in between."""
        present = {rank: reading.progress for rank in running if (reading := readings[rank]).progress is not None}
        progress = {rank: value for rank, value in present.items() if value is not None}
        self._read_states(progress, now)
        found: list[Judgement] = []
        self.hang = judge_hang([self._pulse(rank, value, now) for rank, value in progress.items()], self._limits)
        if self.hang is not None:
            found.append(self.hang)
        for rank, value in progress.items():
            found += self._numbers(rank, value, readings[rank], now)
        found += self._stragglers(progress)
        keys = {(item.finding, item.rank, item.firm, item.holding_back): item for item in found}
        new = [item for key, item in keys.items() if key not in self._said]
        # What is judged at every look may cease; what is judged at a step only was said for good.
        lasting = {key for key in self._said if key[0] not in (Finding.HANG, Finding.VANISHED_FIELD)}
        self._said = lasting | set(keys)
        return new

    def _read_states(self, progress: Mapping[int, Progress], now: float) -> None:
        for rank in progress:
            before = self._scheduling.get(rank)
            if before is not None and now - before[0] < SCHEDULING_SECONDS:
                continue
            found = scheduling(self._processes[rank])
            if found is None:
                continue
            self._scheduling[rank] = now, found
            if found.state in "Tt":
                self._states[rank] = ProcessState.STOPPED
            elif found.state == "D" and before is not None and before[1].state == "D":
                self._states[rank] = ProcessState.DISK
            elif before is not None:
                share = (found.runnable_seconds - before[1].runnable_seconds) / (now - before[0])
                self._states[rank] = ProcessState.BUSY if share > BUSY_SHARE else ProcessState.IDLE

    def _pulse(self, rank: int, progress: Progress, now: float) -> RankPulse:
        times = progress.times[progress.section]
        enough = times.finished >= (self._limits.warm_up if progress.section is Section.STEP else FEW)
        return RankPulse(
            rank=rank,
            step=progress.step,
            section=progress.section.name.lower(),
            elapsed_seconds=max(0.0, now - progress.since_ns / 1e9),
            mean_seconds=times.seconds / times.finished if enough else None,
            longest_seconds=times.longest,
            state=self._states.get(rank, ProcessState.IDLE),
            outside=progress.section is Section.OUTSIDE,
        )

    def _numbers(self, rank: int, progress: Progress, reading: RankReading, now: float) -> list[Judgement]:
        history = self._histories[rank]
        if progress.completed < history.completed:
            # A launcher of its own started this rank again.
            history = self._histories[rank] = RankHistory()
        if progress.completed == history.completed:
            return []
        if history.completed:
            history.step_seconds.append(progress.last_step_ns / 1e9)
        history.completed = progress.completed
        found: list[Judgement] = []
        for name, (step, value) in reading.metrics.items():
            steps = history.reported.setdefault(name, deque(maxlen=WINDOW_STEPS))
            if steps and steps[-1] == step:
                continue
            steps.append(step)
            if name == LOSS:
                history.losses.append((step, value))
        found += judge_vanished(history.reported, progress.step)
        found += self._finite(history, reading, rank)
        spike = judge_loss_spike(list(history.losses))
        slow = None
        if progress.completed - history.paced >= PACE_STEPS:
            history.paced = progress.completed
            slow = judge_slow_down(list(history.step_seconds)[-PACE_WINDOW:])
        found += [
            Judgement(item.finding, f"rank {rank}: {item.why}", item.value, item.limit, rank, item.step)
            for item in (spike, slow)
            if item is not None
        ]
        return found + self._usage(history, progress, now)

    def _finite(self, history: RankHistory, reading: RankReading, rank: int) -> list[Judgement]:
        judgement = judge_finite(reading.metrics, rank)
        if judgement is None or judgement.step is None:
            history.not_finite_since = None
            return []
        if history.not_finite_since is None:
            history.not_finite_since = judgement.step
        firm = judgement.step - history.not_finite_since >= LASTING_STEPS - 1
        why = f"rank {rank}: {judgement.why}" + (f", and since step {history.not_finite_since}" if firm else "")
        since = history.not_finite_since
        return [Judgement(judgement.finding, why, judgement.value, judgement.limit, rank, judgement.step, firm, since=since)]

    def _usage(self, history: RankHistory, progress: Progress, now: float) -> list[Judgement]:
        if history.usage_start is None or now - history.usage_start[0] >= USAGE_SECONDS:
            before, history.usage_start = history.usage_start, (now, progress)
            if before is not None:
                began, start = before
                seconds = {
                    section.name.lower(): progress.times[section].seconds - start.times[section].seconds for section in Section
                }
                return list(judge_under_use(seconds, now - began))
        return []

    def _stragglers(self, progress: Mapping[int, Progress]) -> list[Judgement]:
        starts = {rank: self._histories[rank].window_start for rank in progress}
        window: dict[int, float] = {}
        for rank, value in progress.items():
            start = starts[rank]
            if start is None:
                if value.completed:
                    self._histories[rank].window_start = value
                continue
            steps = value.times[Section.STEP].finished - start.times[Section.STEP].finished
            if steps >= STRAGGLER_STEPS:
                window[rank] = (value.times[Section.STEP].seconds - start.times[Section.STEP].seconds) / steps
        if len(window) < len(progress) or len(window) < 2:
            return []
        for rank, value in progress.items():
            self._histories[rank].window_start = value
        self._windows.append(window)
        return list(judge_stragglers(list(self._windows)))
