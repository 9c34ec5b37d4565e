"""Incidents: one per failure of one job, joined for reasons that are written down."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role
from rules.taxonomy import load_taxonomy
from service.incidents import FailureReport, apply_diagnosis, fingerprint_of, merge, open_or_update_incident
from service.migration import migrate, pending_revisions
from service.store import Store
from service.store.events import events_after
from service.store.incidents import Incident, timeline
from service.store.recoveries import RecoveryRow
from service.timeline import IncidentState, move


def report(generation: int = 1, key: str = "k1", rank: int = 1) -> FailureReport:
    failed = ({"rank": rank, "node": "n0", "exit_code": None, "signal": 9, "error": None},)
    return FailureReport("train", attempt=0, generation=generation, idempotency_key=key, failed=failed)


def killed(text: str = "rank 1 ended with signal 9 after 31 s") -> Diagnosis:
    reason = next(iter(reason for reason in load_taxonomy().reasons.values() if reason.name not in ("unknown", "none")))
    return Diagnosis.of(reason, "a process was killed", confidence=0.9, evidence=(Evidence(Role.ROOT, text),))


def test_migrating_twice_changes_nothing_and_leaves_one_head(store: Store) -> None:
    before, after = migrate(store)
    assert before == after
    assert pending_revisions(store) == []


def test_the_same_report_is_stored_once(store: Store) -> None:
    with store.writing() as session:
        first = open_or_update_incident(session, report(), 100.0)
    with store.writing() as session:
        again = open_or_update_incident(session, report(), 101.0)
    assert first.opened and first.is_new
    assert not again.is_new and again.incident.id == first.incident.id


def test_two_nodes_reporting_one_failure_make_one_incident(store: Store) -> None:
    with store.writing() as session:
        first = open_or_update_incident(session, report(key="n0", rank=0), 100.0)
        second = open_or_update_incident(session, report(key="n1", rank=1), 100.5)
        assert second.incident.id == first.incident.id
        assert second.why == "same job, attempt and generation"
        entries = [entry.text for entry in timeline(session, first.incident.id)]
    assert any("same job, attempt and generation" in text for text in entries)


def test_the_same_root_while_open_counts_up_and_a_closed_one_does_not(store: Store) -> None:
    with store.writing() as session:
        first = apply_diagnosis(session, open_or_update_incident(session, report(1, "a"), 100.0).incident, killed(), 101.0)
        # Another rank, another duration: the same root.
        text = "rank 0 ended with signal 9 after 77 s"
        second = apply_diagnosis(
            session, open_or_update_incident(session, report(2, "b", 0), 200.0).incident, killed(text), 201.0
        )
        assert second.id == first.id
        assert second.occurrences == 2
        move(session, second, IncidentState.RESOLVED, "done", at=300.0)
        third = apply_diagnosis(session, open_or_update_incident(session, report(3, "c"), 400.0).incident, killed(), 401.0)
        assert third.id != first.id
        assert third.occurrences == 1
        alive = session.scalar(select(func.count()).select_from(Incident).where(Incident.open_key.is_not(None)))
    assert alive == 1


def test_a_report_again_finds_the_incident_that_its_own_was_merged_into(store: Store) -> None:
    with store.writing() as session:
        first = apply_diagnosis(session, open_or_update_incident(session, report(1, "a"), 100.0).incident, killed(), 101.0)
        apply_diagnosis(session, open_or_update_incident(session, report(2, "b"), 200.0).incident, killed(), 201.0)
        assert open_or_update_incident(session, report(2, "b"), 202.0).incident.id == first.id


def test_a_fingerprint_knows_the_job_but_not_the_wording_of_the_summary() -> None:
    one = killed()
    other = Diagnosis.of(load_taxonomy()[one.reason], "told differently", confidence=0.5, evidence=one.evidence)
    assert fingerprint_of("train", one) == fingerprint_of("train", other)
    assert fingerprint_of("train", one) != fingerprint_of("other", one)


def test_what_was_rolled_back_is_never_announced(store: Store) -> None:
    class Stop(Exception):
        pass

    with pytest.raises(Stop), store.writing() as session:
        open_or_update_incident(session, report(), 100.0)
        raise Stop
    with store.writing() as session:
        open_or_update_incident(session, report(key="other"), 100.0)
    with store.reading() as session:
        kinds = [event.kind for event in events_after(session, 0)]
    assert kinds.count("incident.opened") == 1


def test_what_was_done_about_an_incident_goes_with_it_when_it_joins_another(store: Store) -> None:
    with store.writing() as session:
        first = open_or_update_incident(session, report(), 100.0).incident
        second = open_or_update_incident(session, report(generation=2, key="k2"), 200.0).incident
        row = RecoveryRow(
            incident_id=second.id,
            job="train",
            attempt=0,
            generation=2,
            stage="detected",
            state={},
            relaunches=0,
            created_at=1.0,
            updated_at=1.0,
        )
        session.add(row)
        session.flush()
        merge(session, second, first, "by hand", now=300.0)
        session.refresh(row)
        assert row.incident_id == first.id
