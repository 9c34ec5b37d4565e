"""Work that is done again and again."""

import asyncio
import logging

import pytest
from sqlalchemy.exc import OperationalError

from service import eventstream
from service.periodic import repeat
from service.store import Store
from service.store.events import publish_event


def test_a_database_that_is_away_is_said_and_asked_again_until_the_end(caplog):
    rounds: list[int] = []

    async def story() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()

        def work() -> None:
            rounds.append(len(rounds))
            if len(rounds) == 1:
                raise OperationalError("select 1", {}, Exception("disk full"))
            loop.call_soon_threadsafe(stopping.set)

        await repeat(work, 0.0, stopping, "leases cannot be read")

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert len(rounds) >= 2
    assert "leases cannot be read: " in caplog.text and "disk full" in caplog.text


def test_who_waits_for_events_hears_at_once_of_those_of_this_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstream, "POLL_ALONE_SECONDS", 3600.0)

    async def story() -> bool:
        watch = eventstream.EventWatch(store)
        running = asyncio.create_task(watch.run())
        waiting = asyncio.create_task(watch.wait_after(0, 60.0))
        await asyncio.sleep(0)

        def publish() -> None:
            with store.writing() as session:
                publish_event(session, "node.joined", "n1")

        await asyncio.to_thread(publish)
        heard = await waiting
        watch.close()
        await running
        return heard

    assert asyncio.run(story())
