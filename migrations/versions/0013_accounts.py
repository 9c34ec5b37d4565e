"""accounts: generations, losses, time by job and day, heat; messages that are about no incident"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "generations",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("first_step", BIG, nullable=True),
        sa.Column("first_step_at", sa.Float(), nullable=True),
        sa.Column("last_step", BIG, nullable=True),
        sa.Column("alive_at", sa.Float(), nullable=True),
        sa.Column("step_seconds", sa.Float(), nullable=True),
        sa.Column("behind_step", BIG, nullable=True),
        sa.Column("caught_up_at", sa.Float(), nullable=True),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_generations_job_jobs")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_generations")),
    )
    op.create_table(
        "losses",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incident_id", BIG, nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("stopped_at", sa.Float(), nullable=False),
        sa.Column("ran_seconds", sa.Float(), nullable=False),
        sa.Column("detection_seconds", sa.Float(), nullable=False),
        sa.Column("diagnosis_seconds", sa.Float(), nullable=False),
        sa.Column("decision_seconds", sa.Float(), nullable=False),
        sa.Column("transition_seconds", sa.Float(), nullable=False),
        sa.Column("recomputing_seconds", sa.Float(), nullable=False),
        sa.Column("restart_seconds", sa.Float(), nullable=True),
        sa.Column("recomputed_steps", BIG, nullable=True),
        sa.Column("missing_gpu_seconds", sa.Float(), nullable=False),
        sa.Column("lost_gpu_seconds", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_losses_incident_id_incidents")),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_losses_job_jobs")),
        sa.PrimaryKeyConstraint("job", "generation", name=op.f("pk_losses")),
    )
    op.create_index("ix_losses_incident_id", "losses", ["incident_id"])
    op.create_index("ix_losses_stopped_at", "losses", ["stopped_at"])
    op.create_table(
        "job_days",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("held_gpu_seconds", sa.Float(), nullable=False),
        sa.Column("missing_gpu_seconds", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_job_days_job_jobs")),
        sa.PrimaryKeyConstraint("job", "day", "phase", name=op.f("pk_job_days")),
    )
    op.create_index("ix_job_days_day", "job_days", ["day", "phase"])
    op.create_table(
        "node_heat",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("hour", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("highest_celsius", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name=op.f("fk_node_heat_node_nodes")),
        sa.PrimaryKeyConstraint("node", "hour", name=op.f("pk_node_heat")),
    )
    op.create_index("ix_node_heat_hour", "node_heat", ["hour"])
    op.create_index("ix_incidents_first_seen", "incidents", ["first_seen"])
    op.create_index("ix_recoveries_updated_at", "recoveries", ["updated_at"])
    op.execute(
        "INSERT INTO generations (job, number, attempt, gpus, started_at) "
        "SELECT attempts.job, attempts.generation, MAX(attempts.number), MAX(jobs.ranks), MAX(attempts.started_at) "
        "FROM attempts JOIN jobs ON jobs.name = attempts.job GROUP BY attempts.job, attempts.generation"
    )
    with op.batch_alter_table("notifications") as batch_op:
        batch_op.alter_column("incident_id", existing_type=BIG, nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM notifications WHERE incident_id IS NULL")
    with op.batch_alter_table("notifications") as batch_op:
        batch_op.alter_column("incident_id", existing_type=BIG, nullable=False)
    op.drop_index("ix_recoveries_updated_at", "recoveries")
    op.drop_index("ix_incidents_first_seen", "incidents")
    for name in ("node_heat", "job_days", "losses", "generations"):
        op.drop_table(name)
