"""Probes and what came of them: the vocabulary of fault localisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Finding", "Link", "Localization", "Outcome", "Pool", "Probe", "ProbeResult", "Verdict", "link_of"]


class Outcome(StrEnum):
    """How one probe ended."""

    PASSED = "passed"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    WRONG_DATA = "wrong_data"


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
    """One world of nodes that run an allgather together; of one node: its own compute, memory and intra-node test."""

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


@dataclass(frozen=True, slots=True)
class Pool:
    """The suspect nodes of a job, spares that may serve as partners, and what each node hangs on (its rack, switch or rail)."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.nodes + self.spares


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one node, link or group, with why and the probes that it rests on."""

    verdict: Verdict
    why: str
    evidence: tuple[ProbeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Localization:
    """What the probes prove. `groups` names racks, switches or rails whose members fail as one."""

    nodes: Mapping[str, Finding]
    links: Mapping[Link, Finding] = field(default_factory=dict)
    groups: Mapping[str, Finding] = field(default_factory=dict)
    results: Sequence[ProbeResult] = ()

    def named(self, verdict: Verdict) -> tuple[str, ...]:
        """The nodes with this verdict, in order of name."""
        return tuple(sorted(node for node, finding in self.nodes.items() if finding.verdict is verdict))

    @property
    def isolate(self) -> tuple[str, ...]:
        """Only confirmed nodes are isolated; members of a failed group are the network's, not their own, fault."""
        return tuple(node for node in self.named(Verdict.FAULTY) if not self.nodes[node].why.startswith("its group"))
