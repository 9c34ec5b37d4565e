"""the fleet: places, isolations and returns, maintenance, calls to site tools"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "maintenance",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("start_at", sa.Float(), nullable=False),
        sa.Column("end_at", sa.Float(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("racks", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
    )
    with op.batch_alter_table("maintenance", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_maintenance_end_at"), ["end_at"], unique=False)

    op.create_table(
        "node_places",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("rack", sa.String(length=255), nullable=True),
        sa.Column("is_spare", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_node_places")),
    )
    op.create_table(
        "node_returns",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=320), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("recovery_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reset_gpu", sa.Boolean(), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("taken_at", sa.Float(), nullable=False),
        sa.Column("returned_at", sa.Float(), nullable=True),
        sa.Column("cancelled_by", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_node_returns_incident_id_incidents")),
        sa.ForeignKeyConstraint(["recovery_id"], ["recoveries.id"], name=op.f("fk_node_returns_recovery_id_recoveries")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_returns")),
        sa.UniqueConstraint("key", name=op.f("uq_node_returns_key")),
    )
    with op.batch_alter_table("node_returns", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_node_returns_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_node_returns_node"), ["node"], unique=False)
        batch_op.create_index(batch_op.f("ix_node_returns_over"), ["over"], unique=False)
        batch_op.create_index(batch_op.f("ix_node_returns_taken_at"), ["taken_at"], unique=False)

    op.create_table(
        "driver_calls",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=320), nullable=False),
        sa.Column("return_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("operation", sa.String(length=32), nullable=False),
        sa.Column("call", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("claimed_until", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["return_id"], ["node_returns.id"], name=op.f("fk_driver_calls_return_id_node_returns")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_driver_calls")),
        sa.UniqueConstraint("key", name=op.f("uq_driver_calls_key")),
    )
    with op.batch_alter_table("driver_calls", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_driver_calls_return_id"), ["return_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_driver_calls_state"), ["state"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("driver_calls", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_driver_calls_state"))
        batch_op.drop_index(batch_op.f("ix_driver_calls_return_id"))

    op.drop_table("driver_calls")
    with op.batch_alter_table("node_returns", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_node_returns_taken_at"))
        batch_op.drop_index(batch_op.f("ix_node_returns_over"))
        batch_op.drop_index(batch_op.f("ix_node_returns_node"))
        batch_op.drop_index(batch_op.f("ix_node_returns_incident_id"))

    op.drop_table("node_returns")
    op.drop_table("node_places")
    with op.batch_alter_table("maintenance", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_maintenance_end_at"))

    op.drop_table("maintenance")
