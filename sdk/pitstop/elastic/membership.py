"""What the agent tells the ranks of an elastic job: who goes on together, under which generation, and where their store is.

One JSON file beside the monitor files, replaced whole by the agent; ranks look at it. Beside it each rank that can go on in its
process leaves a mark, `<file>.<rank>`, so that the agent knows that it need not be restarted.
"""

import contextlib
import json
import os
import sys
import time
from typing import Callable, NamedTuple, Optional, Tuple

from pitstop import protocol

__all__ = ["Formation", "Left", "await_formation", "first_formation", "follow_log", "mark", "parse_formation", "read_formation"]

LOOK_SECONDS = 0.002


class Left(RuntimeError):
    """Nobody told us to go on: this process is of no use any more. The message says why."""


class Formation(NamedTuple):
    """The members of a generation, by the rank that each was started as; `log`: where this rank's output goes from now on."""

    generation: int
    members: Tuple[int, ...]
    host: str
    port: int
    log: Optional[str] = None


def parse_formation(text: str, rank: int) -> Formation:
    """Raises ValueError where it is none."""
    document = json.loads(text)
    try:
        members = tuple(sorted(int(member) for member in document["members"]))
        store = document["store"]
        log = (document.get("logs") or {}).get(str(rank))
        return Formation(int(document["generation"]), members, str(store["host"]), int(store["port"]), log)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError("not a formation: %r" % problem) from None


def first_formation(rank: int) -> Formation:
    """That of the start, as the environment says it. Raises KeyError where it says nothing."""
    world = int(os.environ["WORLD_SIZE"])
    generation = int(os.environ.get(protocol.GENERATION) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return Formation(generation, tuple(range(world)), os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def read_formation(path: str, rank: int) -> Optional[Formation]:
    """None where there is none, or one that cannot be read at this moment."""
    try:
        with open(path) as source:
            return parse_formation(source.read(), rank)
    except (OSError, ValueError):
        return None


def mark(path: str, rank: int, waits_above: Optional[int] = None, priced: bool = False) -> None:
    """This rank can go on without being restarted; `waits_above`: it has left its group and waits for a later generation.

    `priced`: going on with fewer ranks costs speed, so that whether it is the best way is for the service to say.
    """
    place = "%s.%d" % (path, rank)
    with open(place + ".new", "w") as target:
        json.dump({"pid": os.getpid(), "waits_above": waits_above, "priced": priced}, target)
    os.replace(place + ".new", place)


def await_formation(
    path: Optional[str],
    rank: int,
    above: int,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    joins: bool = False,
) -> Formation:
    """The next formation with a generation above `above`. Raises Left where it is without us, or does not come in `seconds`.

    `joins`: we are started to be taken in; until we are, the others may go on without us.
    """
    if path is None:
        raise Left("no agent forms a new group: start this job under pitstop run")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = read_formation(path, rank)
        if found is not None and found.generation > above:
            if rank in found.members:
                return found
            if not joins:
                raise Left("generation %d goes on without rank %d" % (found.generation, rank))
        sleep(LOOK_SECONDS)
    raise Left("nobody formed a generation above %d within %g s" % (above, seconds))


def follow_log(formation: Formation) -> None:
    """Write on to the log of the new generation, where the agent gave one."""
    if formation.log is None:
        return
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        target = os.open(formation.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(target, number)
        os.close(target)
