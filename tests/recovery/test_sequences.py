"""Policy, envelope and returns together, over sequences of diagnoses, approvals, freezes and returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from recovery.decision import CLUSTER_ACTIONS, RELAUNCHES, Action, DirectiveKind, Mode
from recovery.envelope import BreakerLimits, Fleet, NodeFacts, Removal, free_spares, review
from recovery.job_facts import JobFacts
from recovery.node_return import Approved, Part, Phase, Probed, RepairNoted, ReturnState, Terms, Tick, Uncordon, Uncordoned, step
from recovery.policy import Situation, decide, taken_out
from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role, Trust
from rules.taxonomy import UNKNOWN, load_taxonomy

TAXONOMY = load_taxonomy()
JOBS = {"a": ("n0", "n1", "n2", "n3"), "b": ("n4", "n5", "n6", "n7"), "c": ("n8", "n9")}
SPARES = ("n18", "n19")
LIMITS = BreakerLimits(share=0.2, per_rack=2)
TERMS = Terms(dict.fromkeys(Part, Mode.APPROVE), probation_seconds=3600.0)


class Cluster(RuleBasedStateMachine):
    """Twenty nodes in five racks, three jobs; every kind of action at auto or approve."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.frozen: str | None = None
        self.approves = False
        self.fleet = Fleet(
            {f"n{i}": NodeFacts(f"n{i}", rack=f"r{i // 4}", is_spare=f"n{i}" in SPARES) for i in range(20)}, limits=LIMITS
        )
        self.placed = dict(JOBS)
        self.spent: Counter[tuple[str, str]] = Counter()
        self.out: dict[str, ReturnState] = {}
        self.isolated: list[tuple[str, Trust, str]] = []

    @rule(minutes=st.integers(1, 600))
    def time_passes(self, minutes: int) -> None:
        self.now += 60.0 * minutes
        for node in list(self.out):
            self.tell(node, Tick(self.now))

    @rule(why=st.sampled_from([None, "by ann"]), approves=st.booleans())
    def people_set(self, why: str | None, approves: bool) -> None:
        self.frozen, self.approves = why, approves

    @rule(
        job=st.sampled_from(sorted(JOBS)),
        reason=st.sampled_from(sorted(TAXONOMY.reasons)),
        trust=st.sampled_from(Trust),
        node=st.sampled_from([f"n{i}" for i in range(20)] + ["elsewhere"]),
        escalation=st.integers(0, 3),
    )
    def fails(self, job: str, reason: str, trust: Trust, node: str, escalation: int) -> None:
        line = Evidence(Role.ROOT, "it broke", "log", 7, "PS-1", trust, node)
        verdict = Diagnosis.of(TAXONOMY[reason], "it broke", rule="PS-1", evidence=(line,))
        nodes, busy = self.placed[job], {name for names in self.placed.values() for name in names}
        facts = JobFacts(
            job, nodes, ranks=len(nodes) * 2, min_ranks=4, spares=free_spares(self.fleet, busy, self.now), last_step=40
        )
        mode = Mode.APPROVE if self.approves else Mode.AUTO
        situation = Situation(
            verdict,
            facts,
            spent=self.spent[job, reason],
            escalation=escalation,
            modes=dict.fromkeys(Action, mode),
            frozen=self.frozen,
        )
        named = taken_out(situation)
        allowed = review(named, self.fleet, self.now, self.frozen)
        if named and not allowed.allowed:
            situation = replace(situation, denied=dict.fromkeys(CLUSTER_ACTIONS, allowed.sentence))
        decision = decide(situation)
        if decision.mode is Mode.APPROVE:
            decision = decide(replace(situation, approved=frozenset({decision.action})))
        if self.frozen is not None:
            assert decision.directive is DirectiveKind.NONE
            return
        if decision.action in RELAUNCHES:
            self.spent[job, reason] += 1
            assert self.spent[job, reason] <= (1 if reason == UNKNOWN else 3)
        if decision.action in CLUSTER_ACTIONS:
            assert allowed.allowed
            for name in allowed.take:
                self.isolated.append((name, trust, node))
                self.take_out(name)
            self.placed[job] = decision.use
            assert len(decision.use) * 2 >= 4
        else:
            assert not decision.exclude

    def take_out(self, name: str) -> None:
        self.out[name], _ = ReturnState.taken_out(name, self.now, "it broke")
        self.fleet = replace(
            self.fleet,
            nodes={**self.fleet.nodes, name: replace(self.fleet.nodes[name], cordoned_by="pitstop")},
            removals=(*self.fleet.removals, Removal(name, self.now)),
        )

    @rule(
        node=st.sampled_from([f"n{i}" for i in range(20)]),
        act=st.sampled_from(["repair", "approve", "alone", "paired", "by hand"]),
        passed=st.booleans(),
    )
    def people_or_probes_act(self, node: str, act: str, passed: bool) -> None:
        if node not in self.out:
            return
        match act:
            case "repair":
                self.tell(node, RepairNoted(self.now, "ann", "replaced"))
            case "approve":
                self.tell(node, Approved(self.now, "ann"))
            case "by hand":
                self.tell(node, Uncordoned(self.now, "bob", ours=False))
            case _:
                self.tell(node, Probed(self.now, act == "paired", passed, ""))

    def tell(self, node: str, event: object) -> None:
        state, commands = step(self.out[node], event, TERMS)  # type: ignore[arg-type]
        if Uncordon() in commands:
            state, _ = step(state, Uncordoned(self.now, "pitstop", ours=True), TERMS)
        self.out[node] = state
        if not state.is_over:
            return
        del self.out[node]
        ours = state.phase is Phase.RETURNED
        change = {"returned_at": self.now} if ours else {"cancelled_by": "bob"}
        last = max(index for index, removal in enumerate(self.fleet.removals) if removal.node == node)
        removals = list(self.fleet.removals)
        removals[last] = replace(removals[last], **change)  # type: ignore[arg-type]
        self.fleet = replace(
            self.fleet,
            nodes={**self.fleet.nodes, node: replace(self.fleet.nodes[node], cordoned_by=None)},
            removals=tuple(removals),
        )

    @invariant()
    def the_breaker_holds(self) -> None:
        counted = self.fleet.counted(self.now)
        assert len(counted) <= LIMITS.overall(len(self.fleet.nodes))
        racks = Counter(self.fleet.nodes[name].rack for name in counted)
        assert max(racks.values(), default=0) <= LIMITS.per_rack

    @invariant()
    def nobody_was_taken_out_on_a_jobs_own_word_or_for_another(self) -> None:
        assert all(trust is not Trust.JOB and name == node for name, trust, node in self.isolated)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestSequences(Cluster.TestCase):  # type: ignore[misc,name-defined]
    """No sequence passes the breaker, acts beyond its trust, or spends more than its budget."""
