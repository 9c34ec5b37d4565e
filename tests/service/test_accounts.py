"""Accounts in the service: a story told over HTTP becomes figures, tables, a page, a file and a message."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from recovery.accounts import Phase
from service.account_tables import Subject, day_rows, failure_rows, heat_rows, job_rows
from service.accounts import Accounts, accounts_of
from service.api.accounts import Table, csv_lines
from service.app import create_app
from service.dashboard.report_pages import add_up
from service.incidents import FailureReport
from service.ingest.matching import MatcherPool
from service.migration import migrate
from service.node_returns import NodeReturns
from service.notifications.weekly import WeeklySummary
from service.progress import note_generation
from service.recoveries import Recoveries
from service.settings import Settings
from service.state import Service
from service.store import Store
from service.store.accounts import JobDay, LossRow, NodeHeat
from service.store.incidents import Incident
from service.store.jobs import Job, Node
from service.store.recoveries import Notification
from tests.service.postgres import postgres
from tests.service.scripted_agent import ScriptedAgent
from tests.service.test_recovery_replicas import run_jobs

# A Wednesday, eight in the morning (UTC).
BEGAN = 1_795_593_600.0


@dataclass
class Scene:
    """A service on a clock that the test turns, and an agent that it plays."""

    client: TestClient
    service: Service
    agent: ScriptedAgent
    now: float = BEGAN

    def run(self, seconds: int, first: int) -> None:
        """Train for that long, a step a second, a heartbeat every ten."""
        for beat in range(0, seconds, 10):
            self.now += 10
            ranks = [
                {"rank": rank, "step": first + beat + 9, "completed": beat + 9, "step_seconds": 1.0, "age_seconds": 0.0}
                for rank in range(self.agent.ranks)
            ]
            self.agent.heartbeat(first + beat + 9, ranks=ranks)
        # The service writes what it holds twice a second by itself.
        self.service.heartbeats.write()

    def draw_up(self) -> None:
        Accounts(self.service.store, lambda: self.now).work()

    def losses(self) -> list[LossRow]:
        with self.service.store.reading() as session:
            return list(session.scalars(select(LossRow).order_by(LossRow.stopped_at)))


@pytest.fixture
def scene(settings: Settings, pool: MatcherPool) -> Iterator[Scene]:
    turned: list[Scene] = []
    application = create_app(settings, clock=lambda: turned[0].now if turned else BEGAN, shared_pool=pool)
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        turned.append(Scene(client, application.state.pitstop, ScriptedAgent(client)))
        yield turned[0]


def crash_and_restart(scene: Scene, *, step: int = 100) -> None:
    """The agent restarts by itself 30 s after it reported; the first step follows 20 s later, from 50 steps before."""
    scene.agent.fail(failed=[{"rank": 1, "node": scene.agent.node, "signal": 9, "time": None}], last_step=step - 1)
    scene.now += 30
    scene.agent.generation += 1
    scene.agent.start("self")
    scene.now += 20
    scene.run(200, step - 50)


def train_with_one_crash(scene: Scene) -> None:
    scene.agent.register()
    scene.agent.start()
    scene.now += 15
    scene.run(100, 0)
    crash_and_restart(scene)


def test_a_story_over_http_adds_up_to_its_wall_clock(scene: Scene) -> None:
    train_with_one_crash(scene)
    with scene.service.store.reading() as session:
        (told,) = accounts_of(session, "gpt", scene.now)
    assert told.wall_seconds == pytest.approx(scene.now - BEGAN)
    assert told.seconds(Phase.STARTING) == pytest.approx(16, abs=1)
    assert sum(told.seconds(phase) for phase in (Phase.DIAGNOSIS, Phase.DECISION, Phase.TRANSITION)) == pytest.approx(50, abs=2)
    assert told.seconds(Phase.RECOMPUTING) == pytest.approx(50, abs=2)
    assert told.losses[0].recomputed_steps == 50
    assert told.steps == 250


def test_what_is_stored_is_what_was_drawn_up_and_drawing_up_again_changes_nothing(scene: Scene) -> None:
    train_with_one_crash(scene)
    scene.draw_up()
    (loss,) = scene.losses()
    assert (loss.gpus, loss.recomputed_steps, loss.restart_seconds) == (2, 50, pytest.approx(51, abs=2))
    assert loss.lost_gpu_seconds == pytest.approx(2 * 100, abs=6)
    with scene.service.store.reading() as session:
        before = [(row.day, row.phase, row.seconds) for row in session.scalars(select(JobDay))]
    assert sum(seconds for _, _, seconds in before) == pytest.approx(scene.now - BEGAN)
    scene.draw_up()
    assert len(scene.losses()) == 1
    with scene.service.store.reading() as session:
        assert [(row.day, row.phase, row.seconds) for row in session.scalars(select(JobDay))] == before


def test_an_account_that_was_drawn_up_during_a_failure_is_drawn_up_again_after_it(scene: Scene) -> None:
    scene.agent.register()
    scene.agent.start()
    scene.run(100, 0)
    duty = Accounts(scene.service.store, lambda: scene.now)
    scene.agent.fail()
    duty.work()
    scene.now += 30
    duty.work()
    (waiting,) = scene.losses()
    assert waiting.restart_seconds is None and waiting.lost_gpu_seconds == pytest.approx(60, abs=2)
    scene.agent.generation += 1
    scene.agent.start("self")
    scene.run(200, 100)
    duty.work()
    (loss,) = scene.losses()
    assert loss.restart_seconds == pytest.approx(31, abs=2)


@pytest.mark.acceptance
def test_the_tables_are_added_up_on_postgresql_too() -> None:
    with postgres() as url:
        store = Store(url)
        migrate(store)
        with store.writing() as session:
            session.add(Node(id="n1", state="ready", versions={}, lease_until=BEGAN + 3600, seen_at=BEGAN))
        run_jobs(store, ["job0"])
        recoveries = Recoveries(store, lambda: BEGAN + 100, NodeReturns(store, lambda: BEGAN + 100))
        failed = ({"rank": 0, "node": "n1", "signal": 9},)
        with store.writing() as session:
            job = session.get_one(Job, "job0")
            note_generation(session, job, 0, 0, 1, None, BEGAN)
            recoveries.report(session, FailureReport("job0", 0, 0, "k", failed))
            note_generation(session, job, 1, 1, 1, None, BEGAN + 160)
            job.heartbeat_at = BEGAN + 1000
            session.add(NodeHeat(node="n1", hour=int(BEGAN // 3600), highest_celsius=71.0))
        Accounts(store, lambda: BEGAN + 1000).work()
        for table in Table:
            assert csv_lines(store, table, BEGAN - 10, BEGAN + 2000).__next__().count("\n") == 2, table
        with store.reading() as session:
            tables = add_up(session, 1, BEGAN + 2000)
        assert tables["failures"][0].to_restart_median == 60.0
        store.close()


def test_a_job_that_ended_well_and_runs_again_under_its_name_was_not_down_in_between(scene: Scene) -> None:
    scene.agent.register()
    scene.agent.start()
    scene.run(100, 0)
    scene.agent.running = False
    scene.agent.heartbeat(ended=True, exit_status=0)
    scene.now += 86_400
    scene.agent.generation += 1
    scene.agent.start()
    scene.run(100, 0)
    scene.draw_up()
    assert scene.losses() == []
    with scene.service.store.reading() as session:
        assert sum(life.wall_seconds for life in accounts_of(session, "gpt", scene.now)) == pytest.approx(200)


def test_a_later_verdict_moves_the_loss_to_its_reason(scene: Scene) -> None:
    train_with_one_crash(scene)
    scene.draw_up()
    with scene.service.store.writing() as session:
        incident = session.scalars(select(Incident)).one()
        incident.reason, incident.category, incident.rule, incident.node = "nvlink_fault", "infrastructure", "PS-NVL-001", "n1"
    with scene.service.store.reading() as session:
        tables = failure_rows(session, BEGAN, scene.now)
        assert {subject: [row.name for row in rows] for subject, rows in tables.items()} == {
            Subject.REASON: ["nvlink_fault"],
            Subject.RULE: ["PS-NVL-001"],
            Subject.NODE: ["n1"],
            Subject.JOB: ["gpt"],
            Subject.CATEGORY: ["infrastructure"],
        }
        (row,) = tables[Subject.REASON]
        (job,) = job_rows(session, BEGAN, scene.now, 10)
        (day,) = day_rows(session, BEGAN, scene.now)
    assert (row.failures, row.gpus_median, row.failed_share, row.lost_share) == (1, 2.0, 1.0, 1.0)
    assert row.to_failure_mean == pytest.approx(115, abs=2) and row.restart_ratio == pytest.approx(50 / 115, abs=0.05)
    assert job.ettr == pytest.approx((scene.now - BEGAN - 116 + 100 - 100) / (scene.now - BEGAN), abs=0.02)
    assert day.ettr == job.ettr and job.failures == 1


def test_medians_are_the_middle_of_all_failures_of_a_reason(scene: Scene) -> None:
    train_with_one_crash(scene)
    for _ in range(3):
        crash_and_restart(scene, step=250)
    scene.draw_up()
    ran = [loss.ran_seconds for loss in scene.losses()]
    with scene.service.store.reading() as session:
        (row,) = failure_rows(session, BEGAN, scene.now, (Subject.REASON,))[Subject.REASON]
    assert row.failures == 4
    assert row.to_failure_median == pytest.approx(np.median(ran))


def test_the_tables_come_as_json_and_as_csv_and_no_cell_is_a_formula(scene: Scene) -> None:
    scene.agent.job = "=cmd()"
    train_with_one_crash(scene)
    scene.draw_up()
    for table in ("reason", "rule", "node", "category", "job", "day", "incident", "heat"):
        listed = scene.client.get(f"/api/v1/accounts?by={table}").json()
        text = scene.client.get(f"/api/v1/accounts.csv?by={table}").text
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) == listed["total"] == len(listed["items"])
        assert not any(str(value).startswith("=") for row in rows for value in row.values())
    incident = scene.client.get("/api/v1/accounts?by=incident").json()["items"][0]
    assert incident["recomputed_steps"] == 50 and incident["incident"] == "1"
    assert scene.client.get("/api/v1/accounts?by=weather").status_code == 422


def test_the_page_shows_ratios_and_failures_in_the_form_of_acmes_table(scene: Scene) -> None:
    train_with_one_crash(scene)
    scene.draw_up()
    text = scene.client.get("/report").text
    for words in ("GPU-hours held", "ETTR", "Time to restart (TR)", "TR/TF", "Losses by node", "No temperature is known"):
        assert words in text
    assert text.count("data-chart") == 5


def test_heat_is_set_against_nvlink_and_ecc_failures_of_the_same_hour(scene: Scene) -> None:
    train_with_one_crash(scene)
    for node, celsius in (("n1", 83.0), ("n2", 61.0)):
        gpus = [{"uuid": f"GPU-{node}-{index}", "celsius": celsius - index} for index in range(2)]
        lease: dict[str, Any] = {"boot_id": "b", "agent_id": "a", "clock": scene.now, "gpus": gpus}
        assert scene.client.post(f"/api/v1/nodes/{node}/lease", json=lease).status_code == 200
    with scene.service.store.writing() as session:
        incident = session.scalars(select(Incident)).one()
        incident.reason, incident.node = "nvlink_fault", "n1"
    scene.draw_up()
    with scene.service.store.reading() as session:
        rows = heat_rows(session, BEGAN, scene.now)
    assert [(row.from_celsius, row.node_hours, row.failures) for row in rows] == [(60, 1, 0), (80, 1, 1)]
    assert "80 to 85" in scene.client.get("/report").text


def test_the_week_is_told_once_when_it_is_over(scene: Scene) -> None:
    train_with_one_crash(scene)
    scene.draw_up()
    weekly = WeeklySummary(scene.service.store, lambda: scene.now)
    weekly.work()
    scene.now += 7 * 86_400
    for _ in range(3):
        weekly.work()
    with scene.service.store.reading() as session:
        told = [row.text for row in session.scalars(select(Notification)) if row.state == "weekly" and row.due_at]
    (text,) = told
    assert "1 failures cost" in text and "GPU-hours" in text and "job gpt: ETTR" in text


def test_steps_after_the_last_heartbeat_count_as_done_again_once_the_failure_report_tells_of_them(scene: Scene) -> None:
    scene.agent.register()
    scene.agent.start()
    scene.run(100, 0)
    scene.agent.fail(last_step=105)
    scene.agent.generation += 1
    scene.agent.start("self")
    scene.run(200, 100)
    scene.draw_up()
    (loss,) = scene.losses()
    assert loss.recomputed_steps == 6
    assert loss.recomputing_seconds == pytest.approx(6, abs=1)


def test_the_report_counts_incidents_from_an_index_alone(store: Store) -> None:
    with store.writing() as session:
        asked = (
            "SELECT reason, severity, first_seen, sum(occurrences) FROM incidents WHERE first_seen >= 1 AND merged_into IS NULL"
        )
        plan = [row[3] for row in session.execute(text(f"EXPLAIN QUERY PLAN {asked} GROUP BY reason, severity"))]
    assert any("COVERING INDEX ix_incidents_report" in step for step in plan), plan
