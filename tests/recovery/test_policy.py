"""The policy over every (severity, remedy) pair, and its laws over generated situations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decision import RELAUNCHES, Action, Audience, DirectiveKind, Mode
from recovery.job_facts import JobFacts
from recovery.policy import TABLE, Budget, Situation, decide, witnessed_nodes
from recovery.rollback import Checkpoint
from rules.diagnosis import Diagnosis, Evidence
from rules.pack import load_packs
from rules.signal import Role, Trust
from rules.taxonomy import NONE, UNKNOWN, Category, Severity, load_taxonomy

TAXONOMY = load_taxonomy()
AUTO = dict.fromkeys(Action, Mode.AUTO)
# What the word of the job's own processes may cause (law 2).
OWN_ACTIONS = {Action.NONE, Action.RETRY, Action.RESTART, Action.ROLLBACK, Action.STOP}
JOB = JobFacts(
    "gpt", nodes=("n1", "n2"), ranks=4, min_ranks=2, checkpoints=(Checkpoint(100, "c100"), Checkpoint(200, "c200")), last_step=230
)


def diagnosis(reason: str, trust: Trust | None = None, node: str | None = "n2") -> Diagnosis:
    evidence = () if trust is None else (Evidence(Role.ROOT, "line", "log", 7, "PS-1", trust, node),)
    return Diagnosis.of(TAXONOMY[reason], "it broke", rule="PS-1", evidence=evidence)


def test_every_severity_and_remedy_of_a_reason_or_of_a_rule_that_gives_another_has_a_row_and_no_row_is_dead():
    of_rules = {(other.to, TAXONOMY[rule.reason].remedy) for rule in load_packs() if rule.reason for other in rule.severity}
    assert set(TABLE) == TAXONOMY.remedies() | of_rules


def test_a_truncated_download_is_not_rolled_back_to_a_checkpoint():
    lowered = replace(diagnosis("checkpoint_corrupted", Trust.JOB), severity=Severity.NONE)
    assert decide(Situation(lowered, JOB)).directive is DirectiveKind.STOP


@pytest.mark.parametrize("reason", sorted(TAXONOMY.reasons))
def test_on_the_jobs_own_word_every_reason_stays_within_the_job(reason):
    for spent in range(5):
        for escalation in range(3):
            decision = decide(Situation(diagnosis(reason, Trust.JOB), JOB, spent=spent, escalation=escalation, modes=AUTO))
            assert decision.action in OWN_ACTIONS
            assert decision.exclude == decision.use == ()


# What the first failure leads to, on a line of the kernel of n2 and with everything at auto, then by default modes.
FIRST = {
    ("SEV3", "retry_in_place"): ("retry", "retry"),
    ("SEV3", "localise"): ("retry", "retry"),
    ("SEV3", "free_resources"): ("retry", "retry"),
    ("SEV3", "none"): ("none", "none"),
    ("SEV2", "restart_process"): ("restart", "restart"),
    ("SEV2", "localise"): ("restart", "restart"),
    ("SEV2", "requeue"): ("restart", "restart"),
    ("SEV2", "reset_gpu"): ("restart", "restart"),
    ("SEV2", "free_resources"): ("restart", "restart"),
    ("SEV2", "rollback_checkpoint"): ("rollback", "rollback"),
    ("SEV1", "isolate_node"): ("isolate", "restart"),
    ("SEV1", "reset_gpu"): ("reset_gpu", "restart"),
    ("NONE", "contact_operator"): ("stop", "stop"),
    ("NONE", "fix_configuration"): ("stop", "stop"),
    ("NONE", "fix_environment"): ("stop", "stop"),
    ("NONE", "fix_user_code"): ("stop", "stop"),
    ("NONE", "free_resources"): ("stop", "stop"),
    ("NONE", "none"): ("stop", "stop"),
    ("NONE", "rollback_checkpoint"): ("rollback", "rollback"),
}


@pytest.mark.parametrize("reason", sorted(set(TAXONOMY.reasons) - {NONE}))
def test_the_first_failure_of_each_reason_leads_to_what_its_row_says(reason):
    verdict = diagnosis(reason, Trust.NODE)
    auto, default = FIRST[(verdict.severity.value, verdict.remedy.value)]
    assert decide(Situation(verdict, JOB, modes=AUTO)).action.value == auto
    decision = decide(Situation(verdict, JOB))
    assert decision.action.value == default
    assert decision.mode is Mode.AUTO
    assert verdict.reason in decision.sentence


def test_no_failure_asks_for_nothing():
    assert decide(Situation(diagnosis(NONE), JOB)).directive is DirectiveKind.NONE


@pytest.mark.parametrize("reason", sorted(TAXONOMY.reasons))
def test_relaunches_of_one_root_end_within_the_budget(reason):
    verdict, spent = diagnosis(reason, Trust.JOB), 0
    for _ in range(10):
        decision = decide(Situation(verdict, JOB, spent=spent, modes=AUTO))
        if decision.action not in RELAUNCHES:
            break
        spent += 1
    assert spent <= (1 if reason == UNKNOWN else 3)
    if reason != NONE and TAXONOMY[reason].remedy.value != "none":
        assert decision.directive is DirectiveKind.STOP
        assert decision.audience is not None


def test_an_unknown_cause_gets_one_restart_and_is_then_put_to_the_owner():
    verdict = Diagnosis.of(TAXONOMY[UNKNOWN], "no idea")
    assert decide(Situation(verdict, JOB)).directive is DirectiveKind.RESTART
    second = decide(Situation(verdict, JOB, spent=1))
    assert second.directive is DirectiveKind.STOP
    assert second.audience is Audience.OWNER
    assert "stop and ask" in second.sentence


def test_a_failure_that_keeps_coming_back_climbs_from_retry_to_restart_to_isolation():
    verdict = diagnosis("rdma_retry_exceeded", Trust.NODE)
    actions = [decide(Situation(verdict, JOB, spent=spent, modes=AUTO)).action for spent in range(3)]
    assert actions == [Action.RETRY, Action.RESTART, Action.ISOLATE]
    failed = [decide(Situation(verdict, JOB, escalation=rung, modes=AUTO)).action for rung in range(3)]
    assert failed == actions


def test_a_restart_that_did_not_hold_is_raised_to_isolation_at_once():
    verdict = diagnosis("gpu_contained_memory_error", Trust.NODE)
    assert decide(Situation(verdict, JOB, spent=1, modes=AUTO)).action is Action.RESTART
    assert decide(Situation(verdict, JOB, spent=1, escalation=1, modes=AUTO)).action is Action.ISOLATE


def test_sev1_on_the_jobs_own_word_becomes_localise_then_decide():
    decision = decide(Situation(diagnosis("gpu_fallen_off_bus", Trust.JOB), JOB, modes=AUTO))
    assert decision.action is Action.RESTART
    assert decision.localise
    assert "localise, then decide" in decision.sentence
    assert "PS-1: job" in decision.sentence


def test_nodes_that_probes_confirmed_are_isolated_on_the_probes_word_and_not_localised_again():
    verdict = diagnosis("gpu_fallen_off_bus", Trust.JOB)
    decision = decide(Situation(verdict, JOB, modes=AUTO, localised=("n1",)))
    assert decision.action is Action.ISOLATE
    assert decision.exclude == ("n1",)
    assert not decision.localise
    assert "localisation confirmed n1" in decision.sentence
    assert "probes of several nodes: node" in decision.sentence


def test_by_default_modes_a_confirmed_node_is_named_and_left_where_it_is():
    decision = decide(Situation(diagnosis("nccl_timeout_unattributed", Trust.JOB), JOB, spent=1, localised=("n1",)))
    assert decision.action is Action.RESTART
    assert "localisation confirmed n1" in decision.sentence
    assert "isolate of n1" in decision.would


def test_a_confirmed_node_of_another_job_changes_nothing():
    verdict = diagnosis("nccl_timeout_unattributed", Trust.JOB)
    decision = decide(Situation(verdict, JOB, spent=1, modes=AUTO, localised=("n9",)))
    assert decision.action is Action.RESTART


def test_an_exit_status_read_by_the_agent_does_not_vouch_for_an_xid_that_the_job_printed():
    verdict = Diagnosis.of(
        TAXONOMY["gpu_fallen_off_bus"],
        "it broke",
        rule="PS-XID-079",
        evidence=(
            Evidence(Role.ROOT, "NVRM: Xid (PCI:0000:3b:00): 79", "rank0.log", 7, "PS-XID-079", Trust.JOB, "n2"),
            Evidence(Role.ROOT, "rank 0 exited with 1", "agent", 1, "PS-EXIT-001", Trust.NODE, "n2"),
        ),
    )
    reasons = {"PS-XID-079": "gpu_fallen_off_bus", "PS-EXIT-001": "process_exit_unattributed"}
    assert decide(Situation(verdict, JOB, modes=AUTO, rule_reasons=reasons)).action is Action.RESTART


def test_the_kernels_own_line_counts_even_where_the_jobs_line_came_first():
    verdict = Diagnosis.of(
        TAXONOMY["gpu_fallen_off_bus"],
        "it broke",
        rule="PS-PY-9",
        evidence=(
            Evidence(Role.ROOT, "GPU is lost", "rank0.log", 7, "PS-PY-9", Trust.JOB, "n1"),
            Evidence(Role.ROOT, "NVRM: Xid (PCI:0000:3b:00): 79", "kernel", 7, "PS-XID-079", Trust.NODE, "n2"),
        ),
    )
    decision = decide(Situation(verdict, JOB, modes=AUTO, rule_reasons={"PS-XID-079": "gpu_fallen_off_bus"}))
    assert decision.action is Action.ISOLATE
    assert decision.exclude == ("n2",)
    assert decision.directive is DirectiveKind.SHRINK


def test_a_node_that_is_not_the_jobs_own_is_never_a_target():
    verdict = diagnosis("gpu_fallen_off_bus", Trust.NODE, node="n9")
    assert witnessed_nodes(Situation(verdict, JOB)) == ()
    assert decide(Situation(verdict, JOB, modes=AUTO)).action is Action.RESTART


def test_how_a_process_ended_never_takes_its_node_out_however_often_it_does_so():
    verdict = diagnosis("terminated_by_sigterm", Trust.NODE)
    for spent in range(4):
        situation = Situation(verdict, JOB, spent=spent, escalation=2, modes=AUTO, exit_rules=frozenset({"PS-1"}))
        assert decide(situation).action in OWN_ACTIONS


def test_isolation_in_mode_observe_restarts_and_says_what_auto_would_have_done():
    decision = decide(Situation(diagnosis("gpu_fallen_off_bus", Trust.NODE), JOB))
    assert decision.directive is DirectiveKind.RESTART
    assert decision.would.startswith("shrink with isolate of n2")


def test_isolation_in_mode_approve_waits_for_a_person_and_goes_ahead_once_approved():
    situation = Situation(diagnosis("gpu_fallen_off_bus", Trust.NODE), JOB, modes={**AUTO, Action.ISOLATE: Mode.APPROVE})
    assert decide(situation).mode is Mode.APPROVE
    assert decide(replace(situation, approved=frozenset({Action.ISOLATE}))).mode is Mode.AUTO
    denied = decide(replace(situation, denied={Action.ISOLATE: "rejected by ann: maintenance tonight"}))
    assert denied.action is Action.RESTART
    assert "rejected by ann" in denied.sentence


def test_a_spare_takes_the_place_of_the_isolated_node():
    decision = decide(Situation(diagnosis("gpu_fallen_off_bus", Trust.NODE), replace(JOB, spares=("n7",)), modes=AUTO))
    assert decision.directive is DirectiveKind.RESTART
    assert decision.use == ("n1", "n7")


def test_isolation_never_takes_a_job_below_its_minimum():
    decision = decide(Situation(diagnosis("gpu_fallen_off_bus", Trust.NODE), replace(JOB, min_ranks=None), modes=AUTO))
    assert decision.action is Action.RESTART
    assert "below the minimum of 4" in decision.sentence


def test_a_lost_node_is_left_out_and_a_job_that_cannot_live_without_it_stops_for_the_operators():
    verdict = diagnosis("process_killed_sigkill", Trust.NODE)
    shrunk = decide(Situation(verdict, replace(JOB, lost=("n2",))))
    assert (shrunk.action, shrunk.exclude, shrunk.use) == (Action.SHRINK, ("n2",), ("n1",))
    stopped = decide(Situation(verdict, replace(JOB, lost=("n2",), min_ranks=4)))
    assert stopped.directive is DirectiveKind.STOP
    assert stopped.audience is Audience.OPERATORS


def test_only_a_person_lets_few_nodes_go_on_where_the_others_with_the_leader_may_do_so_by_themselves():
    verdict = diagnosis("process_killed_sigkill", Trust.NODE)
    job = replace(JOB, nodes=("n1", "n2", "n3"), ranks=6)
    for approved in (frozenset(), frozenset({Action.SHRINK})):
        asked = decide(Situation(verdict, replace(job, lost=("n1", "n3")), approved=approved))
        assert (asked.directive, asked.use, asked.mode) == (DirectiveKind.SHRINK, ("n2",), Mode.APPROVE)
        assert asked.out_of_reach == ("n1", "n3") and "n1, n3 may go on by themselves" in asked.sentence
    for lost in (("n2", "n3"), ("n1",)):
        told = decide(Situation(verdict, replace(job, lost=lost)))
        assert (told.directive, told.mode, told.out_of_reach) == (DirectiveKind.SHRINK, Mode.AUTO, lost)
    assert decide(Situation(verdict, replace(job, lost=("n1", "n3"), requeues=True))).mode is Mode.AUTO, "Slurm ends them"


@pytest.mark.parametrize(("parted", "goes_on"), [(("n3",), ("n1", "n2")), (("n2", "n3"), ("n2", "n3"))])
def test_of_two_sides_that_do_not_reach_one_another_the_larger_one_goes_on(parted: tuple[str, ...], goes_on: tuple[str, ...]):
    job = replace(JOB, nodes=("n1", "n2", "n3"), ranks=6, parted=parted)
    decision = decide(Situation(diagnosis("rendezvous_store_unreachable", Trust.CLUSTER), job))
    assert (decision.directive, decision.use, decision.mode) == (DirectiveKind.SHRINK, goes_on, Mode.AUTO)
    assert decision.out_of_reach == decision.exclude == tuple(node for node in job.nodes if node not in goes_on)


def test_of_two_equal_sides_the_leaders_goes_on_and_a_job_that_needs_both_waits_for_them():
    verdict = diagnosis("rendezvous_store_unreachable", Trust.CLUSTER)
    assert decide(Situation(verdict, replace(JOB, parted=("n2",)))).use == ("n1",)
    waits = decide(Situation(verdict, replace(JOB, parted=("n2",), min_ranks=4)))
    assert (waits.directive, waits.exclude, waits.out_of_reach) == (DirectiveKind.RESTART, (), ("n2",))
    assert "it waits for them" in waits.sentence


def test_a_side_that_may_go_on_with_lost_nodes_is_not_left_behind_without_a_person():
    job = replace(JOB, nodes=("n1", "n2", "n3", "n4", "n5"), ranks=10, parted=("n2", "n3"), lost=("n4", "n5"))
    decision = decide(Situation(diagnosis("node_failure", Trust.CLUSTER), job))
    assert (decision.use, decision.mode) == (("n2", "n3"), Mode.APPROVE)
    assert "n1, n4, n5 may go on by themselves" in decision.sentence


def test_a_corrupt_checkpoint_goes_one_further_back_each_time_and_stops_when_there_is_none():
    verdict = diagnosis("checkpoint_corrupted", Trust.JOB)
    first = decide(Situation(verdict, JOB))
    assert (first.resume.step, first.resume.checkpoint, first.resume.skip_batches) == (100, "c100", ())
    assert decide(Situation(verdict, JOB, spent=1)).directive is DirectiveKind.STOP


def test_a_lost_loss_goes_back_once_and_skips_the_batches_in_between():
    verdict = diagnosis("nan_loss", Trust.JOB)
    first = decide(Situation(verdict, JOB))
    assert (first.resume.step, first.resume.skip_batches) == (200, ((200, 231),))
    second = decide(Situation(verdict, JOB, spent=1))
    assert (second.directive, second.audience) == (DirectiveKind.STOP, Audience.OWNER)


def test_a_stop_is_addressed_to_the_owner_for_code_and_to_the_operators_for_infrastructure():
    for name, reason in TAXONOMY.reasons.items():
        decision = decide(Situation(diagnosis(name), JOB))
        if decision.directive is DirectiveKind.STOP:
            infrastructure = reason.category is Category.INFRASTRUCTURE or reason.remedy.value == "contact_operator"
            assert decision.audience is (Audience.OPERATORS if infrastructure else Audience.OWNER)


def test_infrastructure_of_unknown_place_is_localised_at_its_second_occurrence_only():
    verdict = diagnosis("nccl_timeout_unattributed", Trust.JOB)
    assert [decide(Situation(verdict, JOB, spent=spent)).localise for spent in (0, 1)] == [False, True]
    assert not decide(Situation(diagnosis("process_segfault", Trust.JOB), JOB, spent=1)).localise


def test_frozen_means_no_action_and_still_says_what_would_have_been_done():
    decision = decide(Situation(diagnosis("process_segfault"), JOB, frozen="by ann"))
    assert decision.directive is DirectiveKind.NONE
    assert decision.would.startswith("restart")


def test_restart_in_mode_observe_leaves_the_launcher_to_itself():
    decision = decide(Situation(diagnosis("process_segfault"), JOB, modes={**AUTO, Action.RESTART: Mode.OBSERVE}))
    assert (decision.directive, decision.mode) == (DirectiveKind.NONE, Mode.OBSERVE)
    assert decision.would.startswith("restart")


evidences = st.builds(
    Evidence,
    role=st.sampled_from(Role),
    text=st.just("line"),
    rule=st.sampled_from(["PS-1", "PS-2", None]),
    trust=st.sampled_from(Trust),
    node=st.sampled_from(["n1", "n2", "n9", None]),
)
situations = st.builds(
    Situation,
    diagnosis=st.builds(
        lambda name, lines: Diagnosis.of(TAXONOMY[name], "it broke", rule="PS-1", evidence=tuple(lines)),
        st.sampled_from(sorted(TAXONOMY.reasons)),
        st.lists(evidences, max_size=4),
    ),
    job=st.builds(
        JobFacts,
        name=st.just("gpt"),
        nodes=st.sampled_from([(), ("n1",), ("n1", "n2"), ("n1", "n2", "n3", "n4")]),
        ranks=st.sampled_from([1, 4, 8]),
        min_ranks=st.sampled_from([None, 0, 2, 8]),
        lost=st.sampled_from([(), ("n2",)]),
        spares=st.sampled_from([(), ("n5",)]),
        checkpoints=st.sampled_from([(), (Checkpoint(5, "a"),), (Checkpoint(5, "a"), Checkpoint(9, "b"))]),
        last_step=st.none() | st.integers(0, 20),
    ),
    spent=st.integers(0, 5),
    spent_job=st.integers(0, 12),
    escalation=st.integers(0, 4),
    budget=st.just(Budget()),
    modes=st.fixed_dictionaries({action: st.sampled_from(Mode) for action in Action}),
    denied=st.sampled_from([{}, {Action.ISOLATE: "breaker"}]),
    approved=st.sampled_from([frozenset(), frozenset({Action.ISOLATE})]),
    frozen=st.sampled_from([None, "by ann"]),
)


@given(situations)
def test_no_decision_ever_breaks_a_law(situation):
    decision = decide(situation)
    trusted = any(
        item.role is Role.ROOT and item.rule == "PS-1" and item.trust is not Trust.JOB for item in situation.diagnosis.evidence
    )
    assert decision.why
    assert decision.would
    if decision.action in (Action.ISOLATE, Action.RESET_GPU):
        assert trusted
        assert set(decision.exclude) <= set(situation.job.nodes) | set(situation.job.lost)
        assert decision.action not in situation.denied
        assert situation.modes[decision.action] in (Mode.AUTO, Mode.APPROVE)
    if decision.exclude and not trusted:
        assert set(decision.exclude) == set(situation.job.lost)
    if decision.action in RELAUNCHES:
        assert situation.spent < situation.budget.per_root
        assert situation.spent_job < situation.budget.per_job
        assert situation.diagnosis.reason != UNKNOWN or situation.spent < situation.budget.unknown
    if decision.directive is DirectiveKind.SHRINK:
        left = situation.job.ranks_without(decision.exclude)
        assert left >= max(situation.job.min_ranks if situation.job.min_ranks is not None else situation.job.ranks, 1)
    if situation.frozen:
        assert decision.directive is DirectiveKind.NONE
    if situation.diagnosis.severity is Severity.NONE and situation.diagnosis.is_failure and not situation.frozen:
        assert decision.action in (Action.STOP, Action.ROLLBACK, Action.SHRINK, Action.RESTART, Action.NONE)
    assert (decision.audience is not None) == (decision.directive is DirectiveKind.STOP)


def test_a_job_whose_ranks_can_go_on_adapts_its_pipelines_where_the_plan_says_so():
    verdict = diagnosis("process_killed_sigkill", Trust.NODE)
    plan = {"planned_why": "cheaper than the next best (restart in place)", "adapts": True}
    worker = decide(Situation(verdict, replace(JOB, planned=("n1", "n2"), **plan)))
    assert (worker.action, worker.directive, worker.exclude) == (Action.ADAPT, DirectiveKind.ADAPT, ())
    assert "next best (restart in place)" in worker.sentence
    node = decide(Situation(verdict, replace(JOB, lost=("n2",), planned=("n1",), **plan)))
    assert (node.action, node.directive, node.exclude, node.use) == (Action.ADAPT, DirectiveKind.ADAPT, ("n2",), ("n1",))
    isolated = decide(Situation(diagnosis("gpu_fallen_off_bus", Trust.NODE), replace(JOB, planned=("n1",), **plan), modes=AUTO))
    assert (isolated.action, isolated.directive, isolated.exclude) == (Action.ISOLATE, DirectiveKind.ADAPT, ("n2",))


def test_going_back_to_a_checkpoint_and_an_exhausted_budget_are_not_adapted_around():
    facts = replace(JOB, planned=("n1", "n2"), planned_why="cheaper", adapts=True)
    assert decide(Situation(diagnosis("checkpoint_corrupted", Trust.JOB), facts)).directive is DirectiveKind.ROLLBACK
    assert decide(Situation(diagnosis("process_killed_sigkill", Trust.NODE), facts, spent=3)).directive is DirectiveKind.STOP
