"""listed incidents: pages of the list and their counts are read from one index, whatever it is filtered by"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["merged_into", "last_seen", "open_key", "state", "severity", "job", "node", "reason", "silenced_until"]
    op.create_index("ix_incidents_listed", "incidents", columns)


def downgrade() -> None:
    op.drop_index("ix_incidents_listed", table_name="incidents")
