"""large steps: a job may count samples or tokens, beyond what four bytes hold"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite holds eight bytes in every integer.
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("rank_states", "step", type_=sa.BigInteger(), existing_type=sa.Integer())


def downgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("rank_states", "step", type_=sa.Integer(), existing_type=sa.BigInteger())
