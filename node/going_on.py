"""What an agent decides about ranks that can go on in their processes when others are lost. Pure, part of `care.step`."""

from __future__ import annotations

from dataclasses import replace

from node.care_states import Action, Care, Command, KillStuck, Peers, Phase, Reform

__all__ = ["can_go_on", "goes_on", "on_peers", "on_rejoined", "reform", "survivors"]


def survivors(care: Care) -> frozenset[int]:
    return care.running - {item.rank for item in care.raised}


def can_go_on(care: Care) -> bool:
    """Whether those that are left can go on as they are: all of them said that they can."""
    left = survivors(care)
    free = care.command is None and not care.interrupted and care.restarts < care.max_restarts
    return bool(left) and left <= care.elastic and free


def goes_on(care: Care) -> bool:
    """Whether they do so at once: the standing order, but where it has a price, which the service compares with other ways, and
    where a half of the job that is out of reach may go on as well."""
    return can_go_on(care) and care.alone and not care.priced


def reform(care: Care, why: str, command: Command | None = None) -> tuple[Care, tuple[Action, ...]]:
    """Those that are left form a new group at once: it destroys nothing, and waiting would only cost time."""
    members = survivors(care)
    after = replace(
        care,
        phase=Phase.RUNNING,
        generation=care.generation + 1 if command is None else command.generation,
        restarts=care.restarts + 1,
        running=members,
        exits=(),
        raised=(),
        last_exit_at=None,
        noticed=frozenset(),
        failed_at=None,
        posted=False,
        accepted_at=None,
        needs_approval=False,
        held_until=None,
        cause="self" if command is None else "restart",
        why=why,
    )
    return after, (Reform(after.generation, members, care, command),)


def on_rejoined(care: Care, ranks: frozenset[int]) -> tuple[Care, tuple[Action, ...]]:
    """Those that go on and those that are back form a new group: no restart of anybody, and none is counted."""
    ranks -= care.running
    free = care.command is None and not care.interrupted and survivors(care) <= care.elastic
    if care.phase is not Phase.RUNNING or not free or not ranks:
        return care, ()
    why = f"ranks {sorted(ranks)} are back"
    after, actions = reform(replace(care, running=care.running | ranks), why)
    return replace(after, restarts=care.restarts), actions


def on_peers(care: Care, peers: Peers, now: float) -> tuple[Care, tuple[Action, ...]]:
    if care.phase is not Phase.RUNNING or not care.elastic:
        return care, ()
    if peers.gone:
        left = care.running - {item.rank for item in peers.gone}
        care = replace(care, running=left, exits=(*care.exits, *peers.gone), last_exit_at=now)
        if goes_on(care):
            return reform(care, peers.why)
        return replace(care, phase=Phase.FAILED, failed_at=now, why=peers.why), ()
    if not peers.lost:
        return on_all_left(care, peers)
    # A process that only hangs could wake up and write what is stale.
    return care, (KillStuck(peers.lost & care.running, peers.why),)


def on_all_left(care: Care, peers: Peers) -> tuple[Care, tuple[Action, ...]]:
    """Nobody is lost and nobody restarts: it costs no restart, unless not a step was done since it happened last."""
    if not can_go_on(care):
        return care, ()
    advanced = peers.step is not None and (care.reached is None or peers.step > care.reached)
    after, actions = reform(replace(care, reached=peers.step), peers.why)
    return replace(after, restarts=care.restarts) if advanced else after, actions
