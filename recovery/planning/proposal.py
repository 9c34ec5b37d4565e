"""What is proposed after something happened: the planner's allocation beside its alternatives, the one chosen, and what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recovery.planning.adapting import adapter_of
from recovery.planning.alternatives import Adapter, Alternative, AlternativeKind, priced_alternatives
from recovery.planning.cluster import ClusterState, Trigger, allocation_after, happen
from recovery.planning.pipeline.cost import Periods
from recovery.planning.placement import Placement, place
from recovery.planning.planner import Allocation, PlanTable
from recovery.planning.tasks import PlanError, running_seconds

__all__ = ["Proposal", "propose", "reason_of"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """`before` and `after` the triggers; `allocation`: the planner's, `from_table` where it was computed ahead.

    WAF in weighted FLOP/s: `waf_before` the triggers, `waf_undone` after them with nothing done, `waf_proposed` once all have
    moved. In weighted FLOP over `horizon` seconds: `gained` over doing nothing, `cost` of the transitions (what the changed tasks
    would have done meanwhile).
    """

    triggers: tuple[Trigger, ...]
    before: ClusterState
    after: ClusterState
    allocation: Allocation
    from_table: bool
    alternatives: tuple[Alternative, ...]
    chosen: Alternative
    placement: Placement
    horizon: float
    why: str

    @property
    def changed(self) -> tuple[str, ...]:
        """Tasks that are re-formed: hit ones that go on, and those whose size or nodes change."""
        return tuple(
            task.name
            for task in self.after.placed
            if (
                task.hit and self.chosen.targets.get(task.name, 0) > 0 and self.chosen.kind is not AlternativeKind.WAIT_FOR_REPAIR
            )
            or set(self.placement.nodes.get(task.name, ())) != set(task.nodes)
        )

    @property
    def waf_before(self) -> float:
        return sum(task.worth(len(task.nodes)) for task in self.before.placed)

    @property
    def waf_undone(self) -> float:
        return sum(0.0 if task.hit else task.worth(len(task.nodes)) for task in self.after.placed)

    @property
    def waf_proposed(self) -> float:
        return sum(task.worth(self.chosen.targets.get(task.name, 0)) for task in self.after.placed)

    @property
    def gained(self) -> float:
        return self.chosen.accumulated - self.waf_undone * self.horizon

    @property
    def cost(self) -> float:
        return sum(
            task.worth(len(task.nodes)) * task.transition_seconds for task in self.after.placed if task.name in self.changed
        )


def propose(
    state: ClusterState,
    triggers: Sequence[Trigger],
    table: PlanTable | None = None,
    adapter: Adapter | None = None,
    periods: Periods | None = None,
) -> Proposal:
    """What to do after `triggers` (none: about the state as it is). `periods`: of pipeline plans that were computed ahead.

    Raises PlanError, also where `table` is of another state.
    """
    after = state
    for trigger in triggers:
        after = happen(after, trigger)
    allocation, from_table = allocation_after(state, triggers, table)
    horizon = running_seconds(after.units, after.rates)
    adapter = adapter or adapter_of(after, horizon, periods)
    alternatives = priced_alternatives(after, allocation.units, _says(after, allocation), adapter)
    chosen = next((item for item in alternatives if item.against is None), None)
    if chosen is None:
        raise PlanError("nothing can be done: " + "; ".join(f"{item.kind}: {item.against}" for item in alternatives))
    placement = _placed(after, chosen)
    return Proposal(
        tuple(triggers),
        state,
        after,
        allocation,
        from_table,
        alternatives,
        chosen,
        placement,
        horizon,
        reason_of(alternatives, chosen, horizon),
    )


def _says(after: ClusterState, allocation: Allocation) -> str:
    changes = [
        f"{task.name} {len(task.nodes)} -> {allocation.units[task.name]}"
        for task in after.placed
        if allocation.units[task.name] != len(task.nodes)
    ]
    again = [
        f"{task.name} again on {len(task.nodes)}"
        for task in after.placed
        if task.hit and len(task.nodes) == allocation.units[task.name]
    ]
    return ("nodes: " + ", ".join(again + changes)) if again or changes else "everything stays as it is"


def _placed(after: ClusterState, chosen: Alternative) -> Placement:
    current = {task.name: task.nodes for task in after.placed}
    targets = {task.name: chosen.targets.get(task.name, 0) for task in after.placed}
    replicas = {task.name: task.replica_nodes for task in after.placed}
    sites = dict(after.sites)
    if chosen.kind is AlternativeKind.WAIT_FOR_REPAIR:
        # The nodes that are left stay reserved for the job that waits.
        return Placement(current, ())
    if chosen.kind is AlternativeKind.RESTART_ELSEWHERE:
        for task in after.placed:
            if task.hit:
                sites |= {node: replace(sites[node], usable=False) for node in task.nodes}
    return place(targets, current, sites, replicas)


def reason_of(alternatives: Sequence[Alternative], chosen: Alternative, horizon: float) -> str:
    """Why `chosen` and no other of `alternatives`, in one sentence."""
    hours = horizon / 3600
    possible = [item for item in alternatives if item.against is None and item.accumulated < chosen.accumulated]
    text = f"{chosen.says}: {chosen.accumulated:.4g} weighted FLOP over the {hours:.0f} h until the next failure is expected"
    if possible:
        second = possible[0]
        more = f"{chosen.accumulated / second.accumulated - 1:.2%}" if second.accumulated else "all of it"
        text += f", {more} more than the next best ({second.kind.value.replace('_', ' ')})"
    better = [item for item in alternatives if item.against is not None and item.accumulated > chosen.accumulated]
    if better:
        text += "; " + "; ".join(f"{item.kind.value.replace('_', ' ')} would bring more, but {item.against}" for item in better)
    return text
