"""job waits: what the agents of a job wait for where none of its ranks runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("waits", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("jobs", "waits")
