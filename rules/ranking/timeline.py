"""The life of the job as its lines tell it: phases, warnings that healed, and failures that a later attempt left behind."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rules.pack import Mark, Phase
from rules.ranking.observation import Observation, position
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy

__all__ = ["Settled", "Timeline", "settle"]

BEGINNINGS = (Mark.START, Mark.PREPARATION, Mark.LOADING, Mark.RESTART)
ENDED_BY = {Mark.SAVED: (Mark.SAVE,), Mark.PROGRESS: (*BEGINNINGS, Mark.SAVE), Mark.FINISHED: (*BEGINNINGS, Mark.SAVE)}
# Marks by which a new attempt shows that it lives; late words of the old one are none of them.
ALIVE = (Mark.START, Mark.PREPARATION, Mark.LOADING, Mark.PROGRESS)
# Without step numbers, a completed step this many lines later shows that the process went on.
LINES_BETWEEN = 20
# This many steps after an error show that the program caught it.
STEPS_SURVIVED = 5
# Errors that a program can catch and live with, by family.
SURVIVABLE = frozenset(
    (
        "ConfigError",
        "ConnectionError",
        "DatasetLoadingError",
        "EnvironmentMismatch",
        "FileAccessError",
        "ModelLoadingError",
        "OutOfMemoryError",
        "RuntimeError",
        "ScriptException",
    )
)
# Of the other families, what a program can try again or need not notice: one read or write that failed, an event of a link that
# harms nothing.
SURVIVABLE_REASONS = frozenset(("nvlink_nonfatal_event", "storage_io_error"))
STOPPED_FROM_OUTSIDE = "SchedulerStop"
# What the processes that end last say of those that have ended.
LAST_WORDS = frozenset(("remote_peer_lost", "rendezvous_store_unreachable"))
Stream = tuple[str, int | None, str | None]


def stream_of(item: Observation) -> Stream:
    """The process that printed a line, as far as the line tells: its file and its rank, or without a rank its node."""
    return item.line.path, item.line.rank, item.line.node if item.line.rank is None else None


def ends(item: Observation, other: Observation) -> bool:
    """Whether a mark at `item` can end one at `other`: the same process, or a step that names neither rank nor node."""
    anonymous = item.marks(Mark.PROGRESS) and item.line.rank is None and item.line.node is None
    same_place = item.line.path == other.line.path and item.line.rank == other.line.rank
    return same_place and (anonymous or stream_of(item) == stream_of(other))


class Timeline:
    """Which marks stand at each observation. A mark is ended by a completed step of the same process, a save by its end."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._standing: list[tuple[Observation, ...]] = []
        self._step_before: list[Observation | None] = []
        self._last_step: dict[Stream, Observation] = {}
        self._last_start: dict[Stream, Observation] = {}
        self._steps: dict[Stream, list[Observation]] = defaultdict(list)
        self._ends: list[Observation] = []
        self._alive: list[Observation] = []
        self.attempts: list[int] = []
        standing: tuple[Observation, ...] = ()
        restarted = False
        for item in observations:
            stream, mark = stream_of(item), item.rule.marks
            self._standing.append(standing)
            self._step_before.append(self._last_step.get(stream))
            if mark is None:
                continue
            if mark is Mark.RESTART:
                restarted = True
            elif restarted and mark in ALIVE:
                restarted = False
                self.attempts.append(item.order)
            ended = (*ENDED_BY.get(mark, ()), mark)
            standing = tuple(other for other in standing if not ends(item, other) or other.rule.marks not in ended)
            if mark in (Mark.START, Mark.RESTART):
                self._last_start[stream] = item
            if mark is Mark.FINISHED:
                self._ends.append(item)
            if mark in ALIVE:
                self._alive.append(item)
            if mark in (Mark.PROGRESS, Mark.FINISHED):
                self._last_step[stream] = item
                self._steps[stream].append(item)
            else:
                standing = (*standing, item)

    def standing(self, at: Observation, *marks: Mark) -> Observation | None:
        """The last of `marks` that stands when `at` is printed."""
        return next((item for item in reversed(self._standing[at.order]) if item.marks(*marks)), None)

    def is_starting(self, at: Observation) -> bool:
        """Whether visible lines prove that the job had not completed a step when `at` was printed."""
        return self.standing(at, Mark.START, Mark.RESTART) is not None

    def went_on_after(self, at: Observation) -> Observation | None:
        """The last completed step of the same process, where it was completed after the last of the equal lines of `at`.

        A progress bar is drawn once more when its process dies: only a higher step, or lines enough in between, count.
        """
        after = self._last_step.get(stream_of(at))
        if after is None or after.last.number <= at.last.number:
            return None
        before = self._step_before[at.order]
        step, earlier = after.number("step"), before.number("step") if before else None
        if step is not None and earlier is not None:
            return after if step > earlier else None
        return after if after.last.number - at.last.number >= LINES_BETWEEN or after.marks(Mark.FINISHED) else None

    def survived(self, at: Observation) -> Observation | None:
        """The last completed step of the same process, where steps enough after `at` show that it lived on without a new start.

        A few steps more prove nothing in a log where the other ranks print as nobody: they stop at their next collective.
        """
        stream = stream_of(at)
        if at.line.rank is not None or at.line.node is not None:
            # Where ranks share a log, what still prints under a rank's name need not be the process that failed.
            return None
        start = self._last_start.get(stream)
        steps = [item for item in self._steps[stream] if not item.marks(Mark.FINISHED)]
        later = [item for item in steps if item.line.number > at.last.number]
        if not later or (start is not None and start.order > at.order):
            return None
        before = self._step_before[at.order]
        numbers = [item.number("step") for item in ((before, *later) if before else later)]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers) or known != sorted(known):
            return None
        return later[-1] if known[-1] - known[0] >= (STEPS_SURVIVED if before else 1) else None

    def finished_after(self, at: Observation) -> Observation | None:
        """The end of the job, where it is told after `at` and a step was completed in between."""
        ends = [item for item in self._ends if item.line.path == at.line.path and item.line.number > at.last.number]
        steps = [item for of_stream in self._steps.values() for item in of_stream if not item.marks(Mark.FINISHED)]
        if not ends or not any(at.last.number < item.last.number < ends[-1].line.number for item in steps):
            return None
        return ends[-1]

    def finished_before(self, at: Observation) -> Observation | None:
        """The end of the job, where it is told before `at` and nothing in the same file shows that a job lived after it."""
        of_file = [item for item in (*self._ends, *self._alive) if item.line.path == at.line.path and item.order < at.order]
        last = max(of_file, key=lambda item: item.order, default=None)
        return last if last is not None and last.marks(Mark.FINISHED) else None

    def attempt_of(self, order: int) -> int:
        """How many later attempts had come to life when the observation of this order was made."""
        return bisect_right(self.attempts, order)


@dataclass(frozen=True, slots=True)
class Settled:
    """Observations that count, and what was set aside with the reason for it."""

    kept: tuple[Observation, ...]
    set_aside: tuple[tuple[Observation, str], ...]


def agree(one: Observation, other: Observation, names: Sequence[str]) -> bool:
    """Whether two lines speak of the same thing, as far as both name it."""
    return all(
        one.capture(name) is None or other.capture(name) is None or one.capture(name) == other.capture(name) for name in names
    )


def healed_by(healers: Sequence[Observation], at: Observation) -> Observation | None:
    """A later line that says that what `at` reports works again."""
    for item in healers:
        if at.is_named_by(item.rule.recovers) and item.order > at.order:
            later = item.last.path != at.last.path or item.last.number > at.last.number
            if later and agree(item, at, ("peer", "node", "link", "gpu", "service", "path")):
                return item
    return None


def brought_down(observations: Sequence[Observation], at: Observation, healer: Observation) -> Observation | None:
    """What failed before `healer` told that `at` was over, and may have come of it: its end came too late for that."""
    meanwhile = [item for item in observations if at.order < item.order < healer.order and not item.rule.transient]
    failed = [item for item in meanwhile if item.role in (Role.ROOT, Role.CASCADE) and item.is_named_by(at.rule.overrides)]
    return failed[0] if failed else None


def may_come_of(failure: Observation, warning: Observation) -> bool:
    """Whether what the software retried in vain may show as `failure`: one that its rule names, or one that names nothing."""
    return failure.reason in (None, UNKNOWN, warning.reason) or failure.is_named_by(warning.rule.overrides)


def settle(observations: Sequence[Observation], timeline: Timeline) -> Settled:
    """Set aside what its position, its number or a later line shows to be no failure.

    Position: a rule limited to a phase counts only in it. Number: fewer matches than the rule asks for are noise. Later lines: a
    recovery that the rule names, where nothing failed of it meanwhile; for a warning that the software retries by itself
    (`transient`), the absence of a failure after it that may have come of it; for such a warning and for a sign of trouble
    without a cause (`unknown`), a completed step of the same process. Earlier lines: what is said of peers and stores that went
    away after the job had ended well.
    """
    counts: dict[str, int] = defaultdict(int)
    for item in observations:
        counts[item.rule.code] += item.signal.count
    families = load_taxonomy()
    healers = [item for item in observations if item.rule.recovers]
    kept: list[Observation] = []
    aside: list[tuple[Observation, str]] = []
    for item in observations:
        if item.role is Role.CONTEXT:
            kept.append(item)
        elif counts[item.rule.code] < item.rule.at_least:
            aside.append((item, f"seen {counts[item.rule.code]} times; fewer than {item.rule.at_least} are noise"))
        elif item.rule.phase and (item.rule.phase is Phase.START) != timeline.is_starting(item):
            aside.append((item, "means something else at this point of the run"))
        elif (healer := healed_by(healers, item)) and not brought_down(observations, item, healer):
            aside.append((item, f"works again at {position(healer.line)}"))
        elif (item.reason == UNKNOWN or item.rule.transient) and (
            step := timeline.went_on_after(item) or timeline.survived(item)
        ):
            aside.append((item, f"training went on at {position(step.last)}"))
        elif item.role is Role.CASCADE and item.reason in LAST_WORDS and (end := timeline.finished_before(item)):
            aside.append((item, f"the job had ended well at {position(end.line)}"))
        elif (
            item.reason
            and (families[item.reason].family in SURVIVABLE or item.reason in SURVIVABLE_REASONS)
            and (step := timeline.survived(item))
        ):
            aside.append((item, f"the program lived on: training went on at {position(step.last)}"))
        elif item.reason and families[item.reason].family == STOPPED_FROM_OUTSIDE and (end := timeline.finished_after(item)):
            aside.append((item, f"the job was started again and ended well at {position(end.line)}"))
        else:
            kept.append(item)
    failing = [item for item in kept if item.role in (Role.ROOT, Role.CASCADE) and not item.rule.transient]
    named = {position(item.line) for item in failing if item.reason != UNKNOWN}
    failing = [item for item in failing if item.reason != UNKNOWN or position(item.line) not in named]
    settled = []
    for item in kept:
        if not item.rule.transient or item.role is Role.CONTEXT:
            settled.append(item)
        elif not (later := [failure for failure in failing if failure.order > item.order]):
            aside.append((item, "a warning that the software retries by itself, and no failure follows"))
        elif not any(may_come_of(failure, item) for failure in later):
            aside.append((item, f"a warning that the software retries by itself; what failed is at {position(later[0].line)}"))
        else:
            settled.append(item)
    return Settled(tuple(settled), tuple(aside))
