"""Secrets that are in use are read again together; one that is revoked is taken for a few seconds at most."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event

from service.access import Principal, Role, create_token, holders, revoke_token
from service.callers import VALID_SECONDS, Callers
from service.store import Store


@pytest.fixture
def secrets(store: Store) -> list[str]:
    with store.writing() as session:
        return [
            create_token(session, f"agent-{number}", Role.NODE, binding=(f"n{number}",), now=1.0, by="ann")
            for number in range(20)
        ]


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the monotonic clock says: the last of them."""
    told = [100.0]
    monkeypatch.setattr("service.callers.time.monotonic", lambda: told[-1])
    return told


def test_those_who_asked_are_read_in_one_statement_and_the_others_forgotten(
    store: Store, secrets: list[str], moments: list[float]
) -> None:
    callers = Callers(store, lambda: 2.0)
    for secret in secrets:
        assert asyncio.run(callers.holder(secret)) is not None
    moments.append(100.0 + VALID_SECONDS / 2)
    statements: list[str] = []
    listening = store.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    event.listen(*listening)
    callers.refresh()
    assert sum("FROM tokens" in statement for statement in statements) == 1
    moments.append(moments[-1] + VALID_SECONDS)
    assert [callers.known(secret) is not None for secret in secrets] == [True] * 20
    assert callers.known(secrets[0]) is not None
    callers._known[secrets[1]].asked = False
    callers.refresh()
    assert callers.known(secrets[0]) is not None and callers.known(secrets[1]) is None
    event.remove(*listening)


def test_a_token_that_is_revoked_is_not_known_after_the_next_reading_nor_when_there_is_none(
    store: Store, secrets: list[str], moments: list[float]
) -> None:
    callers = Callers(store, lambda: 2.0)
    asyncio.run(callers.holder(secrets[0])), asyncio.run(callers.holder(secrets[1]))
    with store.writing() as session:
        revoke_token(session, "agent-0", now=3.0, by="ann")
        revoke_token(session, "agent-1", now=3.0, by="ann")
    assert callers.known(secrets[0]) is not None
    moments.append(100.0 + VALID_SECONDS + 0.1)
    assert callers.known(secrets[1]) is None and asyncio.run(callers.holder(secrets[1])) is None
    callers.refresh()
    assert callers.known(secrets[0]) is None


def test_whoever_comes_while_the_others_are_read_again_stays(
    store: Store, secrets: list[str], moments: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = Callers(store, lambda: 2.0)
    asyncio.run(callers.holder(secrets[0]))

    def read_slowly(*arguments: Any) -> dict[str, Principal]:
        found = holders(*arguments)
        moments.append(moments[-1] + 0.1)
        asyncio.run(callers.holder(secrets[1]))
        return found

    monkeypatch.setattr("service.callers.holders", read_slowly)
    callers.refresh()
    assert callers.known(secrets[0]) is not None and callers.known(secrets[1]) is not None
