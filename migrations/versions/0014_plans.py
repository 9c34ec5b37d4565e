"""plans"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "step_times",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=64), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_step_times_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_step_times")),
        sa.UniqueConstraint("job", "nodes", "ranks", "layout", name=op.f("uq_step_times_job")),
    )
    op.create_index(op.f("ix_step_times_job"), "step_times", ["job"])
    op.create_table(
        "plans",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("stamp", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("incident_id", BIG_ID, nullable=True),
        sa.Column("decided_by", sa.String(length=255), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("decided_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_plans_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    for column in ("stamp", "state", "incident_id"):
        op.create_index(op.f(f"ix_plans_{column}"), "plans", [column])


def downgrade() -> None:
    op.drop_table("plans")
    op.drop_table("step_times")
