"""Leases of node agents, judged: pure functions over what was renewed when.

All times are of the one clock that renewals are stamped with (the database's or etcd's), in seconds. A lease that ran out makes
a node silent, which is a signal and nothing more: the loss of a node needs a second, independent witness. The judge distrusts
itself first: it gives every lease a full time to live after its own start, take-over, pause, or a jump of its clock, and judges
none of those that ran out together in greater number than machines fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rules.signal import Line, Role, Signal, SignalKind, Trust

__all__ = [
    "Judge",
    "Lease",
    "LeaseReview",
    "NodeLoss",
    "Silence",
    "Witness",
    "WitnessKind",
    "judge_loss",
    "next_look",
    "review_leases",
    "silence_signal",
]

# A judge that looks every half second and was away for longer than this was paused, or its clock jumped.
PAUSE_SECONDS = 1.0
# Leases that end within this time of one another ended at once.
TOGETHER_SECONDS = 3.0
LEAST_MASS = 3
MASS_SHARE = 0.05
# Failing operations fail at their own timeouts: a witness counts from a little before the silence on.
WITNESS_BEFORE_SECONDS = 30.0


class Lease(NamedTuple):
    """`renewed_at`: when the service received the last renewal. `ended`: the agent gave it back; its silence means nothing."""

    node: str
    renewed_at: float
    ttl_seconds: float
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Judge:
    """`since`: from when on leases are held to their time; `looked_at`: the last look. Start with `Judge(now, now)`."""

    since: float
    looked_at: float


@dataclass(frozen=True, slots=True)
class Silence:
    """A node whose lease ran out at `since`. `age_seconds`: since its last renewal."""

    node: str
    since: float
    age_seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class LeaseReview:
    """`silent`: judged silent. `unjudged`: ran out together with too many others, `why` says so; both by node name.

    `renewed_at`: the last renewal of each lease that is held. `looked_at`: what happened later says nothing in this review.
    """

    silent: tuple[Silence, ...] = ()
    unjudged: tuple[Silence, ...] = ()
    why: str = ""
    renewed_at: Mapping[str, float] = field(default_factory=dict)
    looked_at: float = -math.inf

    @property
    def suspects_itself(self) -> bool:
        return bool(self.unjudged)


class WitnessKind(StrEnum):
    """Who, beside the lease, may say that a node is lost."""

    FAILED_COLLECTIVE = "a peer's collective failed"
    FAILED_PROBE = "a probe failed"
    SCHEDULER = "the scheduler lost it"
    UNREACHABLE = "other agents cannot reach it"


@dataclass(frozen=True, slots=True)
class Witness:
    """What `source` (a node, a scheduler) saw of `node` at `time`."""

    kind: WitnessKind
    node: str
    source: str
    time: float


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """Grounds enough to hold a node for lost."""

    node: str
    silence: Silence
    witness: Witness
    why: str


def next_look(judge: Judge, now: float) -> Judge:
    """The judge at its next look: one that was away, or whose clock ran backwards, gives everybody a full time to live again."""
    away = now - judge.looked_at
    return Judge(now if away > PAUSE_SECONDS or away < 0 else judge.since, now)


def review_leases(leases: Sequence[Lease], judge: Judge) -> LeaseReview:
    """Which nodes are silent at `judge.looked_at`."""
    now = judge.looked_at
    held = [lease for lease in leases if not lease.ended]
    silences = []
    for lease in held:
        # Few of very many get further than this, four times a second.
        if lease.renewed_at + lease.ttl_seconds >= now:
            continue
        runs_out = max(lease.renewed_at, judge.since) + lease.ttl_seconds
        if now > runs_out:
            age = now - lease.renewed_at
            why = f"{lease.node} has not renewed its lease for {age:.1f} s (time to live {lease.ttl_seconds:g} s)"
            silences.append(Silence(lease.node, runs_out, age, why))
    most = max(LEAST_MASS, math.floor(MASS_SHARE * len(held)))
    silent: list[Silence] = []
    unjudged: list[Silence] = []
    for group in together(silences):
        (unjudged if len(group) > most else silent).extend(group)
    why = ""
    if unjudged:
        why = f"{len(unjudged)} of {len(held)} leases ran out at once (limit {most}): rather we are cut off than they are gone"
    # A renewal from the future is one that a clock moved: it counts as just renewed.
    renewed_at = {lease.node: lease.renewed_at if lease.renewed_at < now else now for lease in held}
    return LeaseReview(by_node(silent), by_node(unjudged), why, renewed_at, now)


def together(silences: Iterable[Silence]) -> list[list[Silence]]:
    """Silences in groups that follow one another closely in time."""
    groups: list[list[Silence]] = []
    for item in sorted(silences, key=lambda silence: silence.since):
        if groups and item.since - groups[-1][-1].since <= TOGETHER_SECONDS:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def by_node(silences: Iterable[Silence]) -> tuple[Silence, ...]:
    return tuple(sorted(silences, key=lambda silence: silence.node))


def judge_loss(silence: Silence, witnesses: Iterable[Witness]) -> NodeLoss | None:
    """The loss of a silent node, where somebody else saw it too; None without such a witness.

    A witness is independent: what a node says of itself, or saw long before it fell silent, proves nothing.
    """
    for witness in witnesses:
        if witness.node == silence.node != witness.source and witness.time >= silence.since - WITNESS_BEFORE_SECONDS:
            why = f"{silence.why}, and {witness.kind.value} ({witness.source})"
            return NodeLoss(silence.node, silence, witness, why)
    return None


def silence_signal(silence: Silence, loss: NodeLoss | None = None) -> Signal:
    """A silent lease as a signal: context while it stands alone, with a witness the loss of a node."""
    text = silence.why if loss is None else loss.why
    line = Line(text, 1, path="lease", node=silence.node, time=silence.since, trust=Trust.CLUSTER)
    captures = {"node": silence.node, "age_seconds": f"{silence.age_seconds:.1f}"}
    if loss is None:
        return Signal("PS-LEASE-SILENT", "coordination_heartbeat_timeout", Role.CONTEXT, line, SignalKind.LEASE, captures)
    captures["witness"] = loss.witness.source
    return Signal("PS-LEASE-LOST", "node_failure", Role.ROOT, line, SignalKind.LEASE, captures)
