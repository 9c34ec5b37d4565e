"""Work that is done again and again."""

import asyncio
import logging

from sqlalchemy.exc import OperationalError

from service.periodic import repeat


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
