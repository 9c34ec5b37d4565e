"""Rules that were proposed by people, models and confirmed incidents, with what became of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database import Base, BigId

__all__ = ["CandidateHit", "CandidateRow"]


class CandidateRow(Base):
    """One version of a rule. `code` is shared by its versions; `judged` is what the gate said, with its differences.

    `provenance`: the incident, the model, the person behind it; `scope`: which jobs it is for (empty: all); `history`: each
    change of state with who made it, when and why.
    """

    __tablename__ = "candidates"
    __table_args__ = (UniqueConstraint("code", "version"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    code: Mapped[str] = mapped_column(String(32))
    version: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16), index=True)
    role: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    title: Mapped[str] = mapped_column(Text)
    pattern: Mapped[str] = mapped_column(Text)
    cited: Mapped[list[str]] = mapped_column(JSON)
    origin: Mapped[str] = mapped_column(String(16))
    provenance: Mapped[dict[str, Any]] = mapped_column(JSON)
    scope: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    judged: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    history: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    changed_at: Mapped[float] = mapped_column(Float)


class CandidateHit(Base):
    """That a rule in shadow or in use found a line of an incident. `agrees`: with the settled cause; None: not settled yet."""

    __tablename__ = "candidate_hits"
    __table_args__ = (UniqueConstraint("candidate_id", "incident_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    candidate_id: Mapped[int] = mapped_column(ForeignKey("candidates.id"))
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    line: Mapped[str] = mapped_column(Text)
    agrees: Mapped[bool | None] = mapped_column(Boolean)
    at: Mapped[float] = mapped_column(Float)
