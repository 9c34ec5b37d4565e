"""The training loss as a log prints it: the steps near its end with their losses, and whether the loss jumped and stayed up.

Megatron's table, dictionaries of the Hugging Face Trainer, progress bars (Lightning, tqdm), nanoGPT, torchtitan, NeMo and their
like all print a name that ends in `loss`, a number, and the step or the epoch. Losses of an evaluation, of parts of a model and
loss scales are no training loss; what is no number belongs to the rules (PS-NUM-001).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from detectors.reading.lines import LineMaker
from detectors.statistics.loss import find_loss_spike
from rules.signal import Role, Signal, SignalKind

__all__ = ["SPIKE_RULE", "LossTail"]

# The rule for a loss that jumped and stayed up, whoever saw it.
SPIKE_RULE = "PS-MON-004"

# So much of each block's end is looked at, and at least so much in all where there is as much.
BLOCK_BYTES, TAIL_BYTES = 1 << 16, 1 << 18
# More steps than these say nothing of the end.
MAX_STEPS = 2_048
# A rank that names itself nowhere may print this many steps behind another.
LATE_STEPS = 8
# More of one line than this is no step's.
MAX_PART_BYTES = 2_048

LOSS = re.compile(
    rb"(?P<name>(?:[A-Za-z][A-Za-z0-9_./-]{0,40}[ _/.-])?)[Ll]oss['\"]?[ :=|(\[]{1,4}['\"]?"
    rb"(?P<loss>-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?![\w%])"
)
# What may stand before `loss` where it is the one that is trained on; after digits and punctuation nothing does.
TRAINED_ON = frozenset(
    (b"", b"lm", b"train", b"training", b"reduced_train", b"global_avg", b"avg", b"average", b"mean", b"total")
)
STEP = re.compile(
    rb"(?:[Ii]teration|[Ii]ter|[Ss]teps?|STEP)['\"]?[ :=\[]{1,12}(?P<step>\d{1,12})\b(?!\.)"
    rb"|(?P<bar>\d{1,9})/\d{1,9} \[\d\d?:"
    rb"|\[ *(?P<table>\d{1,9})/ *\d{1,9}\]"
)
EPOCH = re.compile(rb"[Ee]poch['\"]?[ :=\[]{1,4}(?P<epoch>\d{1,6}(?:\.\d+)?)")
# A whole line about an evaluation, whatever its losses are called.
EVALUATION = re.compile(rb"(?i)\bvalidation\b|\beval(?:uat\w*)?\b|\btest set\b")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: its epoch and its step, as far as a line tells."""

    epoch: float | None
    step: int | None

    def falls_behind(self, other: Progress) -> bool:
        """Whether the run was at `other` before a new start."""
        if self.epoch is not None and other.epoch is not None and self.epoch != other.epoch:
            return self.epoch < other.epoch
        return self.step is not None and other.step is not None and self.step < other.step


@dataclass(slots=True)
class Curve:
    """Losses of one name and rank since the last start: (number of the line, line, step, loss)."""

    at: Progress
    points: deque[tuple[int, bytes, int, float]] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))

    def has(self, at: Progress) -> bool:
        """Whether the run was there a moment ago: another rank that names none prints a little later, or a bar is drawn again."""
        if at.step is None or at.epoch != self.at.epoch or not self.points:
            return False
        return self.points[max(-LATE_STEPS, -len(self.points))][2] <= at.step <= self.points[-1][2]


class LossTail:
    """The end of one log, as far as it is needed to judge its losses."""

    def __init__(self, maker: LineMaker) -> None:
        self._maker = maker
        self._parts: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def remember(self, data: bytes | memoryview, next_number: int, whole: bool) -> None:
        """`data`: whole lines, after which follows the line `next_number`; `whole`: look at more than their end."""
        part = bytes(data if whole else data[-BLOCK_BYTES:])
        if len(part) < len(data):
            part = part[part.find(b"\n") + 1 :]
        # Without a loss it is not worth its place.
        if b"oss" not in part:
            return
        self._parts.append((next_number - part.count(b"\n"), part))
        self._bytes += len(part)
        while self._bytes - len(self._parts[0][1]) >= TAIL_BYTES:
            self._bytes -= len(self._parts.popleft()[1])

    def spike(self) -> Signal | None:
        """A loss that jumped, and was up in every step from there to the end: the first and the last of those lines."""
        curves = [curve for curve in self._curves().values() if len(curve.points) > 1]
        if not curves:
            return None
        points = max(curves, key=lambda curve: len(curve.points)).points
        found = find_loss_spike([(step, loss) for _, _, step, loss in points])
        if found is None:
            return None
        onset, judgement = found
        (first, raw, step, _), (last, last_raw, _, _) = points[onset], points[-1]
        return Signal(
            SPIKE_RULE,
            "loss_spike",
            Role.ROOT,
            self._maker.make(raw, first),
            kind=SignalKind.MEASUREMENT,
            captures={"step": str(step), "value": f"{judgement.value:.4g}", "limit": f"{judgement.limit:.4g}"},
            count=len(points) - onset,
            last=self._maker.make(last_raw, last),
        )

    def _curves(self) -> dict[tuple[bytes, int | None], Curve]:
        curves: dict[tuple[bytes, int | None], Curve] = {}
        for number, raw in self._lines():
            for part in raw.split(b"\r"):
                if b"oss" in part and len(part) <= MAX_PART_BYTES:
                    self._take(curves, number, raw, part)
        return curves

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        for first, part in self._parts:
            for index, raw in enumerate(part.split(b"\n")):
                if b"oss" in raw:
                    yield first + index, raw

    def _take(self, curves: dict[tuple[bytes, int | None], Curve], number: int, raw: bytes, part: bytes) -> None:
        at = progress_of(part)
        if at is None or EVALUATION.search(part):
            return
        for match in LOSS.finditer(part):
            name = match["name"].lower().rstrip(b" _/.-").rpartition(b"/")[2]
            loss = float(match["loss"])
            if name not in TRAINED_ON or not math.isfinite(loss):
                continue
            key = (name, self._maker.rank(raw))
            curve = curves.get(key)
            if curve is not None and curve.has(at):
                return
            if curve is None or at.falls_behind(curve.at):
                curves[key] = curve = Curve(at)
            curve.at = at
            step = at.step if at.step is not None else len(curve.points) + 1
            curve.points.append((number, raw, step, loss))
            return


def progress_of(part: bytes) -> Progress | None:
    """None where a line tells neither its step nor its epoch: of such losses nobody knows which came after which."""
    step, epoch = STEP.search(part), EPOCH.search(part)
    if step is None and epoch is None:
        return None
    return Progress(float(epoch["epoch"]) if epoch else None, int(step[step.lastgroup or 0]) if step else None)
