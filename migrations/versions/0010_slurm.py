"""slurm"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "slurm_jobs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("cluster", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("ending", sa.String(length=32), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("node_words", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("reported", sa.Boolean(), nullable=False),
        sa.Column("ended_generation", sa.Integer(), nullable=True),
        sa.Column("requeued", sa.Boolean(), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", "cluster", name=op.f("pk_slurm_jobs")),
    )
    op.create_index(op.f("ix_slurm_jobs_job"), "slurm_jobs", ["job"])
    op.create_index(op.f("ix_slurm_jobs_over"), "slurm_jobs", ["over"])
    op.create_table(
        "slurm_words",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("slurm_id", sa.String(length=32), nullable=True),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("vouched", sa.Boolean(), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slurm_words")),
    )
    for column in ("slurm_id", "received_at", "done"):
        op.create_index(op.f(f"ix_slurm_words_{column}"), "slurm_words", [column])
    op.create_table(
        "scheduler_calls",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("recovery_id", BIG_ID, nullable=False),
        sa.Column("action_id", BIG_ID, nullable=False),
        sa.Column("incident_id", BIG_ID, nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("goal", sa.JSON(), nullable=False),
        sa.Column("did", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("claimed_until", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["action_id"], ["actions.id"], name=op.f("fk_scheduler_calls_action_id_actions")),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_scheduler_calls_incident_id_incidents")),
        sa.ForeignKeyConstraint(["recovery_id"], ["recoveries.id"], name=op.f("fk_scheduler_calls_recovery_id_recoveries")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scheduler_calls")),
        sa.UniqueConstraint("key", name=op.f("uq_scheduler_calls_key")),
    )
    for column in ("action_id", "incident_id", "recovery_id", "state"):
        op.create_index(op.f(f"ix_scheduler_calls_{column}"), "scheduler_calls", [column])


def downgrade() -> None:
    for table in ("scheduler_calls", "slurm_words", "slurm_jobs"):
        op.drop_table(table)
