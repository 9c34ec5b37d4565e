"""Which state to go on from: the newest that every rank can get, each rank from the nearest place. Pure.

Nearest principle (Unicron, arXiv 2401.00134, section 6): a living data-parallel peer comes before all of these and needs no file;
then this node's memory, a peer's memory, disk.
"""

from enum import IntEnum
from typing import AbstractSet, Dict, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["Chosen", "Held", "Source", "Stock", "Tier", "choose"]

# A state's name: (generation, step).
State = Tuple[int, int]


class Tier(IntEnum):
    """Where a copy is, the nearest first. LENT: another rank's state, which has the shared parts only."""

    LOCAL_MEMORY = 1
    PEER_MEMORY = 2
    DISK = 3
    LENT_MEMORY = 4
    LENT_DISK = 5

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ").replace("lent", "another rank's")


class Held(NamedTuple):
    """One rank's state in somebody's memory or on disk. `rank`: whose state it is; `name`: of the slot or the checkpoint."""

    rank: int
    step: int
    generation: int
    name: str


class Stock(NamedTuple):
    """What one rank reports: the memory of its node, what it sees on disk, and what `latest` says: (generation, step).

    `unread`: why `latest` cannot be read, empty where it can.
    """

    memory: Tuple[Held, ...] = ()
    disk: Tuple[Held, ...] = ()
    latest: Optional[State] = None
    unread: str = ""


class Source(NamedTuple):
    """`holder`: the rank whose node has it in memory; for disk the reader itself."""

    tier: Tier
    holder: int
    held: Held


class Chosen(NamedTuple):
    """`sources`: of each rank, the nearest first."""

    step: int
    generation: int
    sources: Tuple[Tuple[Source, ...], ...]


def sources_of(rank: int, stocks: Sequence[Stock], replicated: bool) -> List[Source]:
    found = []
    for holder, stock in enumerate(stocks):
        for held in stock.memory:
            if held.rank == rank:
                found.append(Source(Tier.LOCAL_MEMORY if holder == rank else Tier.PEER_MEMORY, holder, held))
            elif replicated:
                found.append(Source(Tier.LENT_MEMORY, holder, held))
    for held in stocks[rank].disk:
        if held.rank == rank:
            found.append(Source(Tier.DISK, rank, held))
        elif replicated and held.rank == 0:
            # Rank 0 is the one that writes the shared parts.
            found.append(Source(Tier.LENT_DISK, rank, held))
    # Among equals the holder's own node first, then by number, so that every rank orders them alike.
    return sorted(found, key=lambda source: (source.tier, source.holder != rank, source.holder, source.held.name))


def is_abandoned(state: State, latest: Optional[State]) -> bool:
    """Whether training went back before this state: `latest` is of a later generation, and at an earlier step."""
    return latest is not None and state[0] < latest[0] and state[1] > latest[1]


def choose(
    stocks: Sequence[Stock], replicated: bool, refused: AbstractSet[State] = frozenset(), step: Optional[int] = None
) -> Optional[Chosen]:
    """The newest state that every rank has a source of, by generation and then by step; None where there is none.

    `refused`: states that turned out not to be what they should; `step`: go back to this step, or the newest before it.
    """
    every = [sources_of(rank, stocks, replicated) for rank in range(len(stocks))]
    latest = max((stock.latest for stock in stocks if stock.latest is not None), default=None)
    by_state: Dict[State, List[List[Source]]] = {}
    for rank, sources in enumerate(every):
        for source in sources:
            state = source.held.generation, source.held.step
            by_state.setdefault(state, [[] for _ in stocks])[rank].append(source)
    possible = [
        state
        for state, found in by_state.items()
        if all(found) and state not in refused and (step is None or state[1] <= step) and not is_abandoned(state, latest)
    ]
    if not possible:
        return None
    # One that was asked for by its step is that step, of whichever generation.
    best = max(possible, key=lambda state: (step is not None and state[1] == step, state))
    return Chosen(best[1], best[0], tuple(tuple(found) for found in by_state[best]))
