"""Probes and what came of them: the vocabulary of fault localisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import comb

__all__ = ["PROVES_NOTHING", "Finding", "Link", "Localization", "Outcome", "Pool", "Probe", "ProbeResult", "Verdict", "link_of"]


class Outcome(StrEnum):
    """How one probe ended. `void`: the probe itself was killed or could not be set up; `silent`: an agent did not answer."""

    PASSED = "passed"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    WRONG_DATA = "wrong_data"
    VOID = "void"
    SILENT = "silent"


# Outcomes that say nothing about nodes and links: who was killed, or does not answer, has not failed at communicating.
PROVES_NOTHING = frozenset({Outcome.VOID, Outcome.SILENT})


class Verdict(StrEnum):
    GOOD = "good"
    FAULTY = "faulty"
    SLOW = "slow"
    UNDECIDED = "undecided"


Link = tuple[str, str]


def link_of(a: str, b: str) -> Link:
    """The link between two nodes, the same whichever is named first."""
    return (a, b) if a <= b else (b, a)


@dataclass(frozen=True, slots=True)
class Probe:
    """One world of nodes that run an allgather together; of one node: its own compute, memory and intra-node test.

    `turn` counts the batches of probes that run at the same time, `round` says what for: 0 alone, 1 everybody in pairs,
    2 a suspect with a good partner, 3 a pair again whose link is in doubt.
    """

    turn: int
    round: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`seconds` is the time of the timed allgather where it passed, else the time until it was given up."""

    probe: Probe
    outcome: Outcome
    seconds: float
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def failed(self) -> bool:
        return self.outcome is not Outcome.PASSED and self.outcome not in PROVES_NOTHING

    @property
    def alone(self) -> bool:
        return len(self.probe.members) == 1


@dataclass(frozen=True)
class Pool:
    """The suspect nodes of a job in the order of its ring, spares that may serve as partners, and the groups of each node: its
    rack, its switch, its rail."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.nodes + self.spares

    @cached_property
    def seats(self) -> Mapping[str, int]:
        """The place of each node on the ring."""
        return {node: index for index, node in enumerate(self.nodes)}


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one node, link or group, with why and the probes that it rests on."""

    verdict: Verdict
    why: str
    evidence: tuple[ProbeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Localization:
    """What the probes prove. `links` and `groups` hold only those at fault. `caution`: why no node is isolated although some are
    faulty, empty where nothing speaks against it. `undecided_links`: how many links between these nodes no probe crossed."""

    nodes: Mapping[str, Finding]
    links: Mapping[Link, Finding] = field(default_factory=dict)
    groups: Mapping[str, Finding] = field(default_factory=dict)
    results: Sequence[ProbeResult] = ()
    caution: str = ""
    undecided_links: int = 0

    def named(self, verdict: Verdict) -> tuple[str, ...]:
        """The nodes with this verdict, in order of name."""
        return tuple(sorted(node for node, finding in self.nodes.items() if finding.verdict is verdict))

    @property
    def isolate(self) -> tuple[str, ...]:
        """The nodes to take out: confirmed faulty ones only."""
        return () if self.caution else self.named(Verdict.FAULTY)

    @property
    def summary(self) -> str:
        """One sentence for a person."""
        parts = [f"{len(names)} {verdict.value} ({shortened(names)})" for verdict in BAD if (names := self.named(verdict))]
        parts += [f"group {group} {finding.verdict.value}: {finding.why}" for group, finding in self.groups.items()]
        parts += [f"link {a} - {b} {finding.verdict.value}" for (a, b), finding in self.links.items()]
        nothing = not parts
        parts.append(f"{len(self.named(Verdict.GOOD))} of {len(self.nodes)} nodes good")
        if nothing and self.undecided_links:
            parts.append(f"{self.undecided_links} of {comb(len(self.nodes), 2)} links undecided: no probe crossed them")
        return "; ".join([*parts, self.caution] if self.caution else parts)


BAD = (Verdict.FAULTY, Verdict.SLOW, Verdict.UNDECIDED)


def shortened(names: Sequence[str], at_most: int = 5) -> str:
    return ", ".join(names[:at_most]) + (f" and {len(names) - at_most} more" if len(names) > at_most else "")
