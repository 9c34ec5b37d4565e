"""What policy and workflow must know, gathered from the store: a failure's situation, and what its job has done since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from detectors.lease import LeaseReview
from recovery.decision import CLUSTER_ACTIONS, DEFAULT_MODES, FAR_ACTIONS, Action, Mode
from recovery.envelope import free_spares, review
from recovery.job_facts import JobFacts
from recovery.policy import Budget, Situation, taken_out
from recovery.rollback import Checkpoint
from recovery.states import Decide, Ended, Event, Recovery, Started, Stepped
from rules.diagnosis import Diagnosis
from rules.pack import Mark, Rule
from service.fleet import busy_nodes, fleet_of
from service.losses import cuts_of, losses_of
from service.store.access import Switch
from service.store.incidents import Failure
from service.store.jobs import Attempt, Job, Node, current_attempt, rank_states
from service.store.recoveries import RecoveryRow, failed_verifications, relaunches

__all__ = [
    "FREEZE",
    "MODES",
    "cut_off_of",
    "frozen",
    "has_agent",
    "lost_of",
    "modes_of",
    "nodes_of",
    "observations",
    "ranks_to_do_without",
    "situation_of",
    "step_before",
]

# Switches (service/store/access.py): {"on": bool, "why": str} and {action: mode}.
FREEZE = "freeze"
MODES = "modes"

ACTIONS = frozenset(action.value for action in Action)
# From observe up to auto.
ORDER = tuple(Mode)

# Relaunches older than this no longer count: a run of months may meet the same fault more than three times.
BUDGET_WINDOW_SECONDS = 86_400.0
# An agent that was heard from within this time is there to be commanded; commands have deadlines of their own.
AGENT_SECONDS = 60.0


def frozen(session: Session) -> str | None:
    """Who froze Pitstop and why; None where it may act."""
    switch = session.get(Switch, FREEZE)
    if switch is None or not switch.value.get("on"):
        return None
    why = switch.value.get("why")
    return f"by {switch.set_by}" + (f": {why}" if why else "")


def modes_of(session: Session, job: Job | None) -> dict[Action, Mode]:
    """The mode of each kind of action for this job (None: for any): its own setting, else the cluster's, else the default.

    A job that an unauthenticated caller registered reaches nothing beyond itself: modes stop at suggest there.
    """
    switch = session.get(Switch, MODES)
    modes = dict(DEFAULT_MODES)
    for source in (switch.value if switch is not None else {}, (job.modes if job is not None else None) or {}):
        modes |= {Action(action): Mode(mode) for action, mode in source.items() if action in ACTIONS and mode in ORDER}
    if job is not None and job.local:
        for action in modes:
            if action in FAR_ACTIONS:
                modes[action] = min(modes[action], Mode.SUGGEST, key=ORDER.index)
    return modes


def nodes_of(job: Job, attempt: Attempt | None) -> tuple[str, ...]:
    """The nodes that carry the job, in rank order; as registered where no attempt was reported."""
    placed = [str(rank["node"]) for rank in (attempt.ranks if attempt is not None else []) if rank.get("node")]
    return tuple(dict.fromkeys(placed or job.nodes))


def has_agent(session: Session, nodes: tuple[str, ...], now: float) -> bool:
    """Whether an agent on one of these nodes was heard from lately."""
    found = session.scalars(select(Node.lease_until).where(Node.id.in_(nodes))).all()
    return any(until is not None and until > now - AGENT_SECONDS for until in found)


def checkpoints_of(session: Session, job: str) -> tuple[Checkpoint, ...]:
    """Checkpoints that the job's failures named, one a step, the newest report's word first."""
    reports = session.scalars(select(Failure.report).where(Failure.job == job).order_by(Failure.id.desc()).limit(100)).all()
    found: dict[int, Checkpoint] = {}
    for report in reports:
        for named in (*(report.get("checkpoints") or ()), report.get("last_checkpoint")):
            if isinstance(named, Mapping) and isinstance(named.get("step"), int):
                found.setdefault(named["step"], Checkpoint(named["step"], named.get("path")))
    return tuple(found.values())


def bad_since(session: Session, row: RecoveryRow) -> int | None:
    """The first step whose numbers were wrong, as the reports of this failure say."""
    reports = session.scalars(
        select(Failure.report).where(Failure.job == row.job, Failure.attempt == row.attempt, Failure.generation == row.generation)
    ).all()
    named = [report.get("bad_since") for report in reports]
    return min((step for step in named if isinstance(step, int)), default=None)


def step_before(session: Session, job: str, generation: int, reported: int | None) -> int | None:
    """The step that the failed generation reached: as reported, else the highest that a rank was seen at."""
    if reported is not None:
        return reported
    return max(
        (row.step for row in rank_states(session, job) if row.generation == generation and row.step is not None), default=None
    )


def situation_of(
    session: Session,
    row: RecoveryRow,
    state: Recovery,
    diagnosis: Diagnosis,
    asked: Decide,
    now: float,
    rules: Sequence[Rule],
    leases: LeaseReview,
    requeues: bool = False,
) -> Situation:
    """All that the policy decides from, the safety envelope's refusals among it. `leases`: as far as they can be judged."""
    situation = _without_envelope(session, row, state, diagnosis, asked, now, rules)
    lost, parted = lost_of(session, row, leases), parted_of(session, row, leases)
    situation = replace(situation, job=replace(situation.job, lost=lost, parted=parted, requeues=requeues))
    named = taken_out(situation)
    if not named:
        return situation
    verdict = review(named, fleet_of(session, now), now, situation.frozen)
    refused = {} if verdict.allowed else dict.fromkeys(CLUSTER_ACTIONS, f"not let through: {verdict.sentence}")
    return replace(situation, denied={**refused, **situation.denied})


def ranks_to_do_without(session: Session, state: Recovery, situation: Situation, lost: tuple[str, ...]) -> frozenset[int]:
    """The ranks that a job would adapt its pipelines to do without: all but those that, by the word of its agents, can go on in
    their processes. Empty where adapting was tried or refused already, where a node that is to be left out has such ranks, or
    where too few would be left for long: a worker whose node is there is started anew at once.
    """
    reports = session.scalars(
        select(Failure.report).where(Failure.job == state.job, Failure.generation == state.generation)
    ).all()
    going_on = {int(rank) for report in reports for rank in report.get("in_place") or ()}
    job, attempt = session.get_one(Job, state.job), current_attempt(session, state.job)
    if Action.ADAPT in situation.denied or situation.escalation or not going_on or attempt is None:
        return frozenset()
    if any(rank["rank"] in going_on and rank.get("node") in lost for rank in attempt.ranks):
        return frozenset()
    if lost and job.min_ranks is not None and len(going_on) < job.min_ranks:
        return frozenset()
    return frozenset(range(job.ranks)) - going_on


def lost_of(session: Session, row: RecoveryRow, leases: LeaseReview) -> tuple[str, ...]:
    """Nodes of the recovery's job that two witnesses hold lost."""
    job = session.get_one(Job, row.job)
    nodes = nodes_of(job, current_attempt(session, row.job))
    return tuple(loss.node for loss in losses_of(session, row.job, row.generation, nodes, leases))


def parted_of(session: Session, row: RecoveryRow, leases: LeaseReview) -> tuple[str, ...]:
    """Nodes of the recovery's job that live, and that its leader does not reach, nor they it."""
    nodes = nodes_of(session.get_one(Job, row.job), current_attempt(session, row.job))
    return tuple(cut.node for cut in cuts_of(session, row.job, row.generation, nodes, leases))


def cut_off_of(session: Session, row: RecoveryRow, leases: LeaseReview) -> tuple[str, ...]:
    """Those of them, or of the leader's side, that the job has to go on without."""
    nodes = nodes_of(session.get_one(Job, row.job), current_attempt(session, row.job))
    lost, parted = lost_of(session, row, leases), parted_of(session, row, leases)
    return JobFacts(row.job, nodes, lost=lost, parted=parted).cut_off


def _without_envelope(
    session: Session,
    row: RecoveryRow,
    state: Recovery,
    diagnosis: Diagnosis,
    asked: Decide,
    now: float,
    rules: Sequence[Rule],
) -> Situation:
    job = session.get_one(Job, row.job)
    attempt = current_attempt(session, row.job)
    since, fleet = now - BUDGET_WINDOW_SECONDS, fleet_of(session, now)
    fingerprint = row.fingerprint or ""
    per_root = Budget().per_root if job.max_restarts is None else min(Budget().per_root, job.max_restarts)
    return Situation(
        diagnosis=diagnosis,
        job=JobFacts(
            name=job.name,
            nodes=nodes_of(job, attempt),
            ranks=len(attempt.ranks) if attempt is not None and attempt.ranks else job.ranks,
            min_ranks=job.min_ranks,
            spares=tuple(node for node in free_spares(fleet, busy_nodes(session), now) if node not in asked.localised),
            checkpoints=checkpoints_of(session, job.name),
            last_step=state.step_before,
            bad_since=bad_since(session, row),
        ),
        spent=relaunches(session, job.name, since, fingerprint),
        spent_job=relaunches(session, job.name, since),
        escalation=asked.escalation + failed_verifications(session, job.name, fingerprint, row.id),
        budget=Budget(per_root=per_root, unknown=min(Budget().unknown, per_root)),
        modes=modes_of(session, job),
        rule_reasons={rule.code: rule.reason for rule in rules if rule.reason is not None},
        exit_rules=frozenset(rule.code for rule in rules if rule.marks is Mark.EXIT),
        denied=dict(asked.denied),
        approved=frozenset(asked.approved),
        frozen=frozen(session),
        localised=asked.localised,
    )


def observations(session: Session, state: Recovery, since: float, now: float) -> list[Event]:
    """What the job's attempts and heartbeats say to this recovery now. Saying it again changes nothing."""
    job = session.get_one(Job, state.job)
    attempt = current_attempt(session, state.job)
    events: list[Event] = []
    if job.generation > state.generation:
        if attempt is not None and attempt.generation == job.generation:
            events.append(Started(now, job.generation, attempt.cause))
        ranks = [row for row in rank_states(session, state.job) if row.generation == job.generation]
        expected = len(attempt.ranks) if attempt is not None and attempt.ranks else job.ranks
        if len(ranks) >= expected and all(row.state == "running" for row in ranks):
            steps = [row.step for row in ranks]
            known = [step for step in steps if step is not None]
            events.append(Stepped(now, job.generation, min(known) if len(known) == len(steps) else None))
    if job.ended_at is not None and job.ended_at >= since:
        events.append(Ended(now, job.generation, job.exit_status))
    return events
