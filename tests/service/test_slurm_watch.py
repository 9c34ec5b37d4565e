"""What follows from what Slurm's hooks and its own answers say: reported once, or left to whoever wanted it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import select

from recovery.decision import Action, Decision, DirectiveKind, Mode
from recovery.drivers.slurm import SlurmSite
from service.app import create_app
from service.ingest.matching import MatcherPool
from service.node_returns import NodeReturns
from service.recoveries import Recoveries
from service.retention import Retention
from service.scheduling import Hand, hand_of
from service.settings import Settings, SettingsError, load_settings
from service.site_drivers import SiteDrivers, load_drivers
from service.slurm_watch import SlurmWatch
from service.slurm_words import note_slurm_job
from service.state import Service
from service.store import Store
from service.store.access import AuditEntry
from service.store.incidents import Failure, Incident
from service.store.jobs import Attempt, Job, Node
from service.store.slurm import SlurmJob, SlurmWord

ALL_WELL = "".join(f"n{index}   |mixed   |none\n" for index in range(4))


class Slurm:
    """Answers as squeue and sinfo of 22.05 print them."""

    def __init__(self) -> None:
        self.queue, self.nodes, self.away = "42|RUNNING|0|N/A|n[0-1]", ALL_WELL, False

    def __call__(self, argv: Sequence[str], seconds: float) -> tuple[bool, str]:
        if self.away:
            return False, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        return True, self.queue if argv[0] == "squeue" else self.nodes


class Lab:
    """A watch that is driven by hand, and one job of two nodes that Slurm carries as 42."""

    def __init__(self, store: Store) -> None:
        self.store, self.slurm, self.now = store, Slurm(), 1_000_000.0
        recoveries = Recoveries(store, lambda: self.now, NodeReturns(store, lambda: self.now))
        self.watch = SlurmWatch(store, lambda: self.now, recoveries, SlurmSite(), self.slurm)
        with store.writing() as session:
            session.add(Job(name="train", command=[], ranks=2, nodes=[], state="running", created_at=1.0, updated_at=1.0))
            session.flush()
            ranks = [{"rank": rank, "local_rank": 0, "node": f"n{rank}", "pid": 1} for rank in (0, 1)]
            session.add(Attempt(job="train", number=1, generation=0, cause="start", ranks=ranks, started_at=1.0))
        self.register()

    def register(self, restarts: int = 0) -> None:
        place = {"kind": "slurm", "cluster": "lab", "id": "42", "restarts": restarts, "nodes": ["n0", "n1"]}
        with self.store.writing() as session:
            note_slurm_job(session, "train", place, self.now)

    def hook(self, kind: str, **fields: str) -> None:
        with self.store.writing() as session:
            session.add(SlurmWord(kind=kind, slurm_id=fields["JOBID"], fields=fields, received_at=self.now))

    def later(self, seconds: float = 15.0) -> None:
        self.now += seconds
        self.watch.work()

    def failures(self) -> list[Failure]:
        with self.store.reading() as session:
            return list(session.scalars(select(Failure)))

    def row(self) -> SlurmJob:
        with self.store.reading() as session:
            return session.scalars(select(SlurmJob)).one()

    def job_state(self) -> str:
        with self.store.reading() as session:
            return session.get_one(Job, "train").state

    def node_state(self, node: str) -> str:
        with self.store.reading() as session:
            return session.get_one(Node, node).state


@pytest.fixture
def lab(store: Store) -> Lab:
    return Lab(store)


def test_a_node_that_went_down_is_reported_with_slurms_own_words_and_once(lab: Lab) -> None:
    lab.later()
    lab.slurm.queue = "42|PENDING|1|N/A|"
    lab.slurm.nodes = ALL_WELL.replace("n1   |mixed", "n1   |down+not_responding").replace("none\nn2", "Not responding\nn2")
    for _ in range(4):
        lab.later(5.0)
    (failure,) = lab.failures()
    said = failure.report["scheduler"]
    assert said["lines"] == ["JobId=42 JobState=NODE_FAIL NodeList=n0,n1"]
    assert said["nodes"] == {"n1": "NodeName=n1 State=DOWN+NOT_RESPONDING Reason=Not responding"}
    assert (lab.row().requeued, lab.row().over) == (True, False)
    lab.register(restarts=1)
    assert (lab.row().requeued, lab.row().ending) == (False, None)


def test_an_end_that_a_hook_tells_is_not_guessed_at(lab: Lab) -> None:
    lab.hook("job_end", JOBID="42", CLUSTER="lab", JOBSTATE="PREEMPTED", JOBNAME="x JobState=NODE_FAIL", NODES="n[0-1]")
    lab.slurm.queue = "42|PENDING|1|N/A|"
    lab.later()
    lab.later()
    (failure,) = lab.failures()
    assert failure.report["scheduler"]["lines"] == ["JobId=42 JobState=PREEMPTED NodeList=n0,n1"]


def test_the_hooks_word_counts_where_slurms_own_answer_was_there_first(lab: Lab) -> None:
    lab.slurm.queue = "42|PENDING|1|N/A|"
    lab.later()
    assert lab.row().requeued
    lab.hook("job_end", JOBID="42", CLUSTER="unknown", JOBSTATE="PREEMPTED")
    lab.later(1.0)
    lab.later()
    assert [failure.report["scheduler"]["lines"][0].split()[1] for failure in lab.failures()] == ["JobState=PREEMPTED"]


def test_a_job_that_is_cancelled_while_it_waits_to_run_again_is_over(lab: Lab) -> None:
    lab.hook("job_end", JOBID="42", CLUSTER="lab", JOBSTATE="PREEMPTED")
    lab.slurm.queue = "42|PENDING|1|N/A|"
    lab.later()
    lab.slurm.queue = "42|CANCELLED|1|N/A|"
    lab.later()
    assert (lab.row().over, lab.job_state()) == (True, "cancelled")


@pytest.mark.parametrize("state", ["CANCELLED", "CANCELLED by 1000", "COMPLETED"])
def test_what_somebody_wanted_is_no_failure(lab: Lab, state: str) -> None:
    lab.hook("job_end", JOBID="42", CLUSTER="lab", JOBSTATE=state)
    lab.slurm.queue = f"42|{state.split()[0]}|0|N/A|n[0-1]"
    lab.later()
    assert lab.failures() == []
    assert lab.row().over
    assert lab.job_state() == {"CANCELLED": "cancelled", "COMPLETED": "ended"}[state.split()[0]]


def test_what_slurm_started_again_meanwhile_is_not_commanded_to_start(lab: Lab) -> None:
    lab.hook("job_end", JOBID="42", CLUSTER="lab", JOBSTATE="PREEMPTED")
    lab.slurm.queue = "42|PENDING|1|N/A|"
    lab.later()
    decision = Decision(Action.RESTART, DirectiveKind.RESTART, Mode.AUTO, ("w",), "")
    with lab.store.reading() as session:
        assert hand_of(session, "train", 0, decision, SlurmSite()) is Hand.QUEUED
    lab.register(restarts=1)
    with lab.store.reading() as session:
        assert hand_of(session, "train", 0, decision, SlurmSite()) is Hand.QUEUED
        assert hand_of(session, "train", 1, decision, SlurmSite()) is Hand.AGENTS
        without = replace(decision, exclude=("n1",))
        assert hand_of(session, "train", 1, without, SlurmSite()) is Hand.REQUEUE
        assert hand_of(session, "train", 1, without, None) is Hand.AGENTS


def test_a_requeue_by_people_is_left_to_them(lab: Lab) -> None:
    lab.later()
    lab.slurm.queue = "42|PENDING|1|N/A|"
    for _ in range(3):
        lab.later(5.0)
    assert lab.failures() == []
    assert (lab.row().ending, lab.row().requeued, lab.row().over) == ("REQUEUED", True, False)


def test_a_drain_by_an_operator_holds_the_node_and_leaves_its_job_alone(lab: Lab) -> None:
    lab.later()
    lab.slurm.nodes = ALL_WELL.replace("n1   |mixed   |none", "n1   |mixed+drain   |bad PSU")
    lab.later()
    assert (lab.node_state("n1"), lab.node_state("n2")) == ("held", "ready")
    assert lab.failures() == []
    with lab.store.reading() as session:
        assert session.scalars(select(Incident)).all() == []
    lab.slurm.nodes = ALL_WELL
    lab.later()
    assert lab.node_state("n1") == "ready"


def test_slurm_that_does_not_answer_ends_nothing(lab: Lab) -> None:
    lab.later()
    lab.slurm.away = True
    for _ in range(5):
        lab.later(60.0)
    assert lab.failures() == []
    assert (lab.row().ending, lab.row().over) == (None, False)
    assert "Unable to contact" in str(lab.watch.report()["problem"])


def test_jobs_that_nobody_registered_are_not_ours(lab: Lab) -> None:
    lab.hook("job_end", JOBID="43", CLUSTER="lab", JOBSTATE="NODE_FAIL")
    lab.hook("job_end", JOBID="42", CLUSTER="other", JOBSTATE="NODE_FAIL")
    lab.later()
    assert lab.failures() == []
    with lab.store.reading() as session:
        assert all(word.done for word in session.scalars(select(SlurmWord)))


def test_what_hooks_said_is_forgotten_with_the_events_of_its_time(lab: Lab, settings: Settings) -> None:
    lab.hook("job_end", JOBID="43", CLUSTER="lab", JOBSTATE="COMPLETED")
    lab.later()
    retention = Retention(lab.store, settings, lambda: lab.now)
    retention.work()
    with lab.store.reading() as session:
        assert len(session.scalars(select(SlurmWord)).all()) == 1
    lab.now += 8 * 86_400
    retention.work()
    with lab.store.reading() as session:
        assert session.scalars(select(SlurmWord)).all() == []


SENSELESS = [
    ("nothing", b"A=1", 404),
    ("epilog", b"no variable", 400),
    ("epilog", b"SLURM_JOB_ID=42", 422),
    ("job_end", b"A=" + b"x" * 300_000, 413),
]


def test_the_door_takes_hooks_tells_what_is_taken_out_and_stores_nothing_senseless(client: TestClient) -> None:
    service: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    for kind, body, status in SENSELESS:
        assert client.post(f"/api/v1/slurm/hooks/{kind}", content=body).status_code == status
    with service.store.writing() as session:
        assert session.scalars(select(SlurmWord)).all() == []
        service.recoveries.returns.take_out(
            session, "n1", key="k", why="Xid 79", incident=None, recovery=None, generation=0, reset=False
        )
    answers = [client.post("/api/v1/slurm/hooks/prolog", content=f"SLURMD_NODENAME={node}".encode()) for node in ("n0", "n1")]
    assert [answer.headers["pitstop-status"] for answer in answers] == ["0", "2"]
    assert answers[1].text == "CRITICAL: n1 is taken out by Pitstop: Xid 79\n"
    with service.store.reading() as session:
        assert [word.node for word in session.scalars(select(SlurmWord).order_by(SlurmWord.id))] == ["n0", "n1"]


SQUEUE = """
import pathlib, sys
tool, *rest = sys.argv[1:]
state = pathlib.Path(__file__).with_suffix(".state")
held = state.exists() and state.read_text()
if tool == "squeue" and "%x" not in rest:
    print("PENDING|0||" + ("JobHeldAdmin" if held == "held" else "Resources") + "|" + ("pitstop operators: x" if held else ""))
elif tool == "squeue":
    print("")
elif rest[0] == "hold":
    state.write_text("held")
elif rest[:1] == ["update"]:
    state.write_text("marked")
"""


def test_operators_hold_a_waiting_job_through_the_service_and_nobody_without_a_token_does(
    client: TestClient, admin: dict[str, str], tmp_path: Path
) -> None:
    service: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    place = {"kind": "slurm", "cluster": "lab", "id": "42"}
    client.post("/api/v1/jobs", json={"job": "train", "scheduler": place}, headers=admin)
    path, document = "/api/v1/slurm/jobs/42/hold", {"why": "its data set is broken"}
    assert client.post(path, json=document, headers=admin).status_code == 409
    tool = tmp_path / "tool.py"
    tool.write_text(SQUEUE)
    service.recoveries.returns.drivers = SiteDrivers(slurm=SlurmSite((sys.executable, str(tool)), 20))
    assert client.post(path, json=document).status_code == 403
    assert client.post("/api/v1/slurm/jobs/43/hold", json=document, headers=admin).status_code == 404
    assert client.post(path, json={"why": "w", "exclude": ["-all"]}, headers=admin).status_code == 422
    answer = client.post(path, json=document, headers=admin).json()
    assert answer["done"] and answer["commands"][-1] == "scontrol hold 42", answer
    assert answer["commands"][0] == "scontrol update JobId=42 AdminComment=pitstop operators: its data set is broken"
    with service.store.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.act == "slurm.hold")).one()
    assert entry.evidence["why"] == "its data set is broken"


def test_the_driver_file_names_slurm_and_the_sites_own_commands_come_first(tmp_path: Path) -> None:
    path = tmp_path / "drivers.yaml"
    path.write_text(yaml.safe_dump({"slurm": {"prefix": ["ssh", "ctl0"]}, "probe": {"command": ["check", "{node}"]}}))
    drivers = load_drivers(path)
    assert sorted(drivers.templates) == ["cordon", "probe", "state", "uncordon"]
    assert drivers.slurm == SlurmSite(("ssh", "ctl0"))
    path.write_text("slurm: {prefixes: []}")
    with pytest.raises(SettingsError, match=r"PITSTOP_DRIVERS_FILE: .*'prefixes' is not known"):
        load_drivers(path)


def test_a_service_of_a_slurm_cluster_starts(tmp_path: Path, pool: MatcherPool) -> None:
    path = tmp_path / "drivers.yaml"
    path.write_text("slurm: {prefix: [/bin/false]}")
    app = create_app(load_settings(data_dir=tmp_path / "data", drivers_file=path), shared_pool=pool)
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        report = client.get("/readyz").json()["slurm"]
        deadline = time.monotonic() + 120
        while report["problem"] is None and time.monotonic() < deadline:
            time.sleep(0.1)
            report = client.get("/readyz").json()["slurm"]
    assert report["asked"] is True
    assert report["looked_at"] is None
    assert report["problem"]
