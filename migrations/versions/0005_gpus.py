"""gpus"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpus",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("uuid", sa.String(length=128), nullable=True),
        sa.Column("serial", sa.String(length=128), nullable=True),
        sa.Column("pci", sa.String(length=64), nullable=True),
        sa.Column("index", sa.Integer(), nullable=True),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name=op.f("fk_gpus_node_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpus")),
    )
    with op.batch_alter_table("gpus", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_gpus_node"), ["node"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("gpus", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_gpus_node"))

    op.drop_table("gpus")
