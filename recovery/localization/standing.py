"""What the results so far say, before and for the judgement: who is out, which worlds are bad, who is blamed for them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from recovery.localization.blame import Blame, Part, Priors, Record, assign_blame
from recovery.localization.probes import PROVES_NOTHING, Link, Outcome, Pool, ProbeResult, link_of

__all__ = ["Ledger", "Rules", "Standing"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of judgement. A passed world is slow beyond both `slow_factor` times the median world and `slow_seconds` over it
    (against the noise of very short times); with fewer than `fewest_times` times nothing is slow."""

    alone_failures: int = 2
    alone_tries: int = 3
    silences: int = 2
    slow_factor: float = 2.0
    slow_seconds: float = 0.05
    fewest_times: int = 3
    priors: Priors = field(default_factory=Priors)


def seconds_of(result: ProbeResult) -> float:
    return result.seconds


@dataclass(slots=True)
class Ledger:
    """Every result so far, counted once as it comes: `add` costs what the new results cost, not what all of them do."""

    pool: Pool
    rules: Rules = field(default_factory=Rules)
    turns: int = 0
    results: list[ProbeResult] = field(default_factory=list)
    alone: dict[str, list[ProbeResult]] = field(default_factory=lambda: defaultdict(list))
    # Who did not pass each time alone.
    stumbled: set[str] = field(default_factory=set)
    # Worlds of two and three that ended by themselves, with each of their members.
    worlds: dict[str, list[ProbeResult]] = field(default_factory=lambda: defaultdict(list))
    failed: list[ProbeResult] = field(default_factory=list)
    passed: list[ProbeResult] = field(default_factory=list)
    record: Record = field(init=False)
    voids: Counter[str] = field(default_factory=Counter)
    met: Counter[Link] = field(default_factory=Counter)
    covered: set[Link] = field(default_factory=set)
    tried: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    repeated: Counter[Link] = field(default_factory=Counter)
    screenings: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.record = Record(self.pool)

    def add(self, results: Iterable[ProbeResult]) -> None:
        for result in results:
            self.results.append(result)
            self.turns = max(self.turns, result.probe.turn + 1)
            members = result.probe.members
            if len(members) == 1:
                self.alone[members[0]].append(result)
                if not result.passed:
                    self.stumbled.add(members[0])
            else:
                self._add_world(result, members)

    def _add_world(self, result: ProbeResult, members: tuple[str, ...]) -> None:
        number = result.probe.round
        if number == 1:
            self.screenings.add(result.probe.turn)
        self.tried[number].update(members)
        if result.outcome in PROVES_NOTHING:
            self.voids.update(members)
            return
        self.covered.update(link_of(a, b) for a, b in combinations(members, 2))
        if len(members) == 2:
            link = link_of(*members)
            self.met[link] += 1
            self.repeated[link] += number == 3
        if result.failed:
            self.failed.append(result)
        elif result.passed:
            insort(self.passed, result, key=seconds_of)
            self.record.add(members)
        for node in members:
            self.worlds[node].append(result)

    @property
    def slow_limit(self) -> float:
        """Seconds beyond which a passed world counts as slow; infinite where too few passed to say what is usual."""
        if len(self.passed) < self.rules.fewest_times:
            return float("inf")
        usual = self.passed[len(self.passed) // 2].seconds
        return max(self.rules.slow_factor * usual, usual + self.rules.slow_seconds)


@dataclass(frozen=True, slots=True)
class Standing:
    """`faulty_alone` and `silent` (not to be probed) nodes never enter pairs; `doubtful_alone` ones failed alone once and not
    again, and do not either. `bad` worlds failed or took over `limit` seconds."""

    faulty_alone: frozenset[str]
    doubtful_alone: frozenset[str]
    silent: frozenset[str]
    bad: tuple[ProbeResult, ...]
    limit: float
    failing: Blame
    slowing: Blame
    quick: Record

    @property
    def out(self) -> frozenset[str]:
        return self.faulty_alone | self.doubtful_alone | self.silent

    @classmethod
    def of(cls, ledger: Ledger) -> Standing:
        rules, limit = ledger.rules, ledger.slow_limit
        failed_alone = {node: sum(item.failed for item in ledger.alone[node]) for node in ledger.stumbled}
        faulty_alone = frozenset(node for node, count in failed_alone.items() if count >= rules.alone_failures)
        doubtful = frozenset(node for node, count in failed_alone.items() if 0 < count < rules.alone_failures)
        silent = frozenset(node for node in ledger.stumbled if says_nothing(ledger.alone[node], rules)) - faulty_alone
        slow = ledger.passed[bisect_right(ledger.passed, limit, key=seconds_of) :]
        quick = ledger.record.without(slow)
        failing = assign_blame(ledger.failed, ledger.record, faulty_alone, rules.priors)
        broken = {item.part.names[0] for item in failing.blamed if item.part.kind == "node"}
        slowing = assign_blame(slow, quick, faulty_alone | broken, rules.priors)
        return cls(faulty_alone, doubtful, silent, (*ledger.failed, *slow), limit, failing, slowing, quick)

    def quick_worlds(self, node: str) -> int:
        """How many worlds with `node` passed within the limit."""
        return self.quick.passes_of(Part("node", (node,)))


def says_nothing(results: Sequence[ProbeResult], rules: Rules) -> bool:
    """Whether a node that was tried alone cannot be probed: its agent is silent, or its probe never comes to an end."""
    silences = sum(result.outcome is Outcome.SILENT for result in results)
    void = len(results) >= rules.alone_tries and all(result.outcome in PROVES_NOTHING for result in results)
    return silences >= rules.silences or void
