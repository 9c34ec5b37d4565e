"""The cluster as planning sees it: nodes, tasks, what may happen to them, and the planner's units drawn from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from recovery.planning.pipeline.cost import PipelineProfile
from recovery.planning.placement import Site
from recovery.planning.planner import Allocation, Event, EventKind, PlanTable, allocate, plan_table
from recovery.planning.tasks import ClusterRates, PlanError, Task

__all__ = [
    "ClusterState",
    "TaskState",
    "Trigger",
    "TriggerKind",
    "allocation_after",
    "event_of",
    "happen",
    "parse_trigger",
    "table_of",
]

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class TaskState:
    """A job, running on `nodes` or waiting for some. `throughput[x]`: FLOP/s on x nodes, 0 where infeasible.

    `transition_seconds`: what re-forming it costs; `restart_seconds`: what starting it elsewhere from a stored checkpoint costs.
    `replica_nodes`: nodes of one data-parallel replica. `held`: why it may not be moved, None where it may. `hit`: a node of it
    is lost. `guessed`: nothing was measured of it, and `throughput` is what a rank is taken to do. `pipeline`: how its pipelines
    are, where they can be adapted; `adapt_seconds`: what that took, where it was measured.
    """

    name: str
    throughput: tuple[float, ...]
    nodes: tuple[str, ...] = ()
    weight: float = 1.0
    minimum: int = 1
    transition_seconds: float = 300.0
    restart_seconds: float = 900.0
    replica_nodes: int = 1
    held: str | None = None
    hit: bool = False
    waiting: bool = False
    guessed: bool = False
    pipeline: PipelineProfile | None = None
    adapt_seconds: float | None = None

    def worth(self, units: int) -> float:
        """F(t,x)."""
        return self.weight * self.throughput[units] if self.minimum <= units < len(self.throughput) else 0.0

    @property
    def least(self) -> int:
        """The smallest feasible size, beyond every size where there is none."""
        return next((units for units in range(len(self.throughput)) if self.worth(units) > 0), len(self.throughput))

    def for_planner(self, lost: int = 0) -> Task:
        """`lost`: how many of its nodes are. It is not taken below its least size, and a held task keeps its size until hit."""
        present = len(self.nodes)
        floor = self.least if self.least <= present - lost else 0
        pinned = self.held is not None and not self.hit and present > 0
        values = self.throughput
        return Task(self.name, values, self.weight, self.minimum, present, self.hit, self.transition_seconds, floor, pinned)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Nodes, tasks and rates. `repair_seconds`: how long a lost node is expected to be away."""

    sites: Mapping[str, Site]
    tasks: tuple[TaskState, ...]
    rates: ClusterRates = field(default_factory=lambda: ClusterRates(90 * DAY))
    repair_seconds: float = 2 * DAY

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise PlanError("task names must differ")
        unknown = sorted({node for task in self.tasks for node in task.nodes} - set(self.sites))
        if unknown:
            raise PlanError(f"a task runs on {', '.join(unknown[:5])}, which no node is called")

    @property
    def placed(self) -> tuple[TaskState, ...]:
        """Tasks that take part in planning: all but those that wait."""
        return tuple(task for task in self.tasks if not task.waiting)

    @property
    def owners(self) -> Mapping[str, str]:
        return {node: task.name for task in self.tasks for node in task.nodes}

    @property
    def free_spares(self) -> tuple[str, ...]:
        owners = self.owners
        return tuple(name for name, site in sorted(self.sites.items()) if site.usable and site.is_spare and name not in owners)

    @property
    def idle(self) -> tuple[str, ...]:
        """Usable nodes that nobody runs on, spares not among them."""
        owners = self.owners
        return tuple(
            name for name, site in sorted(self.sites.items()) if site.usable and not site.is_spare and name not in owners
        )

    def for_planner(self) -> list[Task]:
        return [task.for_planner(sum(not self.sites[node].usable for node in task.nodes)) for task in self.placed]

    @property
    def lost(self) -> tuple[str, ...]:
        """Nodes that tasks still name and cannot use."""
        return tuple(sorted(node for node in self.owners if not self.sites[node].usable))

    @property
    def units(self) -> int:
        """Nodes to share out: usable ones, and as many spares as were lost by tasks."""
        owners = self.owners
        usable = sum(site.usable and (not site.is_spare or name in owners) for name, site in self.sites.items())
        return usable + min(len(self.lost), len(self.free_spares))

    @property
    def stamp(self) -> str:
        """Names this state: a plan for another one is stale."""
        return hashlib.sha256(repr((sorted(self.sites.items()), self.tasks, self.rates)).encode()).hexdigest()[:16]

    def task(self, name: str) -> TaskState:
        for task in self.tasks:
            if task.name == name:
                return task
        raise PlanError(f"there is no task {name!r}; there are {', '.join(task.name for task in self.tasks) or 'none'}")


class TriggerKind(StrEnum):
    """What makes a plan worth thinking about again."""

    NODE_LOST = "node_lost"
    NODE_BACK = "node_back"
    TASK_FINISHED = "task_finished"
    TASK_LAUNCHED = "task_launched"
    WEIGHT_CHANGED = "weight_changed"


@dataclass(frozen=True, slots=True)
class Trigger:
    """`subject`: the node or task; `weight`: the new one where it changed."""

    kind: TriggerKind
    subject: str
    weight: float | None = None

    def __str__(self) -> str:
        match self.kind:
            case TriggerKind.NODE_LOST:
                return f"node {self.subject} lost"
            case TriggerKind.NODE_BACK:
                return f"node {self.subject} back"
            case TriggerKind.TASK_FINISHED:
                return f"task {self.subject} finished"
            case TriggerKind.TASK_LAUNCHED:
                return f"task {self.subject} launched"
            case TriggerKind.WEIGHT_CHANGED:
                return f"task {self.subject} weight {self.weight:g}"


FORMS = "'node NAME lost', 'node NAME back', 'task NAME finished', 'task NAME launched' or 'task NAME weight W'"


def parse_trigger(text: str) -> Trigger:
    """What a what-if says. Raises PlanError, which names the forms."""
    words = text.split()
    simple = {
        ("node", "lost"): TriggerKind.NODE_LOST,
        ("node", "back"): TriggerKind.NODE_BACK,
        ("node", "new"): TriggerKind.NODE_BACK,
        ("task", "finished"): TriggerKind.TASK_FINISHED,
        ("task", "launched"): TriggerKind.TASK_LAUNCHED,
    }
    if len(words) == 3 and (words[0], words[2]) in simple:
        return Trigger(simple[words[0], words[2]], words[1])
    if len(words) == 4 and (words[0], words[2]) == ("task", "weight"):
        try:
            weight = float(words[3])
        except ValueError:
            weight = -1.0
        if 0 < weight < float("inf"):
            return Trigger(TriggerKind.WEIGHT_CHANGED, words[1], weight)
    raise PlanError(f"what-if {text!r} is not understood: say {FORMS}")


def happen(state: ClusterState, trigger: Trigger) -> ClusterState:
    """The state after it. Raises PlanError where it names what is not there."""
    name = trigger.subject
    if trigger.kind in (TriggerKind.NODE_LOST, TriggerKind.NODE_BACK):
        return _node_happens(state, name, trigger.kind is TriggerKind.NODE_LOST)
    task = state.task(name)
    match trigger.kind:
        case TriggerKind.TASK_FINISHED:
            if not task.nodes:
                raise PlanError(f"task {name} does not run")
            return replace(state, tasks=tuple(other for other in state.tasks if other is not task))
        case TriggerKind.TASK_LAUNCHED:
            if not task.waiting:
                raise PlanError(f"task {name} does not wait to be launched")
            changed = replace(task, waiting=False)
        case _:
            changed = replace(task, weight=trigger.weight or task.weight)
    return replace(state, tasks=tuple(changed if other is task else other for other in state.tasks))


def _node_happens(state: ClusterState, name: str, lost: bool) -> ClusterState:
    site = state.sites.get(name)
    if lost:
        if site is None or not site.usable:
            raise PlanError(f"there is no usable node {name!r} to lose")
        tasks = tuple(replace(task, hit=task.hit or name in task.nodes) for task in state.tasks)
        return replace(state, sites={**state.sites, name: replace(site, usable=False)}, tasks=tasks)
    if site is not None and site.usable:
        raise PlanError(f"node {name} is there already")
    return replace(state, sites={**state.sites, name: Site(name) if site is None else replace(site, usable=True)})


def event_of(state: ClusterState, trigger: Trigger) -> Event | None:
    """The table's event for what happens to `state`; None where the table has none and planning begins from scratch."""
    match trigger.kind:
        case TriggerKind.NODE_LOST:
            site, owner = state.sites.get(trigger.subject), state.owners.get(trigger.subject)
            if site is None or state.lost or (owner is None and site.is_spare):
                return None
            return Event(EventKind.NODE_LOST, owner)
        case TriggerKind.NODE_BACK:
            site = state.sites.get(trigger.subject)
            return None if state.lost or (site is not None and site.is_spare) else Event(EventKind.NODE_JOINED)
        case TriggerKind.TASK_FINISHED:
            return Event(EventKind.TASK_FINISHED, trigger.subject)
        case TriggerKind.TASK_LAUNCHED:
            return Event(EventKind.TASK_LAUNCHED, trigger.subject)
        case TriggerKind.WEIGHT_CHANGED:
            return None


def table_of(state: ClusterState) -> PlanTable:
    """Every single-event plan of this state, under its stamp."""
    running = state.for_planner()
    waiting = [task.for_planner() for task in state.tasks if task.waiting]
    return plan_table(running, state.units, state.rates, state.stamp, waiting, spare=bool(state.free_spares))


def allocation_after(state: ClusterState, triggers: Sequence[Trigger], table: PlanTable | None = None) -> tuple[Allocation, bool]:
    """The best allocation after `triggers`, and whether the table had it. Raises PlanError where the table is stale."""
    after = state
    for trigger in triggers:
        after = happen(after, trigger)
    if table is not None and len(triggers) == 1:
        event = event_of(state, triggers[0])
        if event is not None:
            return table.look_up(event, state.stamp), True
    return allocate(after.for_planner(), after.units, after.rates), False
