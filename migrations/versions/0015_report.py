"""report: the counts of the report page are read from one index"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["first_seen", "merged_into", "reason", "severity", "occurrences"]
    op.create_index("ix_incidents_report", "incidents", columns)


def downgrade() -> None:
    op.drop_index("ix_incidents_report", table_name="incidents")
