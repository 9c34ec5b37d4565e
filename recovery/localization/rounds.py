"""Which probes come next. All probes of one batch are disjoint and run at the same time.

Acme's rule is everybody in pairs, then each suspect with a good partner. Here both go on side by side until nothing more would be
learnt: whoever is not under suspicion meets ever other partners (the job's own ring first, where a bad link hurts), which finds
intermittent faults and bad links; a suspect meets good partners until it is blamed or cleared; a pair that failed although
both its ends pass with others is tried again, which tells a link from a node.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from recovery.localization.blame import Blamed
from recovery.localization.probes import Link, Pool, Probe, link_of
from recovery.localization.standing import Ledger, Standing

__all__ = ["Effort", "next_probes"]

# Voids after which a node is left alone: whatever kills its probes keeps doing it.
MOST_VOIDS = 4
# Rounds of screening in which a ring is tried whole.
RING_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look.

    `screening`: rounds of everybody in pairs; `screening_found`: enough of them once a cause that always shows is confirmed;
    `confirmation`: pairs of one suspect; `link`: repeats of one pair; `contrast`: other pairs of both its ends that must pass
    before a link is blamed; `sure`: gain (blame.Priors) from which a part needs no further test, `sure_crowded` where many worlds
    fail. Seconds: the whole may last `seconds`, pairs beyond `screening` are tried only until `quiet_seconds`, and one batch
    lasts `batch_seconds` at most.
    """

    screening: int = 24
    screening_found: int = 4
    confirmation: int = 20
    link: int = 6
    contrast: int = 6
    sure: float = 9.0
    sure_crowded: float = 13.0
    seconds: float = 60.0
    quiet_seconds: float = 45.0
    batch_seconds: float = 3.0


@dataclass(frozen=True, slots=True)
class Questions:
    """What is open: nodes to be tried with good partners, and pairs to be tried again. `settled` and `settled_links` are blamed
    for sure: nothing more is asked of them. `found`: a lasting cause of the job's failure is confirmed, a node, a group or a
    link of its ring. `links_only`: whatever was bad is explained by links for sure."""

    suspects: tuple[str, ...]
    touched: frozenset[str]
    links: tuple[Link, ...]
    trusted: tuple[str, ...]
    settled: frozenset[str]
    settled_links: frozenset[Link]
    found: bool
    links_only: bool


def next_probes(ledger: Ledger, effort: Effort | None = None, elapsed: float = 0.0) -> tuple[Probe, ...]:
    """The next batch, given every result so far and the seconds since the first; empty when nothing more would be learnt."""
    effort, pool, turn = effort or Effort(), ledger.pool, ledger.turns
    if elapsed + effort.batch_seconds > effort.seconds:
        return ()
    if not ledger.results:
        return tuple(Probe(turn, 0, (node,)) for node in pool.everyone)
    standing = Standing.of(ledger)
    alone = [node for node in pool.everyone if node in ledger.stumbled and again_alone(ledger, standing, node)]
    unusable = standing.out.union(alone, (node for node, count in ledger.voids.items() if count >= MOST_VOIDS))
    present = [node for node in pool.everyone if node not in unusable]
    asked = questions(ledger, standing, present, effort)
    free = set(present)
    special = [Probe(turn, 3, members) for members in link_pairs(ledger, asked, free, effort)]
    special += [Probe(turn, 2, members) for members in confirming_pairs(ledger, asked, free, effort)]
    probes = [*(Probe(turn, 0, (node,)) for node in alone), *special]
    usual = [node for node in present if node in free and node not in asked.settled and node not in asked.touched]
    rounds = len(ledger.screenings)
    due = rounds < effort.screening and any(unmet_ring(ledger, frozenset(usual)))
    if special or due or rounds < wanted_rounds(pool, asked, effort, elapsed):
        probes += [Probe(turn, 1, members) for members in screening_worlds(ledger, usual, asked.settled_links)]
    return tuple(probes)


def again_alone(ledger: Ledger, standing: Standing, node: str) -> bool:
    """Whether to try `node` alone again: it failed or was silent, or its probe was killed."""
    mine = ledger.alone.get(node, ())
    settled = len(mine) >= ledger.rules.alone_tries or node in standing.faulty_alone or node in standing.silent
    return not settled and any(not result.passed for result in mine)


def wanted_rounds(pool: Pool, asked: Questions, effort: Effort, elapsed: float) -> int:
    if asked.found:
        return effort.screening_found
    if elapsed > effort.quiet_seconds and asked.settled_links:
        return effort.screening_found
    if not asked.links_only or elapsed > effort.quiet_seconds:
        return effort.screening
    # Nothing is wrong so far, or links only: every pair once, as time allows, finds the links that the ring does not use.
    every_pair = RING_ROUNDS + len(pool.everyone) - 1
    return every_pair if asked.settled_links else max(effort.screening, every_pair)


def questions(ledger: Ledger, standing: Standing, present: Sequence[str], effort: Effort) -> Questions:
    """Whom to look at more closely: the members of bad worlds that no part explains for sure."""
    pool = ledger.pool
    crowded = sum(1 for world in standing.bad if world.probe.round == 1) > max(2, 0.05 * len(pool.everyone))
    sure: list[Blamed] = []
    doubtful: set[Link] = set()
    for item in (*standing.failing.blamed, *standing.slowing.blamed):
        if is_sure(item, standing, crowded, effort):
            sure.append(item)
        elif item.part.kind == "link":
            doubtful.add(link_of(*item.part.names))
    explained = {id(world) for item in sure for world in item.failures}
    blamed = {item.part.names[0] for item in sure if item.part.kind == "node"}
    groups = {item.part.names[0] for item in sure if item.part.kind in ("group", "uplink")}
    tainted = {node for node in present if groups.intersection(pool.groups.get(node, ()))}
    settled = blamed | tainted
    open_worlds = [world for world in standing.bad if id(world) not in explained and settled.isdisjoint(world.probe.members)]
    touched = {node for world in open_worlds for node in world.probe.members}
    for world in open_worlds:
        if len(world.probe.members) == 2 and all(standing.quick_worlds(node) for node in world.probe.members):
            doubtful.add(link_of(*world.probe.members))
    usable = frozenset(present)
    passed = {node: len(ledger.worlds.get(node, ())) for node in present if node not in touched and node not in settled}
    links = [item for item in sure if item.part.kind == "link"]
    by_links = {id(world) for item in links for world in item.failures}
    return Questions(
        suspects=tuple(node for node in present if node in touched),
        touched=frozenset(touched),
        links=tuple(sorted(link for link in doubtful if usable.issuperset(link))),
        # Who passed most is the best partner. An untouched node has passed in every world that it was in.
        trusted=tuple(sorted((node for node, count in passed.items() if count), key=lambda node: -passed[node])),
        settled=frozenset(settled),
        settled_links=frozenset(link_of(*item.part.names) for item in links),
        found=bool(standing.faulty_alone) or any(item.passes == 0 and explains_the_job(item, pool) for item in sure),
        links_only=all(id(world) in by_links for world in standing.bad),
    )


def explains_the_job(item: Blamed, pool: Pool) -> bool:
    """A link that the job's ring does not use may be broken beside what made the job fail."""
    return item.part.kind != "link" or item.part.names[1] in neighbours_of(pool, item.part.names[0])


def is_sure(item: Blamed, standing: Standing, crowded: bool, effort: Effort) -> bool:
    if item.part.kind == "link":
        contrast = min(standing.quick_worlds(node) for node in item.part.names)
        return item.gain >= effort.sure_crowded and contrast >= effort.contrast
    return item.gain >= (effort.sure_crowded if crowded else effort.sure)


def link_pairs(ledger: Ledger, asked: Questions, free: set[str], effort: Effort) -> Iterator[tuple[str, ...]]:
    """Pairs in doubt, each time after its ends met two others in between: a node would show there as well."""
    confirmed = ledger.tried[2]
    for a, b in asked.links:
        times = ledger.repeated[(a, b)]
        if times < effort.link and min(confirmed[a], confirmed[b]) >= 2 * times + 1 and a in free and b in free:
            free -= {a, b}
            yield a, b


def confirming_pairs(ledger: Ledger, asked: Questions, free: set[str], effort: Effort) -> Iterator[tuple[str, ...]]:
    """Each suspect with a trusted partner that it has met least, of another group if possible; where trusted ones run out,
    suspects with one another: two that pass are partners for the rest."""
    confirmed, met = ledger.tried[2], ledger.met
    waiting = [node for node in asked.suspects if node in free and confirmed[node] < effort.confirmation]
    waiting.sort(key=lambda node: confirmed[node])
    partners = [node for node in asked.trusted if node in free]
    left = []
    for node in waiting:
        partner = fitting(ledger.pool, node, partners, met)
        if partner is None:
            left.append(node)
            continue
        partners.remove(partner)
        free -= {node, partner}
        yield node, partner
    while len(left) > 1:
        node = left.pop(0)
        partner = min(left, key=lambda other: met[link_of(node, other)])
        if met[link_of(node, partner)] < 2:
            left.remove(partner)
            free -= {node, partner}
            yield node, partner


def fitting(pool: Pool, node: str, partners: Sequence[str], met: Counter[Link]) -> str | None:
    """The first partner that `node` never met and that neither shares a group with it nor a link of the ring, which may be what
    is broken; else the one it met least."""
    mine, neighbours = set(pool.groups.get(node, ())), neighbours_of(pool, node)
    for partner in partners:
        fresh = not met[link_of(node, partner)] and partner not in neighbours
        if fresh and mine.isdisjoint(pool.groups.get(partner, ())):
            return partner
    return min(partners, key=lambda partner: met[link_of(node, partner)], default=None)


def screening_worlds(ledger: Ledger, usual: Sequence[str], avoided: frozenset[Link]) -> Iterator[tuple[str, ...]]:
    """`usual` in worlds of two, one of three where their number is odd: the job's ring first, then every pair in turn."""
    pool, met, free = ledger.pool, ledger.met, set(usual)
    worlds: list[tuple[str, ...]] = []
    for a, b in chain(unmet_ring(ledger, frozenset(usual)), scheduled(pool, max(0, len(ledger.screenings) - RING_ROUNDS))):
        if a in free and b in free and link_of(a, b) not in avoided:
            free -= {a, b}
            worlds.append((a, b))
    rest = [node for node in usual if node in free]
    while len(rest) > 1:
        node = rest.pop(0)
        partner = least_met(node, rest, met, avoided)
        rest.remove(partner)
        worlds.append((node, partner))
    for node in rest if worlds else ():
        # The odd one joins its neighbour on the ring where it can.
        neighbours = neighbours_of(pool, node)
        index = next((index for index, world in enumerate(worlds) if neighbours.intersection(world)), 0)
        worlds[index] += (node,)
    yield from worlds


def least_met(node: str, others: Sequence[str], met: Counter[Link], avoided: frozenset[Link]) -> str:
    """The first of `others` that `node` met least; over an avoided link only where there is no other."""
    least, found = (True, sys.maxsize), others[0]
    for other in others:
        link = link_of(node, other)
        mine = (link in avoided, met[link])
        if mine < least:
            least, found = mine, other
            if least == (False, 0):
                break
    return found


def neighbours_of(pool: Pool, node: str) -> set[str]:
    index = pool.seats.get(node)
    return set() if index is None else {pool.nodes[index - 1], pool.nodes[(index + 1) % len(pool.nodes)]}


def unmet_ring(ledger: Ledger, usual: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Links of the job's ring that no world has used yet, those of even places first: they are disjoint."""
    ring = ledger.pool.nodes
    for first in (0, 1):
        for index in range(first, len(ring), 2):
            a, b = ring[index], ring[(index + 1) % len(ring)]
            if a != b and a in usual and b in usual and link_of(a, b) not in ledger.covered:
                yield a, b


def scheduled(pool: Pool, round_number: int) -> Iterator[tuple[str, str]]:
    """The pairs of one round of a tournament in which all meet once."""
    seats = pool.everyone
    circle = len(seats) - 1 + len(seats) % 2
    if circle < 1:
        return
    middle = round_number % circle
    for step in range(1, circle // 2 + 1):
        yield seats[(middle + step) % circle], seats[(middle - step) % circle]
    if len(seats) % 2 == 0:
        yield seats[middle], seats[-1]
