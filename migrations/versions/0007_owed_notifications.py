"""when a notification is due, and which state of which fault it tells"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("notifications", sa.Column("fingerprint", sa.String(length=64), nullable=True))
    op.add_column("notifications", sa.Column("state", sa.String(length=32), nullable=True))
    op.add_column("notifications", sa.Column("due_at", sa.Float(), nullable=True))
    op.create_index("ix_notifications_due_at", "notifications", ["due_at"])
    op.create_index("ix_notifications_fingerprint", "notifications", ["fingerprint", "id"])


def downgrade() -> None:
    op.drop_index("ix_notifications_fingerprint", "notifications")
    op.drop_index("ix_notifications_due_at", "notifications")
    for name in ("due_at", "state", "fingerprint"):
        op.drop_column("notifications", name)
