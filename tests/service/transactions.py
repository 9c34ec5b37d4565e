"""What a store commits while something is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from service.store import Store


@contextmanager
def commits(store: Store) -> Iterator[list[object]]:
    """Every transaction that is committed meanwhile."""
    seen: list[object] = []
    note = seen.append
    event.listen(store.engine, "commit", note)
    yield seen
    event.remove(store.engine, "commit", note)
