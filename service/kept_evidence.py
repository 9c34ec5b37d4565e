"""The kept lines of one incident, as those read them who look for its cause: memory, the model, the rules that are learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from service.diagnoses import StreamContent, read_attempt, told_errors
from service.store import Store
from service.store.incidents import Failure

__all__ = ["KeptLine", "kept_lines", "kept_streams", "newest_failure"]

# Of each stream the newest this many lines are read: what a run says last says most about its end.
NEWEST = 2_000


@dataclass(frozen=True, slots=True)
class KeptLine:
    """One line exactly as stored: its stream's path and its own number in it."""

    path: str
    number: int
    text: str


def newest_failure(store: Store, incident_id: int) -> Failure | None:
    with store.reading() as session:
        return session.scalar(select(Failure).where(Failure.incident_id == incident_id).order_by(Failure.id.desc()).limit(1))


def kept_streams(store: Store, incident_id: int) -> list[StreamContent]:
    """All that was kept of the newest failure, and what its ranks passed on of their errors; the streams of failed ranks last."""
    failure = newest_failure(store, incident_id)
    if failure is None:
        return []
    contents, reports = read_attempt(store, failure.job, failure.attempt, failure.generation)
    failed = {entry.get("rank") for entry in failure.report.get("failed") or ()}
    return sorted((*contents, *told_errors(contents, reports)), key=lambda item: item.rank in failed)


def kept_lines(store: Store, incident_id: int) -> list[KeptLine]:
    """The newest lines of each of `kept_streams`; empty where none was kept."""
    return [line for content in kept_streams(store, incident_id) for line in newest_lines(content)]


def newest_lines(content: StreamContent) -> Sequence[KeptLine]:
    texts = content.content.decode("utf-8", "replace").split("\n")[:-1]
    lines = [KeptLine(content.path, number, text) for number, text in zip(content.numbers, texts, strict=False)]
    return lines[-NEWEST:]
