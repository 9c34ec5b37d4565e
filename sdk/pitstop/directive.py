"""Where training goes on from, as the directive that restarted it said.

    where = pitstop.resume()
    path = where.checkpoint or newest_checkpoint()
    for batch in batches:
        if where.skips(batch):
            continue

Without a directive (a first start, a plain restart, no agent) everything is empty: the script takes its own newest checkpoint.
"""

import json
import os
import sys
from typing import Any, List, Mapping, Optional, Tuple

from pitstop import protocol

__all__ = ["Resume", "parse_resume", "resume"]


class Resume:
    """`step` and `checkpoint` to go on from, None where the script decides; `skip_batches`: half-open intervals of batches."""

    __slots__ = ("checkpoint", "skip_batches", "step")

    def __init__(
        self, step: Optional[int] = None, checkpoint: Optional[str] = None, skip_batches: Tuple[Tuple[int, int], ...] = ()
    ) -> None:
        self.step = step
        self.checkpoint = checkpoint
        self.skip_batches = skip_batches

    def __repr__(self) -> str:
        return "Resume(step=%r, checkpoint=%r, skip_batches=%r)" % (self.step, self.checkpoint, self.skip_batches)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resume):
            return NotImplemented
        mine, theirs = (self.step, self.checkpoint, self.skip_batches), (other.step, other.checkpoint, other.skip_batches)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_directed(self) -> bool:
        """Whether anything was said about where to go on from."""
        return self != Resume()

    def skips(self, batch: int) -> bool:
        """Whether this batch is to be left out: the loss was lost over it."""
        return any(first <= batch < end for first, end in self.skip_batches)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parse_resume(text: str) -> Resume:
    """The resume part of a directive, as JSON. Raises ValueError where it is none; unknown members are left."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    step, checkpoint = document.get("step"), document.get("checkpoint")
    if step is not None and not is_count(step):
        raise ValueError("step is no count: %r" % (step,))
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise ValueError("checkpoint is no text: %r" % (checkpoint,))
    intervals: List[Tuple[int, int]] = []
    for interval in document.get("skip_batches") or ():
        if not isinstance(interval, list) or len(interval) != 2 or not all(is_count(end) for end in interval):
            raise ValueError("skip_batches holds no interval: %r" % (interval,))
        intervals.append((interval[0], interval[1]))
    return Resume(step, checkpoint, tuple(intervals))


def resume(environment: Optional[Mapping[str, str]] = None) -> Resume:
    """What this start was told, in the environment that the agent set. What cannot be read is said on standard error and left."""
    source: Mapping[str, Any] = os.environ if environment is None else environment
    text = source.get(protocol.RESUME)
    if not text:
        return Resume()
    try:
        return parse_resume(text)
    except ValueError as error:
        sys.stderr.write("pitstop: %s cannot be read (%s): resuming as without it\n" % (protocol.RESUME, error))
        return Resume()
