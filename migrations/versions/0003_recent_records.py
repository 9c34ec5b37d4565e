"""recent records"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "recent_records",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.Column("digests", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recent_records")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("recent_records", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_recent_records_stored_at"), ["stored_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("recent_records", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_recent_records_stored_at"))

    op.drop_table("recent_records")
