"""Tokens, roles and the caller on this machine."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.access import Role, TokenError, authenticate, bootstrap, create_token, revoke_token, rotate_token
from service.app import create_app
from service.ingest.matching import MatcherPool
from service.settings import Settings
from service.store import Store
from service.store.access import AuditEntry, Token

JOB = {"job": "train", "ranks": 2, "project": "llm"}


@pytest.fixture
def header(client: TestClient) -> Callable[..., dict[str, str]]:
    def make(role: Role, *binding: str) -> dict[str, str]:
        service = client.app.state.pitstop  # type: ignore[attr-defined]
        with service.store.writing() as session:
            secret = create_token(session, f"{role}-{'-'.join(binding)}", role, binding=binding, now=service.clock(), by="test")
        return {"Authorization": f"Bearer {secret}"}

    return make


def test_the_first_start_writes_an_admin_token_that_only_its_owner_can_read(client: TestClient, settings: Settings) -> None:
    path = settings.data_dir / "admin.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) >= 43


def test_a_second_start_keeps_the_admin_token(store: Store, tmp_path: Path) -> None:
    assert bootstrap(store, tmp_path, None, 1.0) == tmp_path / "admin.token"
    written = (tmp_path / "admin.token").read_text()
    assert bootstrap(store, tmp_path, None, 2.0) is None
    assert (tmp_path / "admin.token").read_text() == written


def test_a_bootstrap_file_gives_the_first_token_and_a_short_or_missing_one_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(TokenError, match="cannot read"):
        bootstrap(store, tmp_path, file, 1.0)
    file.write_text("short\n")
    with pytest.raises(TokenError, match="shorter than 32"):
        bootstrap(store, tmp_path, file, 1.0)
    file.write_text("x" * 40 + "\n")
    assert bootstrap(store, tmp_path, file, 1.0) is None
    principal = authenticate(store, "x" * 40, 2.0)
    assert principal is not None and principal.role is Role.ADMIN


def test_only_the_digest_of_a_token_is_stored(store: Store) -> None:
    with store.writing() as session:
        secret = create_token(session, "v", Role.VIEWER, now=1.0, by="test")
        token = session.scalars(select(Token)).one()
    assert secret not in (token.digest, token.name)
    assert len(token.digest) == 64


def test_an_expired_a_rotated_and_a_revoked_secret_are_no_longer_valid(store: Store) -> None:
    with store.writing() as session:
        first = create_token(session, "v", Role.VIEWER, now=1.0, expires_at=10.0, by="test")
    assert authenticate(store, first, 9.0) is not None
    assert authenticate(store, first, 10.0) is None
    with store.writing() as session:
        second = rotate_token(session, "v", now=2.0, by="test")
    assert authenticate(store, first, 3.0) is None
    assert authenticate(store, second, 3.0) is not None
    with store.writing() as session:
        revoke_token(session, "v", now=4.0, by="test")
    assert authenticate(store, second, 5.0) is None
    with store.reading() as session:
        acts = session.scalars(select(AuditEntry.act).order_by(AuditEntry.id)).all()
    assert acts == ["token.create", "token.rotate", "token.revoke"]


def test_a_use_is_remembered(store: Store) -> None:
    with store.writing() as session:
        secret = create_token(session, "v", Role.VIEWER, now=1.0, by="test")
    authenticate(store, secret, 5.0)
    with store.reading() as session:
        assert session.scalars(select(Token)).one().last_used_at == 5.0


def test_a_node_token_must_name_its_node(store: Store) -> None:
    with store.writing() as session, pytest.raises(TokenError, match="must be bound"):
        create_token(session, "n", Role.NODE, now=1.0, by="test")


def test_a_viewer_reads_and_changes_nothing(client: TestClient, header: Callable[..., dict[str, str]]) -> None:
    viewer = header(Role.VIEWER)
    assert client.get("/api/v1/jobs", headers=viewer).status_code == 200
    answer = client.post("/api/v1/jobs", json=JOB, headers=viewer)
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_launcher_stays_within_its_project(client: TestClient, header: Callable[..., dict[str, str]]) -> None:
    mine, other = header(Role.LAUNCHER, "llm"), header(Role.LAUNCHER, "vision")
    assert client.post("/api/v1/jobs", json=JOB, headers=mine).status_code == 201
    assert client.post("/api/v1/jobs", json=JOB | {"project": "vision"}, headers=other).status_code == 403
    beat = {"attempt": 0, "generation": 1, "ranks": []}
    assert client.post("/api/v1/jobs/train/heartbeat", json=beat, headers=other).status_code == 403
    assert client.post("/api/v1/jobs/train/heartbeat", json=beat, headers=mine).status_code == 200


def test_a_node_token_renews_its_own_lease_only(client: TestClient, header: Callable[..., dict[str, str]]) -> None:
    node = header(Role.NODE, "n1")
    lease = {"boot_id": "b", "agent_id": "a", "aliases": ["10.0.0.1"], "versions": {}, "clock": 1.0}
    answer = client.post("/api/v1/nodes/n1/lease", json=lease, headers=node)
    assert answer.status_code == 200 and answer.json()["ttl_seconds"] > 0
    assert client.post("/api/v1/nodes/n2/lease", json=lease, headers=node).status_code == 403
    assert client.get("/api/v1/nodes/n1").json()["aliases"] == ["10.0.0.1"]


@pytest.mark.parametrize("value", ["Bearer nonsense", "Basic dXNlcjpwYXNz", "Bearer "])
def test_a_wrong_token_is_refused_even_from_this_machine(client: TestClient, value: str) -> None:
    answer = client.get("/api/v1/jobs", headers={"Authorization": value})
    assert answer.status_code == 401
    assert "WWW-Authenticate" in answer.headers


def test_without_a_token_another_machine_a_proxy_and_a_foreign_host_name_are_refused(
    client: TestClient, settings: Settings, pool: MatcherPool
) -> None:
    assert client.get("/api/v1/jobs").status_code == 200
    assert client.get("/api/v1/jobs", headers={"X-Forwarded-For": "10.0.0.7"}).status_code == 401
    assert client.get("/api/v1/jobs", headers={"Host": "rebound.example:8787"}).status_code == 403
    with TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("10.0.0.7", 50000)) as remote:
        assert remote.get("/api/v1/jobs").status_code == 401
        assert remote.get("/healthz").status_code == 200


def test_a_page_of_another_origin_may_not_act(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", json=JOB, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.post("/api/v1/jobs", json=JOB, headers={"Origin": "http://localhost"}).status_code == 201
