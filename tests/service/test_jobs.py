"""Jobs, attempts and heartbeats over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

JOB = {
    "job": "train",
    "owner": "ada",
    "contact": "ada@example.org",
    "ranks": 2,
    "min_ranks": 1,
    "command": ["python", "train.py"],
}


def attempt(generation: int, number: int = 0, cause: str = "start") -> dict[str, object]:
    ranks = [{"rank": rank, "local_rank": rank, "node": "n0", "pid": 10 + rank} for rank in range(2)]
    return {"attempt": number, "generation": generation, "cause": cause, "ranks": ranks, "store": {"host": "n0", "port": 2}}


def test_registering_is_idempotent_by_name(client: TestClient) -> None:
    assert client.post("/api/v1/jobs", json=JOB).status_code == 201
    again = client.post("/api/v1/jobs", json={"job": "train", "ranks": 4})
    assert again.status_code == 200
    assert (again.json()["ranks"], again.json()["owner"]) == (4, "ada")
    assert client.get("/api/v1/jobs").json()["total"] == 1


def test_a_change_leaves_what_it_does_not_name_and_never_takes_a_jobs_list_of_nodes_away(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB | {"nodes": ["n0"]})
    changed = client.patch("/api/v1/jobs/train", json={"owner": None}).json()
    assert (changed["owner"], changed["nodes"], changed["contact"]) == (None, ["n0"], JOB["contact"])
    # Recoveries and plans of every job read it.
    assert client.patch("/api/v1/jobs/train", json={"nodes": None}).status_code == 422
    assert client.get("/api/v1/jobs/train").json()["nodes"] == ["n0"]


def test_an_attempt_raises_the_generation_and_an_older_one_is_refused_with_the_present(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB)
    assert client.post("/api/v1/jobs/train/attempts", json=attempt(3)).status_code == 201
    assert client.post("/api/v1/jobs/train/attempts", json=attempt(4, cause="takeover")).status_code == 200
    refused = client.post("/api/v1/jobs/train/attempts", json=attempt(3, number=1))
    assert refused.status_code == 409
    assert refused.json()["generation"] == 4
    document = client.get("/api/v1/jobs/train").json()
    assert (document["generation"], document["state"], len(document["attempts"])) == (4, "running", 1)


def test_a_heartbeat_of_an_older_generation_changes_nothing(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB)
    client.post("/api/v1/jobs/train/attempts", json=attempt(2))
    beat = {"attempt": 0, "generation": 2, "node": "n0", "ranks": [{"rank": 0, "step": 7, "state": "running"}]}
    assert client.post("/api/v1/jobs/train/heartbeat", json=beat).json()["accepted"]
    old = beat | {"generation": 1, "ranks": [{"rank": 0, "step": 99}]}
    assert client.post("/api/v1/jobs/train/heartbeat", json=old).json() == {
        "generation": 2,
        "accepted": False,
        "state": "running",
    }
    assert client.get("/api/v1/jobs/train").json()["rank_states"][0]["step"] == 7


def test_a_generation_of_which_no_rank_runs_does_not_take_the_jobs_place(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB)
    client.post("/api/v1/jobs/train/attempts", json=attempt(2))
    # A half of the job that looks in vain for enough nodes.
    forming = {"attempt": 5, "generation": 4, "node": "n1", "ranks": [{"rank": 1, "state": "exited"}]}
    assert not client.post("/api/v1/jobs/train/heartbeat", json=forming).json()["accepted"]
    assert client.post("/api/v1/jobs/train/attempts", json=attempt(3, number=1)).status_code == 201
    # The leader is cut off from here: what runs with it is all that is heard.
    running = forming | {"ranks": [{"rank": 1, "state": "running"}]}
    assert client.post("/api/v1/jobs/train/heartbeat", json=running).json() == {
        "generation": 4,
        "accepted": True,
        "state": "running",
    }


def test_what_a_node_without_ranks_waits_for_is_on_the_job_until_it_carries_some(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB)
    waiting = {"attempt": 1, "generation": 0, "node": "n0", "ranks": [], "waits_for": "the agent that leads the job"}
    for _ in range(2):
        told = client.post("/api/v1/jobs/train/heartbeat", json=waiting).json()
        assert told == {"generation": 0, "accepted": True, "state": "registered"}
    (wait,) = client.get("/api/v1/jobs/train").json()["waits"]
    assert (wait["node"], wait["for"]) == ("n0", "the agent that leads the job")
    assert "for the agent that leads the job" in client.get("/jobs/train").text
    client.post("/api/v1/jobs/train/heartbeat", json=waiting | {"node": "n1"})
    client.post("/api/v1/jobs/train/attempts", json=attempt(0))
    assert [wait["node"] for wait in client.get("/api/v1/jobs/train").json()["waits"]] == ["n1"]
    end = {
        "attempt": 0,
        "generation": 0,
        "node": "n0",
        "ranks": [{"rank": 0, "state": "exited"}],
        "ended": True,
        "exit_status": 0,
    }
    client.post("/api/v1/jobs/train/heartbeat", json=end)
    assert client.get("/api/v1/jobs/train").json()["waits"] == []


def test_the_report_of_the_end_ends_the_job(client: TestClient) -> None:
    client.post("/api/v1/jobs", json=JOB)
    client.post("/api/v1/jobs/train/attempts", json=attempt(1))
    end = {
        "attempt": 0,
        "generation": 1,
        "node": "n0",
        "ranks": [{"rank": 0, "state": "exited"}],
        "ended": True,
        "exit_status": 0,
    }
    assert client.post("/api/v1/jobs/train/heartbeat", json=end).json()["state"] == "ended"
    assert client.get("/api/v1/jobs/train").json()["exit_status"] == 0


def test_pages_of_jobs_are_counted_and_cut_by_the_server(client: TestClient) -> None:
    for number in range(5):
        client.post("/api/v1/jobs", json={"job": f"j{number}"})
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/api/v1/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        assert page["total"] == 5
        seen += [item["job"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == [f"j{number}" for number in range(5)]
