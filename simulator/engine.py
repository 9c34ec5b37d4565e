"""One cluster under one policy, from event to event: faults, repairs, and tasks that come back. Pure; everything is in `Setting`.

Training is synchronous, so a task whose node or process fails stands still until it was noticed (detection) and changed or
restarted (transition). A fault during that begins it anew. What is lost against the first allocation without failures is split
into detection, transition and sub-healthy time, as Unicron's C_recovery.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from simulator.allotment import largest_feasible, planned, rule_of_thumb
from simulator.faults import Fault, FaultKind
from simulator.policies import Policy, Reach
from simulator.workloads import Workload

__all__ = ["Setting", "Story", "simulate"]

FOREVER = float("inf")
ALLOTTED = (Reach.EQUAL, Reach.WEIGHT, Reach.SIZE)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated: `seconds` of `nodes` nodes that run `tasks`, struck by `faults` (in order)."""

    nodes: int
    tasks: tuple[Workload, ...]
    faults: tuple[Fault, ...]
    seconds: float

    @property
    def node_mtbf_seconds(self) -> float:
        """As the store's own history would give it."""
        lost = sum(fault.kind is FaultKind.NODE for fault in self.faults)
        return self.nodes * self.seconds / max(1, lost)


@dataclass(frozen=True, slots=True)
class Story:
    """What came of it. WAF: weighted FLOP/s; `worth`: accumulated, in weighted FLOP; `full`: what it would be without failures.

    `waf`: (time, WAF from then on). `lost`: accumulated WAF by cause; with `worth` it adds up to `full`. `ettr`: time in which
    the tasks that had nodes at first worked, of all. `healthy`: share of Megatron's throughput, already in all of them.
    """

    policy: str
    waf: tuple[tuple[float, float], ...]
    worth: float
    full: float
    lost: dict[str, float]
    ettr: float
    changes: int


@dataclass(slots=True)
class Running:
    """One task as it stands: still until `noticed` (detection), then until `back` (transition). `wanted`: its first size.
    `hit`: it lost a node and was not formed anew since; `before`: its size until then."""

    task: Workload
    nodes: list[int]
    wanted: int
    noticed: float = 0.0
    back: float = 0.0
    hit: bool = False
    before: int = 0


@dataclass(slots=True)
class Cluster:
    """The simulation's state. `out`: nodes that are away, until when."""

    setting: Setting
    policy: Policy
    tasks: list[Running]
    idle: list[int]
    out: dict[int, float] = field(default_factory=dict)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    order: count[int] = field(default_factory=count)
    changes: int = 0

    def plan_event(self, at: float, kind: str, subject: int) -> None:
        heapq.heappush(self.events, (at, next(self.order), kind, subject))

    def worth(self, running: Running, now: float) -> float:
        return running.task.worth(len(running.nodes)) * self.policy.healthy if now >= running.back else 0.0


def simulate(setting: Setting, policy: Policy) -> Story:
    """Run it through. The same setting and policy always tell the same story."""
    cluster = opened(setting, policy)
    reference = [running.task.worth(len(running.nodes)) * policy.healthy for running in cluster.tasks]
    for index, fault in enumerate(setting.faults):
        cluster.plan_event(fault.at, "fault", index)
    lost = dict.fromkeys(("detection", "transition", "sub_healthy"), 0.0)
    waf: list[tuple[float, float]] = []
    now, worked = 0.0, 0.0
    worth = 0.0
    while now < setting.seconds:
        rates = [cluster.worth(running, now) for running in cluster.tasks]
        if not waf or waf[-1][1] != sum(rates):
            waf.append((now, sum(rates)))
        until = min(cluster.events[0][0] if cluster.events else setting.seconds, setting.seconds)
        span = until - now
        worth += sum(rates) * span
        for running, rate, full in zip(cluster.tasks, rates, reference, strict=True):
            cause = "detection" if now < running.noticed else "transition" if now < running.back < FOREVER else "sub_healthy"
            lost[cause] += (full - rate) * span
            worked += span if rate > 0 and full > 0 else 0.0
        now = until
        while cluster.events and cluster.events[0][0] <= now and now < setting.seconds:
            _, _, kind, subject = heapq.heappop(cluster.events)
            happen(cluster, kind, subject, now)
    return Story(
        policy=policy.name,
        waf=tuple(waf),
        worth=worth,
        full=sum(reference) * setting.seconds,
        lost=lost,
        ettr=worked / (setting.seconds * max(1, sum(full > 0 for full in reference))),
        changes=cluster.changes,
    )


def opened(setting: Setting, policy: Policy) -> Cluster:
    """The first allocation: of all nodes but the spares, by the planner where no rule of thumb is named."""
    usable = setting.nodes - policy.spares
    nothing = (0,) * len(setting.tasks)
    if policy.reach in ALLOTTED:
        sizes = tuple(rule_of_thumb(policy.reach, setting.tasks, usable))
    else:
        sizes = planned(setting.tasks, nothing, (False,) * len(nothing), usable, setting.node_mtbf_seconds, 0.0)
    free = list(range(setting.nodes))
    tasks = [Running(task, [free.pop(0) for _ in range(size)], size) for task, size in zip(setting.tasks, sizes, strict=True)]
    # Where tasks wait for repairs, what the first allocation left over stays out of it.
    return Cluster(setting, policy, tasks, [] if policy.reach is Reach.WAIT else free)


def happen(cluster: Cluster, kind: str, subject: int, now: float) -> None:
    if kind == "fault":
        strike(cluster, cluster.setting.faults[subject], now)
    elif kind == "repaired":
        if cluster.out.get(subject, now + 1) <= now:
            del cluster.out[subject]
            cluster.idle.append(subject)
            reform(cluster, now)
    elif kind == "noticed":
        running = cluster.tasks[subject]
        # A later fault that has not been noticed yet begins it anew.
        if running.noticed <= now:
            reform(cluster, now)


def strike(cluster: Cluster, fault: Fault, now: float) -> None:
    """A node that is out already cannot break again; its repair takes at least as long as the later fault says."""
    if fault.node in cluster.out:
        if fault.kind is FaultKind.NODE and now + fault.repair > cluster.out[fault.node]:
            cluster.out[fault.node] = now + fault.repair
            cluster.plan_event(now + fault.repair, "repaired", fault.node)
        return
    struck = next((index for index, running in enumerate(cluster.tasks) if fault.node in running.nodes), None)
    if fault.kind is FaultKind.NODE:
        cluster.out[fault.node] = now + fault.repair
        cluster.plan_event(now + fault.repair, "repaired", fault.node)
        if fault.node in cluster.idle:
            cluster.idle.remove(fault.node)
    if struck is None:
        return
    running, policy = cluster.tasks[struck], cluster.policy
    if fault.kind is FaultKind.NODE:
        running.noticed = now + policy.detection[fault.kind]
        running.before = running.before if running.hit else len(running.nodes)
        running.nodes.remove(fault.node)
        running.hit = True
        # It stands until its change of nodes was made, or for ever where nothing is found for it.
        running.back = FOREVER
        cluster.plan_event(running.noticed, "noticed", struck)
    elif not running.hit:
        running.noticed = now + policy.detection[fault.kind]
        running.back = max(running.back, running.noticed + policy.restart)
        cluster.plan_event(running.noticed, "noticed", struck)
        cluster.plan_event(running.back, "back", struck)


def reform(cluster: Cluster, now: float) -> None:
    """Nodes were lost or came back: bring tasks to the sizes that the policy gives them."""
    sizes = targets(cluster, now)
    for running, size in zip(cluster.tasks, sizes, strict=True):
        if size is not None and len(running.nodes) > size:
            cluster.idle += running.nodes[size:]
            resize(cluster, running, running.nodes[:size], now)
    for running, size in zip(cluster.tasks, sizes, strict=True):
        if size is None:
            continue
        missing = size - len(running.nodes)
        if missing > 0 and len(cluster.idle) >= missing:
            taken, cluster.idle = cluster.idle[:missing], cluster.idle[missing:]
            resize(cluster, running, running.nodes + taken, now)
        elif running.hit and len(running.nodes) == size and size > 0:
            resize(cluster, running, running.nodes, now)


def pending(running: Running, now: float) -> bool:
    """Its failure has not been noticed yet: nobody changes it."""
    return now < running.noticed


def resize(cluster: Cluster, running: Running, nodes: list[int], now: float) -> None:
    running.nodes, running.hit = nodes, False
    running.back = now + cluster.policy.node_transition if nodes else FOREVER
    cluster.changes += 1
    if nodes:
        cluster.plan_event(running.back, "back", cluster.tasks.index(running))


def targets(cluster: Cluster, now: float) -> Sequence[int | None]:
    """The size that each task shall have; None: it stays as it is, working or waiting."""
    tasks, policy, setting = cluster.tasks, cluster.policy, cluster.setting
    held = [len(running.nodes) for running in tasks]
    open_tasks = [running for running in tasks if not pending(running, now)]
    free = sum(len(running.nodes) for running in open_tasks) + len(cluster.idle)
    if policy.reach is Reach.PLAN:
        present = tuple(running.before if running.hit else len(running.nodes) for running in open_tasks)
        found = planned(
            tuple(running.task for running in open_tasks),
            present,
            tuple(running.hit or len(running.nodes) == 0 for running in open_tasks),
            free,
            setting.node_mtbf_seconds,
            policy.node_transition,
        )
        return spread(cluster, found, now)
    if policy.reach in ALLOTTED:
        return spread(cluster, rule_of_thumb(policy.reach, [running.task for running in open_tasks], free), now)
    spare, result = len(cluster.idle), []
    for running, size in zip(tasks, held, strict=True):
        short, target = running.wanted - size, None
        if not pending(running, now) and short > 0:
            if policy.reach is Reach.HIT:
                target = largest_feasible(running.task, min(running.wanted, size + spare))
            elif short <= spare:
                # Whole again, or it waits.
                target = running.wanted
        spare -= max(0, target - size) if target is not None else 0
        result.append(target)
    return result


def spread(cluster: Cluster, sizes: Sequence[int], now: float) -> list[int | None]:
    """The sizes of the tasks that may be changed, at their places among all."""
    left = iter(sizes)
    return [None if pending(running, now) else next(left) for running in cluster.tasks]
