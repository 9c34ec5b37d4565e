"""memories"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memories",
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("feedback", sa.String(length=16), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("as_of", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_memories_incident_id_incidents")),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_memories")),
    )


def downgrade() -> None:
    op.drop_table("memories")
