"""PyTorch flight-recorder dumps: read safely, laid side by side, and told as lines that rules know.

Format: torch 2.13 `c10d/FlightRecorder.hpp`, `flight_recorder/components/{loader,builder,types}.py`. One dump a rank, a pickle or
the JSON of the debug server. A pickle is read only where it consists of plain data: no globals, no objects, no calls.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Any

from rules.signal import Line

__all__ = ["Collective", "Dump", "compare_dumps", "parse_dump", "read_plain_pickle"]

# Everything that a dump needs, and nothing that names code, makes objects or claims memory ahead of its data.
PLAIN_OPCODES = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    }
)
MEMO_OPCODES = frozenset(("BINPUT", "LONG_BINPUT"))
TRAILING_NUMBER = re.compile(r"(\d{1,6})(?:\.\w{1,8})*$")
# A collective that was enqueued less than this before the dump may simply be under way.
UNDER_WAY_SECONDS = 3.0
NANOSECONDS = 1e9
# Collectives whose sizes may rightly differ between ranks.
UNEVEN = frozenset(
    ("all_to_all", "all_to_all_single", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v", "gather", "scatter", "barrier")
)
MAX_REPORTED_RANKS = 16
# A value that stands in a dump many times costs its writer nothing: what is looked at is bounded. The buffer holds 2,000 entries.
MAX_OPERATIONS = 4_000_000
MAX_ENTRIES = 50_000
MAX_SIZES = 32
MAX_RANKS = 1 << 20
MAX_WHOLE = 1 << 63


class PlainUnpickler(pickle.Unpickler):
    """Allows no globals, as a second lock behind the check of opcodes."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"a dump names {module_name}.{global_name}")


def read_plain_pickle(data: bytes) -> Any:
    """The value of a pickle of plain data. Raises ValueError for any other pickle and for damaged ones."""
    try:
        if refused := refusal(data):
            raise ValueError(refused)
        return PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        # A damaged pickle raises nearly anything; what it raises says nothing more.
        raise ValueError(f"a pickle that is not opened: {error}") from None


def refusal(data: bytes) -> str:
    """Why the pickle is not to be loaded; empty where it is plain data. Raises nearly anything for damaged ones."""
    # Only here: few runs have such dumps, and it takes long to import.
    import pickletools

    for count, (opcode, argument, _) in enumerate(pickletools.genops(data), 1):
        if opcode.name not in PLAIN_OPCODES:
            return f"it uses {opcode.name}, which is more than plain data"
        # The memo is an array: an index beyond what was stored would claim memory for nothing.
        if opcode.name in MEMO_OPCODES and isinstance(argument, int) and argument > count:
            return "it claims more memory than it fills"
        if count > MAX_OPERATIONS:
            return f"it has more than {MAX_OPERATIONS} operations"
    return ""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank enqueued it. `created` in seconds since the epoch; `at` is the nearest frame of user code."""

    sequence: int
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    done: bool
    created: float
    at: str = ""

    def agrees_with(self, other: Collective) -> bool:
        """Whether two ranks mean the same collective (torch's `Op.match`, without the state)."""
        if self.operation != other.operation:
            return False
        if self.operation in UNEVEN or "coalesced" in self.operation:
            return True
        return (self.input_sizes, self.output_sizes, self.dtypes) == (other.input_sizes, other.output_sizes, other.dtypes)

    def __str__(self) -> str:
        elements = sum(math.prod(size) for size in self.input_sizes)
        return f"{self.operation} of {elements} elements ({', '.join(self.dtypes) or 'no type'})"


@dataclass(frozen=True, slots=True)
class Group:
    """One process group in one dump. `reports_states`: whether its backend tells when a collective ends (gloo does not)."""

    name: str
    ranks: tuple[int, ...] = ()
    collectives: Mapping[int, Collective] = field(default_factory=dict)
    last_completed: int | None = None
    reports_states: bool = True

    @property
    def last_enqueued(self) -> int:
        return max(self.collectives, default=0)

    @property
    def completed(self) -> int:
        """The last sequence number up to which nothing is open."""
        open_ones = [sequence for sequence, item in self.collectives.items() if not item.done]
        before = min(open_ones) - 1 if open_ones else self.last_enqueued
        return before if self.last_completed is None else max(before, self.last_completed)


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded. `written` is when, in seconds since the epoch, where that is known."""

    path: str
    rank: int | None
    groups: Mapping[str, Group]
    written: float | None = None


def parse_dump(document: Any, path: str, written: float | None = None) -> Dump | None:
    """The dump that `document` is; None where it is something else. Entries that make no sense are left out."""
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list) or "version" not in document:
        return None
    if not ({"pg_config", "pg_status", "nccl_comm_state", "comm_lib_version"} & set(document)):
        return None
    number = TRAILING_NUMBER.search(PurePath(path).name)
    rank = document.get("rank", int(number[1]) if number else None)
    entries: dict[str, dict[int, Collective]] = defaultdict(dict)
    backends: dict[str, str] = {}
    ids: dict[str, str] = {}
    for entry in document["entries"][-MAX_ENTRIES:]:
        try:
            collective, group, backend = parse_entry(entry)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            continue
        if collective is not None:
            entries[group][collective.sequence] = collective
            backends[group] = backend
            ids[group] = str(pg_id) if isinstance(pg_id := entry.get("pg_id"), int) else group
    config, status = document.get("pg_config"), document.get("pg_status")
    return Dump(
        path,
        rank if isinstance(rank, int) and 0 <= rank < MAX_RANKS else None,
        {
            name: Group(
                name,
                members(config, name),
                collectives,
                last_completed(status, ids[name]),
                backends[name] != "gloo",
            )
            for name, collectives in entries.items()
        },
        written,
    )


def parse_entry(entry: Mapping[str, Any]) -> tuple[Collective | None, str, str]:
    """One record, its group's name and its backend; no collective for point-to-point operations."""
    name, description = (text(part) for part in islice(entry["process_group"], 2))
    backend, _, operation = text(entry["profiling_name"]).partition(":")
    group = f"{name} ({description})" if description and description != "undefined" else name
    if entry.get("is_p2p") is True or not operation or operation.startswith(("send", "recv")):
        return None, group, backend
    return (
        Collective(
            sequence=whole(entry["collective_seq_id"]),
            operation=operation,
            input_sizes=sizes(entry.get("input_sizes")),
            output_sizes=sizes(entry.get("output_sizes")),
            dtypes=tuple(text(dtype) for dtype in islice(entry.get("input_dtypes") or (), 4)),
            done=entry.get("state") == "completed" or entry.get("retired") is True,
            created=whole(entry.get("time_created_ns") or 0) / NANOSECONDS,
            at=nearest_frame(entry.get("frames")),
        ),
        group,
        backend,
    )


def text(value: Any) -> str:
    """A string, at most 120 characters of it; TypeError for anything else, whose text could be endless."""
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value[:120]


def whole(value: Any) -> int:
    """A whole number that a counter can reach."""
    if isinstance(value, int) and 0 <= value < MAX_WHOLE:
        return value
    raise ValueError("not a counter")


def sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(whole(extent) for extent in islice(size, MAX_SIZES)) for size in islice(value or (), MAX_SIZES))


def nearest_frame(frames: Any) -> str:
    """The innermost frame outside torch, as `file:line function`."""
    for frame in islice(frames or (), 64):
        filename = text(frame.get("filename", ""))
        if filename and "/torch/" not in filename:
            return f"{filename}:{whole(frame.get('line', 0))} {text(frame.get('name', ''))}"
    return ""


def members(config: Any, group: str) -> tuple[int, ...]:
    """The global ranks of a group; `ranks` is a string such as "[0, 1]". Gloo's configuration names the default group ''."""
    if not isinstance(config, dict):
        return ()
    entry = config.get(group.partition(" ")[0])
    if entry is None and len(config) == 1:
        entry = next(iter(config.values()))
    ranks = entry.get("ranks") if isinstance(entry, dict) else None
    if isinstance(ranks, str):
        return tuple(int(found[0]) for found in islice(re.finditer(r"\d{1,7}", ranks), MAX_RANKS))
    return tuple(rank for rank in islice(ranks, MAX_RANKS) if isinstance(rank, int)) if isinstance(ranks, list) else ()


def last_completed(status: Any, group_id: str) -> int | None:
    try:
        return whole(status[group_id]["last_completed_collective"])
    except (KeyError, TypeError, ValueError):
        return None


def compare_dumps(dumps: Sequence[Dump]) -> tuple[Line, ...]:
    """What the dumps of one job tell together, as lines: nothing where every group's collectives have ended.

    Ranks that disagree about the next collective: the code diverged. Ranks that have enqueued less than the others: their host
    does not get on, and they are the suspects. Ranks that agree: the collective itself is stuck.
    """
    by_rank = {dump.rank: dump for dump in dumps if dump.rank is not None}
    # Two groups of other members may bear one name.
    groups: dict[tuple[str, tuple[int, ...]], dict[int, Dump]] = defaultdict(dict)
    for rank, dump in sorted(by_rank.items()):
        for name, group in dump.groups.items():
            groups[name, group.ranks][rank] = dump
    return tuple(line for (name, _), holders in groups.items() for line in compare_group(name, holders, frozenset(by_rank)))


def compare_group(name: str, holders: Mapping[int, Dump], dumped: frozenset[int]) -> list[Line]:
    """`holders`: the dumps of the ranks that used the group; `dumped`: all ranks that left one."""
    groups = {rank: dump.groups[name] for rank, dump in holders.items()}
    pending = {rank: group for rank, group in groups.items() if group.completed < group.last_enqueued}
    if not pending or is_under_way(pending, holders):
        return []
    title = f"flight recorder: process group {name}:"
    if parted := disagreement(groups):
        sequence, text, suspect = parted
        return [line_of(f"{title} ranks disagree about collective {sequence}: {text}", holders[suspect], suspect)]
    most = max(group.last_enqueued for group in groups.values())
    waiting = groups[max(groups, key=lambda rank: groups[rank].last_enqueued)].collectives[most]
    found: list[Line] = []
    for rank, group in groups.items():
        if group.last_enqueued < most and len(found) < MAX_REPORTED_RANKS:
            last = group.collectives[group.last_enqueued]
            where = f", last from {last.at}" if last.at else ""
            text = f"rank {rank} has enqueued {group.last_enqueued} collectives, others {most} ({waiting}){where}"
            found.append(line_of(f"{title} {text}", holders[rank], rank))
    missing = sorted(set(next(iter(groups.values())).ranks) - dumped)
    if missing and not found:
        rank = next(iter(groups))
        text = f"rank {missing[0]} left no dump while others wait in collective {most} ({waiting})"
        found.append(line_of(f"{title} {text}", holders[rank], missing[0] if len(missing) == 1 else None))
    if not found and all(group.reports_states for group in groups.values()):
        rank = min(pending, key=lambda rank: pending[rank].completed)
        behind = pending[rank].completed
        agreed = f"all {len(groups)} ranks wait in collective {most} ({waiting})"
        if behind < max(group.completed for group in groups.values()):
            agreed = f"rank {rank} has completed {behind} collectives, fewer than others; " + agreed
        found.append(line_of(f"{title} {agreed}", holders[rank], rank))
    return found


def is_under_way(pending: Mapping[int, Group], holders: Mapping[int, Dump]) -> bool:
    """Whether every open collective is so young that the dump may have caught a healthy run at work."""
    for rank, group in pending.items():
        written = holders[rank].written
        oldest = min(item.created for item in group.collectives.values() if not item.done and item.sequence > group.completed)
        if written is None or not 0 <= written - oldest < UNDER_WAY_SECONDS:
            return False
    return True


def disagreement(groups: Mapping[int, Group]) -> tuple[int, str, int] | None:
    """The first open collective about which ranks disagree: its number, who runs what, and a rank of the minority."""
    if len(groups) < 2:
        return None
    first_open = min(group.completed for group in groups.values()) + 1
    last = min(group.last_enqueued for group in groups.values())
    for sequence in range(first_open, last + 1):
        calls = {rank: item for rank, group in groups.items() if (item := group.collectives.get(sequence)) is not None}
        kinds: list[tuple[Collective, list[int]]] = []
        for rank, call in calls.items():
            for known, ranks in kinds:
                if known.agrees_with(call):
                    ranks.append(rank)
                    break
            else:
                kinds.append((call, [rank]))
        if len(kinds) > 1:
            kinds.sort(key=lambda kind: len(kind[1]))
            text = "; ".join(f"{ranks_text(ranks)} {'run' if len(ranks) > 1 else 'runs'} {call}" for call, ranks in kinds[:4])
            return sequence, text, kinds[0][1][0]
    return None


def ranks_text(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:MAX_REPORTED_RANKS])
    more = f" and {len(ranks) - MAX_REPORTED_RANKS} more" if len(ranks) > MAX_REPORTED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def line_of(text: str, dump: Dump, rank: int | None) -> Line:
    newest = max((item.created for group in dump.groups.values() for item in group.collectives.values()), default=0.0)
    return Line(text, 1, dump.path, rank, time=newest or None)
