"""What is remembered of settled incidents."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database import Base, BigId

__all__ = ["Memory"]


class Memory(Base):
    """One settled incident: its cause, the normal form of its evidence, and that text's vector (float32, little-endian).

    `as_of`: the newest timeline entry that was taken into account.
    """

    __tablename__ = "memories"

    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), primary_key=True, autoincrement=False)
    reason: Mapped[str] = mapped_column(String(64))
    text: Mapped[str] = mapped_column(Text)
    vector: Mapped[bytes] = mapped_column(LargeBinary)
    feedback: Mapped[str] = mapped_column(String(16))
    seen_at: Mapped[float] = mapped_column(Float)
    as_of: Mapped[int] = mapped_column(BigId)
