"""The policy: from a diagnosis and what is known of the job to a decision with its reasons. Pure; reads no clock and no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from recovery.decision import (
    CLUSTER_ACTIONS,
    DEFAULT_MODES,
    RELAUNCHES,
    Action,
    Audience,
    Decision,
    DirectiveKind,
    Ground,
    Mode,
    Resume,
)
from recovery.job_facts import JobFacts, Placement
from recovery.rollback import Rollback, plan_rollback
from rules.diagnosis import Diagnosis
from rules.signal import Role, Trust
from rules.taxonomy import Category, Remedy, Severity, load_taxonomy

__all__ = ["TABLE", "Budget", "Row", "Situation", "decide", "grounds", "taken_out", "witnessed_nodes"]


@dataclass(frozen=True, slots=True)
class Row:
    """The actions for one (severity, remedy), by how often its root came back. A failed verification also raises the severity."""

    ladder: tuple[Action, ...]
    why: str
    retry_delay_seconds: float = 0.0


_RETRY, _RESTART, _ROLLBACK, _ISOLATE, _RESET, _STOP = (
    Action.RETRY,
    Action.RESTART,
    Action.ROLLBACK,
    Action.ISOLATE,
    Action.RESET_GPU,
    Action.STOP,
)

TABLE: Mapping[tuple[Severity, Remedy], Row] = MappingProxyType(
    {
        (Severity.SEV3, Remedy.RETRY_IN_PLACE): Row((_RETRY, _RESTART, _ISOLATE), "passes by itself: retry, then restart", 5.0),
        (Severity.SEV3, Remedy.LOCALISE): Row((_RETRY, _RESTART, _ISOLATE), "one of many may be at fault: retry, then find it"),
        (Severity.SEV3, Remedy.FREE_RESOURCES): Row((_RETRY, _RESTART, _STOP), "something else holds what the job needs", 5.0),
        (Severity.SEV3, Remedy.NONE): Row((Action.NONE, _RESTART, _STOP), "training goes on by itself"),
        (Severity.SEV2, Remedy.RESTART_PROCESS): Row((_RESTART, _RESTART, _ISOLATE), "restart on the same resources"),
        (Severity.SEV2, Remedy.LOCALISE): Row((_RESTART, _RESTART, _ISOLATE), "restart first, localise at the second occurrence"),
        (Severity.SEV2, Remedy.REQUEUE): Row(
            (_RESTART, _RESTART, _RESTART), "taken away from outside: start again when given back"
        ),
        (Severity.SEV2, Remedy.ISOLATE_NODE): Row(
            (_RESTART, _ISOLATE, _ISOLATE), "once proves little: restart, isolate when it comes back"
        ),
        (Severity.SEV2, Remedy.RESET_GPU): Row((_RESTART, _RESET, _ISOLATE), "restart now, reset the GPU if it comes back"),
        (Severity.SEV2, Remedy.FREE_RESOURCES): Row((_RESTART, _RESTART, _STOP), "a leftover process holds the GPU", 5.0),
        (Severity.SEV2, Remedy.ROLLBACK_CHECKPOINT): Row((_ROLLBACK, _ROLLBACK, _STOP), "go back to an earlier checkpoint"),
        (Severity.SEV1, Remedy.ISOLATE_NODE): Row((_ISOLATE,), "isolate and go on without it"),
        (Severity.SEV1, Remedy.RESET_GPU): Row((_RESET, _ISOLATE), "drain, reset, requalify, return"),
        (Severity.NONE, Remedy.CONTACT_OPERATOR): Row((_STOP,), "nothing automatic will help"),
        (Severity.NONE, Remedy.FIX_CONFIGURATION): Row((_STOP,), "the configuration must change first"),
        (Severity.NONE, Remedy.FIX_ENVIRONMENT): Row((_STOP,), "the environment must change first"),
        (Severity.NONE, Remedy.FIX_USER_CODE): Row((_STOP,), "the same code would fail again"),
        (Severity.NONE, Remedy.FREE_RESOURCES): Row((_STOP,), "resources must be freed by hand first"),
        (Severity.NONE, Remedy.NONE): Row((_STOP,), "it ended as it was told to"),
        (Severity.NONE, Remedy.ROLLBACK_CHECKPOINT): Row((_ROLLBACK, _STOP), "go back before it and skip those batches, once"),
    }
)

_UNLISTED = Row((_RESTART, _STOP), "no row for this severity and remedy: one restart, then ask")


@dataclass(frozen=True, slots=True)
class Budget:
    """Relaunches allowed per root fingerprint, and in all for one job, within the window over which they are counted."""

    per_root: int = 3
    unknown: int = 1
    per_job: int = 10


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision is made from.

    `spent`: relaunches already spent on this root; `spent_job`: on this job, whatever the root; `escalation`: failed
    verifications of this root in a row; `rule_reasons`: the reason that each rule stands for; `exit_rules`: rules about exit
    statuses; `denied`: actions that the envelope or a person refused, with the refusal; `frozen`: why nothing may be done at
    all, None where it may; `localised`: nodes that probes, run by the agents of several nodes, confirmed to be faulty.
    """

    diagnosis: Diagnosis
    job: JobFacts
    spent: int = 0
    spent_job: int = 0
    escalation: int = 0
    budget: Budget = field(default_factory=Budget)
    modes: Mapping[Action, Mode] = field(default_factory=lambda: DEFAULT_MODES)
    rule_reasons: Mapping[str, str] = field(default_factory=dict)
    exit_rules: frozenset[str] = frozenset()
    denied: Mapping[Action, str] = field(default_factory=dict)
    approved: frozenset[Action] = frozenset()
    frozen: str | None = None
    localised: tuple[str, ...] = ()


def grounds(diagnosis: Diagnosis, rule_reasons: Mapping[str, str]) -> tuple[Ground, ...]:
    """The lines that establish the diagnosis: root evidence of a rule that stands for its reason.

    A trusted line about something else (an exit status beside an Xid that the job printed) vouches for nothing here.
    """
    return tuple(
        Ground(item.rule, item.path, item.line, item.trust)
        for item in diagnosis.evidence
        if item.role is Role.ROOT and _stands_for(diagnosis, item.rule, rule_reasons)
    )


def _stands_for(diagnosis: Diagnosis, rule: str | None, rule_reasons: Mapping[str, str]) -> bool:
    return rule is not None and (rule == diagnosis.rule or rule_reasons.get(rule) == diagnosis.reason)


def witnessed_nodes(situation: Situation) -> tuple[str, ...]:
    """Nodes of this job that a node or the cluster itself names at fault, or that probes confirmed.

    What the job's own lines name never counts. Nor do exit statuses, true as they are: a process chooses how it ends.
    """
    diagnosis = situation.diagnosis
    named = {
        item.node
        for item in diagnosis.evidence
        if item.role is Role.ROOT
        and item.trust is not Trust.JOB
        and item.rule not in situation.exit_rules
        and _stands_for(diagnosis, item.rule, situation.rule_reasons)
    }
    return tuple(node for node in situation.job.nodes if node in named or node in situation.localised)


def decide(situation: Situation) -> Decision:
    """The decision for one failure, in the modes that hold."""
    auto = replace(situation, modes=dict.fromkeys(Action, Mode.AUTO), frozen=None)
    would = _describe(_choose(auto))
    rests_on = grounds(situation.diagnosis, situation.rule_reasons)
    if situation.frozen is not None:
        why = (f"Pitstop is frozen ({situation.frozen}): do what you would do without it",)
        return Decision(Action.NONE, DirectiveKind.NONE, Mode.OBSERVE, why, would, rests_on)
    decision = _choose(situation)
    named = dict.fromkeys(f"{ground.rule}: {ground.trust.value}" for ground in rests_on)
    lines = list(named)[:5] or ["no line of its own"]
    if situation.localised:
        lines.append(f"probes of several nodes: {Trust.NODE.value}")
    return replace(decision, why=(*decision.why, f"rests on {', '.join(lines)}"), would=would, grounds=rests_on)


def _choose(situation: Situation) -> Decision:
    diagnosis = situation.diagnosis
    if not diagnosis.is_failure:
        return _own(situation, Action.NONE, ["no failure was found"], 0.0)
    row = TABLE.get((diagnosis.severity, diagnosis.remedy), _UNLISTED)
    wanted = row.ladder[min(situation.spent, len(row.ladder) - 1)]
    why = [f"{diagnosis.reason} is {diagnosis.severity.value} with remedy {diagnosis.remedy.value}: {row.why}"]
    if _is_lowered_to_none(diagnosis):
        why.append("in this form nothing automatic helps")
        wanted = Action.STOP
    confirmed = tuple(node for node in situation.job.nodes if node in situation.localised)
    if confirmed:
        why.append(f"localisation confirmed {', '.join(confirmed)}")
        if wanted in (Action.RETRY, Action.RESTART):
            wanted = Action.ISOLATE
    raised = _raised(wanted, diagnosis.severity, situation.escalation)
    if raised is not wanted:
        why.append(f"what was done {'before' if situation.escalation == 1 else f'{situation.escalation} times'} did not hold")
        wanted = raised
    if wanted in CLUSTER_ACTIONS:
        refusal = _refusal(situation, wanted)
        if refusal is None:
            return _beyond(situation, wanted, why)
        why.append(refusal)
        wanted = Action.RESTART
    if wanted is Action.ROLLBACK:
        rollback = _rollback(situation)
        why.append(rollback.why)
        if rollback.checkpoint is None:
            wanted = Action.STOP
    if wanted in RELAUNCHES:
        exhausted = _exhausted(situation)
        if exhausted is not None:
            why.append(exhausted)
            wanted = Action.STOP
    delay = row.retry_delay_seconds if situation.spent else 0.0
    return _own(situation, wanted, why, delay)


def _is_lowered_to_none(diagnosis: Diagnosis) -> bool:
    """A rule may say that this form of a reason is beyond its usual remedy (a truncated download has no earlier checkpoint)."""
    taxonomy = load_taxonomy()
    usual = taxonomy[diagnosis.reason].severity if diagnosis.reason in taxonomy else diagnosis.severity
    return diagnosis.severity is Severity.NONE and usual is not Severity.NONE


def _raised(action: Action, severity: Severity, escalation: int) -> Action:
    """SEV3 retry -> SEV2 restart -> SEV1 isolate, one step for each verification that failed (Unicron, section 4.2)."""
    steps = (Action.RETRY, Action.RESTART, Action.ISOLATE)
    if action not in steps or severity is Severity.NONE:
        return action
    start = {Severity.SEV3: 0, Severity.SEV2: 1, Severity.SEV1: 2}[severity]
    return steps[max(steps.index(action), min(start + escalation, 2))]


def _refusal(situation: Situation, action: Action) -> str | None:
    """Why an action beyond the job may not be taken here; None where it may."""
    diagnosis = situation.diagnosis
    if diagnosis.severity is not Severity.SEV1 and diagnosis.category is not Category.INFRASTRUCTURE:
        return f"{action.value} would not help: the failure is the {diagnosis.category.value}'s"
    lines = grounds(diagnosis, situation.rule_reasons)
    if not situation.localised and not any(ground.trust is not Trust.JOB for ground in lines):
        return "only the job's own processes say so: localise, then decide"
    if not witnessed_nodes(situation):
        return "no node of this job is named by a trusted source: localise, then decide"
    placement = situation.job.placement(taken_out(situation))
    if placement.directive is DirectiveKind.STOP:
        return placement.why
    if action in situation.denied:
        return situation.denied[action]
    mode = situation.modes[action]
    if mode in (Mode.OBSERVE, Mode.SUGGEST):
        return f"{action.value} is in mode {mode.value}"
    return None


def taken_out(situation: Situation) -> tuple[str, ...]:
    """The nodes that an action beyond the job would take out."""
    return tuple(dict.fromkeys((*witnessed_nodes(situation), *situation.job.lost)))


def _exhausted(situation: Situation) -> str | None:
    """Why no further relaunch is allowed; None while one is."""
    unknown = not situation.diagnosis.is_established
    limit = situation.budget.unknown if unknown else situation.budget.per_root
    if situation.spent >= limit:
        what = (
            "unknown cause: one restart, then stop and ask"
            if unknown
            else f"crash loop: budget of {limit} relaunches for this root"
        )
        return f"{what} ({situation.spent} spent)"
    if situation.spent_job >= situation.budget.per_job:
        return f"crash loop: budget of {situation.budget.per_job} relaunches for this job ({situation.spent_job} spent)"
    return None


def _beyond(situation: Situation, action: Action, why: list[str]) -> Decision:
    """Take the faulty nodes out, and what that means for the job."""
    exclude = taken_out(situation)
    mode = Mode.APPROVE if situation.modes[action] is Mode.APPROVE and action not in situation.approved else Mode.AUTO
    placement = situation.job.placement(exclude)
    decision = Decision(action, placement.directive, mode, (*why, placement.why), "", exclude=exclude, use=placement.use)
    return _fenced(decision, situation.job, placement)


def _fenced(decision: Decision, job: JobFacts, placement: Placement) -> Decision:
    """Say which nodes are out of reach; where they may go on by themselves, a person has to approve, each time anew."""
    decision = replace(decision, out_of_reach=job.missing)
    if placement.doubt is None:
        return decision
    return replace(decision, mode=Mode.APPROVE, why=(*decision.why, placement.doubt))


def _own(situation: Situation, wanted: Action, why: list[str], delay: float) -> Decision:
    """An action on the job's own processes."""
    job, audience = situation.job, _audience(situation.diagnosis)
    without = job.placement(job.missing) if wanted in RELAUNCHES and job.missing else None
    if without is not None and not job.lost and without.directive is DirectiveKind.STOP:
        # A network may come back sooner than somebody starts the job again.
        why, without = [*why, without.why, "it waits for them"], None
    if without is not None:
        placement = without
        action, audience, exclude = Action(placement.directive.value), Audience.OPERATORS, job.missing
    elif wanted in (Action.RETRY, Action.RESTART) and job.adapts and not _needs_localisation(situation):
        placement = job.placement(())
        action, exclude, delay = Action.ADAPT, (), 0.0
    else:
        placement = Placement(DirectiveKind(wanted.value), (), "")
        action, exclude = wanted, job.lost if wanted is Action.STOP else ()
    why = [*why, placement.why] if placement.why else why
    mode = situation.modes[action]
    if action in situation.denied:
        return Decision(Action.NONE, DirectiveKind.NONE, Mode.OBSERVE, (*why, situation.denied[action]), "")
    if mode in (Mode.OBSERVE, Mode.SUGGEST):
        why = [*why, f"{action.value} is in mode {mode.value}: do what you would do without Pitstop"]
        return Decision(Action.NONE, DirectiveKind.NONE, mode, tuple(why), "")
    if mode is Mode.APPROVE and action in situation.approved:
        mode = Mode.AUTO
    decision = Decision(
        action,
        placement.directive,
        mode,
        tuple(why),
        "",
        audience=audience if action is Action.STOP else None,
        localise=action is not Action.STOP and _needs_localisation(situation),
        exclude=exclude,
        use=placement.use,
        resume=_resume(situation) if action is Action.ROLLBACK else Resume(),
        delay_seconds=delay,
    )
    return _fenced(decision, job, placement)


def _needs_localisation(situation: Situation) -> bool:
    """Isolate fast, do not localise precisely: only infrastructure of unknown place, at SEV1 or when it came back."""
    if situation.diagnosis.category is not Category.INFRASTRUCTURE or witnessed_nodes(situation) or situation.job.cut_off:
        return False
    return situation.diagnosis.severity is Severity.SEV1 or situation.spent + situation.escalation >= 1


def _audience(diagnosis: Diagnosis) -> Audience:
    if diagnosis.remedy is Remedy.CONTACT_OPERATOR or diagnosis.category is Category.INFRASTRUCTURE:
        return Audience.OPERATORS
    return Audience.OWNER


def _rollback(situation: Situation) -> Rollback:
    """Where to go back to. Where no step is known to be the first bad one: one checkpoint further back than the newest for each
    relaunch already spent on this root, and of poisoned numbers everything since the newest is skipped."""
    job = situation.job
    if job.bad_since is not None:
        return plan_rollback(job.checkpoints, job.bad_since, job.last_step, situation.spent)
    newest_first = sorted(job.checkpoints, key=lambda checkpoint: -checkpoint.step)
    poisoned = situation.diagnosis.severity is Severity.NONE
    index = 0 if poisoned else 1 + situation.spent
    if index >= len(newest_first):
        return Rollback(None, (), "no earlier checkpoint is known")
    checkpoint = newest_first[index]
    last = job.last_step
    skip = ((checkpoint.step, last + 1),) if poisoned and last is not None and last >= checkpoint.step else ()
    return Rollback(checkpoint, skip, f"back to step {checkpoint.step}")


def _resume(situation: Situation) -> Resume:
    rollback = _rollback(situation)
    if rollback.checkpoint is None:
        return Resume()
    return Resume(rollback.checkpoint.step, rollback.checkpoint.path, rollback.skip_batches)


def _describe(decision: Decision) -> str:
    """One sentence for `would`."""
    parts = [decision.directive.value]
    if decision.action in CLUSTER_ACTIONS:
        parts.append(f"with {decision.action.value} of {', '.join(decision.exclude)}")
    elif decision.exclude:
        parts.append(f"without {', '.join(decision.exclude)}")
    if decision.resume.step is not None:
        parts.append(f"from step {decision.resume.step}")
    if decision.localise:
        parts.append("after localising")
    return " ".join(parts) + f" ({decision.why[-1]})"
