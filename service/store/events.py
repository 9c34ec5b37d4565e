"""What happened, in commit order: the table that live pages, waiting launchers and other replicas page through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Float, String, event, func, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import PUBLISHED, Base, BigId, hold_lock

__all__ = ["Event", "events_after", "last_event_id", "publish_event"]


class Event(Base):
    """`kind` is dotted (`incident.opened`, `job.heartbeat`); `subject` is the id that it is about."""

    __tablename__ = "events"
    # Ids never come back, even when retention has emptied the table: clients resume by them.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    time: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(255))
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


PENDING = "pending_events"


def publish_event(session: Session, kind: str, subject: str, data: dict[str, Any] | None = None, at: float | None = None) -> None:
    """Announce something with the transaction of `session`: seen by readers if and only if it commits."""
    session.info.setdefault(PENDING, []).append(
        {"time": time.time() if at is None else at, "kind": kind, "subject": subject, "data": data or {}}
    )


@event.listens_for(Session, "before_commit")
def write_pending(session: Session) -> None:
    """Events get their ids last, under a lock held to the end of the transaction, so that ids rise in commit order."""
    pending = session.info.pop(PENDING, None)
    if pending:
        session.flush()
        hold_lock(session, "events")
        session.connection().execute(insert(Event), pending)
        session.info[PUBLISHED] = True


@event.listens_for(Session, "after_rollback")
def forget_pending(session: Session) -> None:
    session.info.pop(PENDING, None)
    session.info.pop(PUBLISHED, None)


def events_after(session: Session, after: int, limit: int = 500) -> Sequence[Event]:
    """The next events in commit order."""
    return session.scalars(select(Event).where(Event.id > after).order_by(Event.id).limit(limit)).all()


def last_event_id(session: Session) -> int:
    """The id of the newest event, 0 where there is none."""
    return session.scalar(select(func.coalesce(func.max(Event.id), 0))) or 0
