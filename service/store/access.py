"""Tokens, the audit trail of operators' acts, and switches that survive restarts."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import JSON, Float, String, Text
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = ["AuditEntry", "Switch", "Token", "audit"]


class Token(Base):
    """A bearer token: only the SHA-256 of its secret is kept. `binding` is the project, node or origins it is limited to."""

    __tablename__ = "tokens"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    binding: Mapped[list[str]] = mapped_column(JSON, default=list)
    created_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float | None] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    last_used_at: Mapped[float | None] = mapped_column(Float)


class AuditEntry(Base):
    """One act: who or what decided, on what, and on which evidence."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    time: Mapped[float] = mapped_column(Float, index=True)
    actor: Mapped[str] = mapped_column(String(255))
    act: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(255), index=True)
    reason: Mapped[str] = mapped_column(Text)
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)


class Switch(Base):
    """A named setting that people change while the service runs, e.g. `freeze`."""

    __tablename__ = "switches"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[dict[str, Any]] = mapped_column(JSON)
    set_by: Mapped[str] = mapped_column(String(255))
    set_at: Mapped[float] = mapped_column(Float)


def audit(
    session: Session,
    actor: str,
    act: str,
    target: str,
    reason: str,
    evidence: dict[str, Any] | None = None,
    at: float | None = None,
) -> AuditEntry:
    """Write an act down in the transaction that carries it out."""
    entry = AuditEntry(
        time=time.time() if at is None else at, actor=actor, act=act, target=target, reason=reason, evidence=evidence or {}
    )
    session.add(entry)
    return entry
