"""recoveries, their actions, commands to agents, notifications"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=True),
        sa.Column("audience", sa.String(length=16), nullable=False),
        sa.Column("recipient", sa.String(length=255), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("channels", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_notifications_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint("key", name=op.f("uq_notifications_key")),
    )
    with op.batch_alter_table("notifications", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_notifications_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_notifications_job"), ["job"], unique=False)

    op.create_table(
        "recoveries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("directive", sa.JSON(), nullable=True),
        sa.Column("relaunches", sa.Integer(), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("claimed_by", sa.String(length=255), nullable=True),
        sa.Column("claimed_until", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_recoveries_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recoveries")),
        sa.UniqueConstraint("job", "attempt", "generation", name=op.f("uq_recoveries_job")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("recoveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_recoveries_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index("ix_recoveries_job_fingerprint", ["job", "fingerprint"], unique=False)
        batch_op.create_index(batch_op.f("ix_recoveries_over"), ["over"], unique=False)

    op.create_table(
        "actions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("recovery_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("decided_by", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("decision", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_actions_incident_id_incidents")),
        sa.ForeignKeyConstraint(["recovery_id"], ["recoveries.id"], name=op.f("fk_actions_recovery_id_recoveries")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_actions")),
        sa.UniqueConstraint("key", name=op.f("uq_actions_key")),
    )
    with op.batch_alter_table("actions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_actions_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_actions_job"), ["job"], unique=False)
        batch_op.create_index(batch_op.f("ix_actions_recovery_id"), ["recovery_id"], unique=False)

    op.create_table(
        "commands",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=320), nullable=False),
        sa.Column("action_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("recovery_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("answered_generation", sa.Integer(), nullable=True),
        sa.Column("answered_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["action_id"], ["actions.id"], name=op.f("fk_commands_action_id_actions")),
        sa.ForeignKeyConstraint(["recovery_id"], ["recoveries.id"], name=op.f("fk_commands_recovery_id_recoveries")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
        sa.UniqueConstraint("key", name=op.f("uq_commands_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("commands", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_commands_action_id"), ["action_id"], unique=False)
        batch_op.create_index("ix_commands_node_id", ["node", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_commands_recovery_id"), ["recovery_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("commands", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_commands_recovery_id"))
        batch_op.drop_index("ix_commands_node_id")
        batch_op.drop_index(batch_op.f("ix_commands_action_id"))

    op.drop_table("commands")
    with op.batch_alter_table("actions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_actions_recovery_id"))
        batch_op.drop_index(batch_op.f("ix_actions_job"))
        batch_op.drop_index(batch_op.f("ix_actions_incident_id"))

    op.drop_table("actions")
    with op.batch_alter_table("recoveries", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_recoveries_over"))
        batch_op.drop_index("ix_recoveries_job_fingerprint")
        batch_op.drop_index(batch_op.f("ix_recoveries_incident_id"))

    op.drop_table("recoveries")
    with op.batch_alter_table("notifications", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_notifications_job"))
        batch_op.drop_index(batch_op.f("ix_notifications_incident_id"))

    op.drop_table("notifications")
