"""What several requests bring at once is written together, and each hears of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import OperationalError

from service.store.together import MOST_ITEMS, Together


class Slow:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go_on = threading.Event()

    def write(self, items: Sequence[int]) -> None:
        assert self.go_on.wait(30)
        self.calls.append(list(items))
        if 13 in items:
            raise ValueError("13 cannot be stored")
        if 99 in items:
            raise OperationalError("INSERT", {}, OSError("database is locked"))


async def bring(slow: Slow, items: Sequence[int]) -> list[BaseException | None]:
    """The first alone, the others while it is written."""
    together = Together(slow.write)
    brought = [asyncio.create_task(together.put(item)) for item in items]
    await asyncio.sleep(0)
    slow.go_on.set()
    return await asyncio.gather(*brought, return_exceptions=True)


def test_what_comes_while_another_writes_is_written_together() -> None:
    slow = Slow()
    assert asyncio.run(bring(slow, [0, 1, 2, 3])) == [None] * 4
    assert slow.calls in ([[0], [1, 2, 3]], [[0, 1, 2, 3]])


def test_only_what_cannot_be_stored_fails() -> None:
    slow = Slow()
    answers = asyncio.run(bring(slow, [4, 5, 13, 6, 7]))
    assert [str(answer) if answer else None for answer in answers] == [None, None, "13 cannot be stored", None, None]


def test_a_database_that_is_away_is_asked_once_for_all() -> None:
    slow = Slow()
    answers = asyncio.run(bring(slow, [99, 1, 2, 3, 4, 5, 6, 7, 8]))
    assert [type(answer) for answer in answers] == [OperationalError] * 9 and len(slow.calls) == 1


def test_the_first_of_very_many_do_not_wait_for_the_last_and_a_caller_that_left_holds_nobody_up() -> None:
    slow = Slow()

    async def leave() -> list[BaseException | None]:
        together = Together(slow.write)
        brought = [asyncio.create_task(together.put(item)) for item in range(1000, 1000 + 2 * MOST_ITEMS)]
        await asyncio.sleep(0)
        brought[3].cancel()
        slow.go_on.set()
        return await asyncio.gather(*brought, return_exceptions=True)

    answers = asyncio.run(leave())
    assert max(map(len, slow.calls)) == MOST_ITEMS and sum(map(len, slow.calls)) == 2 * MOST_ITEMS
    assert [index for index, answer in enumerate(answers) if answer is not None] == [3]
    with pytest.raises(asyncio.CancelledError):
        raise answers[3] or AssertionError
