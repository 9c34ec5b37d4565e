"""The durable runner: whatever the moment at which the service dies, the recovery goes on and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from recovery.decision import Action, Mode
from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role, Trust
from rules.taxonomy import load_taxonomy
from service.incidents import FailureReport
from service.migration import migrate
from service.node_returns import NodeReturns
from service.recoveries import Diagnoser, Recoveries
from service.settings import Settings
from service.situations import FREEZE
from service.store import Store
from service.store.access import AuditEntry, Switch
from service.store.fleet import NodeReturn
from service.store.incidents import TimelineEntry
from service.store.jobs import Attempt, Job, Node, RankState
from service.store.recoveries import CommandRow, Notification, RecoveryRow, commands_after

REPORT = FailureReport("gpt", attempt=0, generation=0, idempotency_key="k0", failed=({"rank": 1, "node": "n1", "signal": 9},))


class Killed(BaseException):
    """The process died here."""


class DyingStore(Store):
    """Dies at its n-th transaction: before it commits, or right after."""

    def __init__(self, url: str, at: int, committed: bool) -> None:
        super().__init__(url)
        self.at, self.committed = at, committed

    @contextmanager
    def writing(self) -> Iterator[Session]:
        self.at -= 1
        with super().writing() as session:
            yield session
            if self.at == 0 and not self.committed:
                raise Killed
        if self.at == 0:
            raise Killed


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def diagnosis(reason: str, trust: Trust = Trust.JOB, node: str | None = None) -> Diagnosis:
    evidence = (Evidence(Role.ROOT, "it broke", rule="PS-1", trust=trust, node=node),)
    return Diagnosis.of(load_taxonomy()[reason], "it broke", rule="PS-1", evidence=evidence)


def prepare(store: Store, **fields: object) -> None:
    migrate(store)
    with store.writing() as session:
        times = {"created_at": 1.0, "updated_at": 1.0}
        job = {"ranks": 2, "nodes": ["n1"], "command": [], "generation": 0, "weight": 1.0, "modes": {}, "state": "running"}
        session.add(Job(name="gpt", **times, **(job | {"contact": "ann@example.org"} | fields)))
        session.add(Node(id="n1", state="ready", versions={}, lease_until=5000.0, seen_at=1.0))
        session.flush()
        ranks = [{"rank": rank, "node": "n1"} for rank in range(2)]
        session.add(Attempt(job="gpt", number=0, generation=0, cause="start", ranks=ranks, started_at=1.0))


def runs(store: Store, generation: int, step: int, nodes: tuple[str, str] = ("n1", "n1")) -> None:
    with store.writing() as session:
        session.get_one(Job, "gpt").generation = generation
        ranks = [{"rank": rank, "node": node} for rank, node in enumerate(nodes)]
        known = session.scalar(select(Attempt).where(Attempt.number == generation))
        if known is None:
            started = {"number": generation, "generation": generation, "cause": "restart", "started_at": 1.0}
            session.add(Attempt(job="gpt", ranks=ranks, **started))
        for rank in range(2):
            state = {"attempt": generation, "generation": generation, "step": step, "state": "running", "heard_at": 1.0}
            session.merge(RankState(job="gpt", rank=rank, **state))


def recoveries_on(store: Store, clock: Clock, diagnose: Diagnoser) -> Recoveries:
    return Recoveries(store, clock, NodeReturns(store, clock), diagnose)


def story(recoveries: Recoveries, clock: Clock, world: Store) -> Iterator[Callable[[], None]]:
    """What happens to one failure from outside, and the supervisor looking in between; each part can be done again."""
    store = recoveries.store

    def report() -> None:
        with store.writing() as session:
            recoveries.report(session, REPORT)

    def look() -> None:
        for recovery in recoveries.unfinished():
            recoveries.advance(recovery)

    def obey() -> None:
        with store.reading() as session:
            commands = [row.id for row in commands_after(session, "n1", 0, clock())]
        for command in commands:
            with store.writing() as session:
                recoveries.answered(session, session.get_one(CommandRow, command), "done", 1, "2 ranks started")

    yield report
    yield look
    yield obey
    yield lambda: runs(world, 1, 41)
    yield look


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("death", range(1, 7))
def test_whenever_the_service_dies_the_recovery_completes_once(settings: Settings, death: int, committed: bool) -> None:
    url, clock, deaths = settings.database_url, Clock(), 0
    world = Store(url)
    prepare(world)
    store: Store = DyingStore(url, death, committed)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_killed_sigkill"))
    parts = list(story(recoveries, clock, world))
    position = 0
    while position < len(parts):
        try:
            parts[position]()
            position += 1
        except Killed:
            deaths += 1
            store.close()
            clock.now += 6.0
            store = Store(url)
            parts = list(story(recoveries_on(store, clock, recoveries.diagnose), clock, world))
    with world.reading() as session:
        row = session.scalars(select(RecoveryRow)).one()
        commands = session.scalars(select(CommandRow)).all()
        stages = session.scalars(
            select(TimelineEntry.kind).where(TimelineEntry.kind.in_(["decided", "planned", "acted", "verified"]))
        ).all()
    assert row.stage == "verified"
    assert row.relaunches == 1
    assert [(command.kind, command.generation, command.status) for command in commands] == [("restart_ranks", 1, "done")]
    assert stages == ["decided", "planned", "acted", "verified"]
    assert deaths == 1
    store.close()
    world.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(recoveries: Recoveries, generation: int) -> RecoveryRow:
    """Report a failure of this generation and let it be decided."""
    report = FailureReport("gpt", generation, generation, f"k{generation}", REPORT.failed, last_step=40)
    with recoveries.store.writing() as session:
        recovery = recoveries.report(session, report).id
    recoveries.advance(recovery)
    with recoveries.store.reading() as session:
        return session.get_one(RecoveryRow, recovery)


def test_two_services_that_look_at_one_recovery_issue_one_command(settings: Settings, clock: Clock) -> None:
    url = settings.database_url
    prepare(Store(url))
    one = recoveries_on(Store(url), clock, lambda _incident: diagnosis("process_killed_sigkill"))
    other = recoveries_on(Store(url), clock, one.diagnose)
    recovery = fail(one, 0)
    other.advance(recovery.id)
    one.advance(recovery.id)
    with one.store.reading() as session:
        assert session.scalar(select(func.count()).select_from(CommandRow)) == 1


def test_who_looks_for_a_cause_is_left_alone_until_its_claim_lapses(store: Store, clock: Clock) -> None:
    prepare(store)
    seen = []
    one = recoveries_on(store, clock, lambda incident: seen.append("one") or diagnosis("process_killed_sigkill"))
    other = recoveries_on(store, clock, lambda incident: seen.append("other") or diagnosis("process_killed_sigkill"))
    with store.writing() as session:
        recovery = one.report(session, REPORT).id
    assert one._claim(recovery) is not None
    other.advance(recovery)
    assert seen == []
    clock.now += 6.0
    other.advance(recovery)
    assert seen == ["other"]


def test_a_crash_loop_is_stopped_within_its_budget_and_the_owner_told_why(store: Store, clock: Clock) -> None:
    prepare(store)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    directives = []
    for generation in range(4):
        row = fail(recoveries, generation)
        directives.append((row.directive or {})["directive"])
        clock.now += 30
        runs(store, generation + 1, 41)
        if directives[-1] == "restart":
            recoveries.advance(row.id)
    assert directives == ["restart", "restart", "restart", "stop"]
    with store.reading() as session:
        told = session.scalars(select(Notification).where(Notification.audience == "owner")).one()
        assert session.scalars(select(RecoveryRow.stage).order_by(RecoveryRow.id)).all()[:3] == ["verified"] * 3
    assert "crash loop" in told.text
    assert told.recipient == "ann@example.org"


def test_the_budget_of_a_root_comes_back_after_a_day(store: Store, clock: Clock) -> None:
    prepare(store)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    for generation in range(5):
        row = fail(recoveries, generation)
        assert (row.directive or {})["directive"] == "restart"
        runs(store, generation + 1, 41)
        recoveries.advance(row.id)
        clock.now += 40_000


def test_a_job_that_allows_no_restart_gets_none(store: Store, clock: Clock) -> None:
    prepare(store, max_restarts=0)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    assert (fail(recoveries, 0).directive or {})["directive"] == "stop"


def test_a_lost_loss_goes_back_to_the_checkpoint_that_the_agent_named_and_skips_the_batches(store: Store, clock: Clock) -> None:
    prepare(store)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("nan_loss"))
    report = replace(REPORT, last_step=40, document={"failed": [], "last_checkpoint": {"step": 30}})
    with store.writing() as session:
        recovery = recoveries.report(session, report).id
    recoveries.advance(recovery)
    with store.reading() as session:
        directive = session.get_one(RecoveryRow, recovery).directive or {}
        command = session.scalars(select(CommandRow)).one()
    assert directive["directive"] == "rollback"
    assert directive["resume"] == {"step": 30, "checkpoint": None, "skip_batches": [[30, 41]]}
    assert command.args["resume"] == directive["resume"]


def test_a_late_answer_to_an_earlier_action_does_not_count_for_the_present_one(store: Store, clock: Clock) -> None:
    prepare(store, max_restarts=1)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    recovery = fail(recoveries, 0).id
    clock.now += 61
    recoveries.advance(recovery)
    with store.reading() as session:
        restart, stop = session.scalars(select(CommandRow).order_by(CommandRow.id))
        assert (restart.kind, stop.kind) == ("restart_ranks", "stop_ranks")
    with store.writing() as session:
        recoveries.answered(session, session.get_one(CommandRow, restart.id), "done", 1, "2 ranks started")
        assert session.get_one(RecoveryRow, recovery).stage == "planned"
        recoveries.answered(session, session.get_one(CommandRow, stop.id), "done", 1, "every process is gone")
        assert session.get_one(RecoveryRow, recovery).stage == "stopped"


def test_a_restart_that_does_not_hold_is_raised_to_isolation_where_a_node_itself_names_the_fault(
    store: Store, clock: Clock
) -> None:
    modes = {Action.ISOLATE.value: Mode.AUTO.value}
    prepare(store, nodes=["n1", "n2"], min_ranks=1, modes=modes, local=False)
    with store.writing() as session:
        session.add(Node(id="n2", state="ready", versions={}, lease_until=5000.0, seen_at=1.0))
        attempt = session.scalars(select(Attempt)).one()
        attempt.ranks = [{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("gpu_contained_memory_error", Trust.NODE, "n2"))
    recovery = fail(recoveries, 0).id
    runs(store, 1, 12, ("n1", "n2"))
    recoveries.advance(recovery)
    clock.now += 301
    recoveries.advance(recovery)
    with store.reading() as session:
        told = session.execute(select(CommandRow.node, CommandRow.kind, CommandRow.generation).order_by(CommandRow.id)).all()
        kinds = session.scalars(select(TimelineEntry.kind).order_by(TimelineEntry.id)).all()
        out = session.scalars(select(NodeReturn.node)).all()
    assert told[:2] == [("n1", "restart_ranks", 1), ("n2", "restart_ranks", 1)]
    assert told[2:] == [("n1", "restart_ranks", 2), ("n2", "stop_ranks", 2)]
    assert "escalated" in kinds
    assert out == ["n2"]


def test_a_failure_that_the_next_one_overtook_before_anything_was_decided_is_not_waited_for_for_ever(
    store: Store, clock: Clock
) -> None:
    prepare(store)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    with store.writing() as session:
        first = recoveries.report(session, REPORT).id
        assert recoveries.directive(session, first)["directive"] == "wait"
    fail(recoveries, 1)
    with store.reading() as session:
        assert recoveries.directive(session, first)["directive"] == "none"


def test_frozen_nothing_is_commanded_and_the_answer_says_so(store: Store, clock: Clock) -> None:
    prepare(store)
    with store.writing() as session:
        session.add(Switch(name=FREEZE, value={"on": True, "why": "maintenance"}, set_by="ann", set_at=1.0))
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault"))
    directive = fail(recoveries, 0).directive or {}
    assert directive["directive"] == "none"
    assert "frozen (by ann: maintenance)" in directive["why"]
    assert directive["would"].startswith("restart")
    with store.reading() as session:
        assert session.scalar(select(func.count()).select_from(CommandRow)) == 0


def test_a_failed_diagnosis_is_an_unknown_cause_not_a_lost_failure(store: Store, clock: Clock) -> None:
    prepare(store)

    def broken(_incident: int) -> Diagnosis:
        raise RuntimeError("the matcher died")

    assert (fail(recoveries_on(store, clock, broken), 0).directive or {})["directive"] == "restart"


def test_a_job_of_an_unauthenticated_caller_reaches_nothing_beyond_itself(store: Store, clock: Clock) -> None:
    auto = dict.fromkeys((action.value for action in Action), Mode.AUTO.value)
    prepare(store, local=True, modes=auto, nodes=["n1", "n2"], min_ranks=1)
    recoveries = recoveries_on(store, clock, lambda _incident: diagnosis("gpu_fallen_off_bus", Trust.NODE, "n1"))
    directive = fail(recoveries, 0).directive or {}
    assert directive["directive"] == "restart"
    assert directive["nodes"] == {"exclude": [], "use": []}
    assert "isolate" in directive["why"]


def test_every_action_is_in_the_audit_trail_with_its_reason(store: Store, clock: Clock) -> None:
    prepare(store)
    fail(recoveries_on(store, clock, lambda _incident: diagnosis("process_segfault")), 0)
    with store.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.act == "action.restart")).one()
    assert (entry.actor, entry.target) == ("policy", "gpt")
    assert "PS-1: job" in entry.reason
