"""Who computes which micro-batches, before and after ranks are lost. Pure; the sum over all of them is the same whoever does
them.

Unicron (arXiv 2401.00134, section 6): a lost rank's micro-batches go round-robin to those that are left; what these have
accumulated already is kept.
"""

from typing import AbstractSet, Dict, List, NamedTuple, Sequence, Tuple

__all__ = ["Standing", "Verdict", "first_shares", "judge_standing", "redistributed"]

Shares = Dict[int, Tuple[int, ...]]


class Standing(NamedTuple):
    """Where one member stands when a group is formed. `step`: the one it works on; -1 where it has no state at all.

    `done`: micro-batches of this step whose gradients it holds; `reduced`: how many buckets of it are reduced; `buckets`: of how
    many; `state`: a checksum of parameters and optimizer state before this step.
    """

    member: int
    step: int
    done: Tuple[int, ...]
    reduced: int
    buckets: int
    state: int


class Verdict(NamedTuple):
    """What the members do before they go on together.

    `behind`: members that have yet to apply the step that others have committed; `step`: the one that all then work on;
    `reduced`: buckets of it that are reduced everywhere, so that nobody computes them again; `fresh`: members without a state,
    who take it from `source`; `problem`: why their states cannot be trusted, empty where they can.
    """

    step: int
    behind: Tuple[int, ...] = ()
    reduced: int = 0
    fresh: Tuple[int, ...] = ()
    source: int = -1
    problem: str = ""


def first_shares(micro_batches: int, members: Sequence[int]) -> Shares:
    """All micro-batches, round-robin over the members in order."""
    order = sorted(members)
    return {member: tuple(range(place, micro_batches, len(order))) for place, member in enumerate(order)}


def redistributed(micro_batches: int, done: Dict[int, AbstractSet[int]], before: Shares) -> Shares:
    """What is still to be computed, by member. `done`: of each member that is left; `before`: who was to do what.

    What a member that is left was to do stays with it; the rest goes round-robin, to those with the least to do first.
    """
    held = set().union(*done.values()) if done else set()
    shares: Dict[int, List[int]] = {member: [] for member in sorted(done)}
    orphaned = []
    for number in range(micro_batches):
        if number in held:
            continue
        owner = next((member for member in shares if number in before.get(member, ())), None)
        if owner is None:
            orphaned.append(number)
        else:
            shares[owner].append(number)
    order = sorted(shares, key=lambda member: (len(shares[member]) + len(done[member]), member))
    for place, number in enumerate(orphaned):
        shares[order[place % len(order)]].append(number)
    return {member: tuple(sorted(numbers)) for member, numbers in shares.items()}


def judge_standing(standings: Sequence[Standing]) -> Verdict:
    """How members that may stand at two neighbouring steps come together.

    A step is applied only once all members of the generation agreed that its reduction completed. So where one has applied it,
    every other one holds all its reduced buckets and can apply it too; and nobody is ever further than that.
    """
    living = [standing for standing in standings if standing.step >= 0]
    fresh = tuple(standing.member for standing in standings if standing.step < 0)
    if not living:
        return Verdict(-1, fresh=fresh)
    step = max(standing.step for standing in living)
    behind = [standing for standing in living if standing.step < step]
    ahead = [standing for standing in living if standing.step == step]
    source = min(standing.member for standing in living)
    stuck = [standing.member for standing in behind if standing.reduced < standing.buckets]
    if stuck:
        problem = "members %s have not reduced step %d, which others have committed" % (stuck, behind[0].step)
        return Verdict(step, fresh=fresh, source=source, problem=problem)
    for group in (behind, ahead):
        if len({(standing.step, standing.state) for standing in group}) > 1:
            states = ", ".join("%d: step %d, %08x" % (item.member, item.step, item.state) for item in group)
            return Verdict(step, fresh=fresh, source=source, problem="the replicas differ (%s)" % states)
    reduced = 0 if behind or fresh else min(standing.reduced for standing in ahead)
    return Verdict(step, tuple(standing.member for standing in behind), reduced, fresh, source)
