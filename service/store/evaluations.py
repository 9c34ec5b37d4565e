"""Evaluation runs as their coordinators told of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Float, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database import Base

__all__ = ["EvaluationRun"]


class EvaluationRun(Base):
    """One run of `pitstop trials run`: its newest progress or report. `wanted_back`: nodes whose slots were asked back."""

    __tablename__ = "evaluation_runs"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    wanted_back: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float, index=True)
