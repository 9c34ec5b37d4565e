"""report by merged: the report's index begins with what its query compares, as that of the lists does, which was taken instead"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

INDEX = "ix_incidents_report"


def upgrade() -> None:
    op.drop_index(INDEX, table_name="incidents")
    op.create_index(INDEX, "incidents", ["merged_into", "first_seen", "reason", "severity", "occurrences"])


def downgrade() -> None:
    op.drop_index(INDEX, table_name="incidents")
    op.create_index(INDEX, "incidents", ["first_seen", "merged_into", "reason", "severity", "occurrences"])
