"""The fleet as Pitstop takes it: where nodes stand, which are out and how they come back, planned work, calls to site tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Integer, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = ["DriverCall", "MaintenanceRow", "NodePlace", "NodeReturn", "active_return", "active_returns"]


class NodePlace(Base):
    """What people say about a node: the rack (or switch) that it shares a fate with, and whether it is a spare."""

    __tablename__ = "node_places"

    node: Mapped[str] = mapped_column(String(255), primary_key=True)
    rack: Mapped[str | None] = mapped_column(String(255))
    is_spare: Mapped[bool] = mapped_column(Boolean, default=False)


class NodeReturn(Base):
    """One isolation of one node, from taking it out to its return. `state` is recovery/node_return's own."""

    __tablename__ = "node_returns"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(320), unique=True)
    node: Mapped[str] = mapped_column(String(255), index=True)
    recovery_id: Mapped[int | None] = mapped_column(ForeignKey("recoveries.id"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    generation: Mapped[int] = mapped_column(Integer)
    reset_gpu: Mapped[bool] = mapped_column(Boolean, default=False)
    phase: Mapped[str] = mapped_column(String(32))
    state: Mapped[dict[str, Any]] = mapped_column(JSON)
    over: Mapped[bool] = mapped_column(Boolean, default=False, index=True)
    taken_at: Mapped[float] = mapped_column(Float, index=True)
    returned_at: Mapped[float | None] = mapped_column(Float)
    cancelled_by: Mapped[str | None] = mapped_column(String(255))


class MaintenanceRow(Base):
    """Planned work on nodes or racks (both empty: everywhere)."""

    __tablename__ = "maintenance"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    start_at: Mapped[float] = mapped_column(Float)
    end_at: Mapped[float] = mapped_column(Float, index=True)
    why: Mapped[str] = mapped_column(Text)
    nodes: Mapped[list[str]] = mapped_column(JSON)
    racks: Mapped[list[str]] = mapped_column(JSON)
    created_by: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[float] = mapped_column(Float)


class DriverCall(Base):
    """One call to a site's own command or webhook. `state`: pending, done, failed; `claimed_until`: when another may try."""

    __tablename__ = "driver_calls"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(320), unique=True)
    return_id: Mapped[int] = mapped_column(ForeignKey("node_returns.id"), index=True)
    node: Mapped[str] = mapped_column(String(255))
    operation: Mapped[str] = mapped_column(String(32))
    call: Mapped[dict[str, Any]] = mapped_column(JSON)
    text: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16), default="pending", index=True)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    detail: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float] = mapped_column(Float)
    claimed_until: Mapped[float] = mapped_column(Float, default=0.0)
    ended_at: Mapped[float | None] = mapped_column(Float)


def active_return(session: Session, node: str) -> NodeReturn | None:
    """The isolation of this node that is not over."""
    return session.scalar(
        select(NodeReturn).where(NodeReturn.node == node, NodeReturn.over.is_(False)).order_by(NodeReturn.id.desc())
    )


def active_returns(session: Session) -> Sequence[NodeReturn]:
    """Every isolation that is not over, oldest first."""
    return session.scalars(select(NodeReturn).where(NodeReturn.over.is_(False)).order_by(NodeReturn.id)).all()
