"""first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("act", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_target"), ["target"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_time"), ["time"], unique=False)

    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=320), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batches_stored_at"), ["stored_at"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("open_key", sa.String(length=64), nullable=True),
        sa.Column("severity", sa.String(length=8), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("category", sa.String(length=32), nullable=False),
        sa.Column("component", sa.String(length=64), nullable=False),
        sa.Column("remedy", sa.String(length=32), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=True),
        sa.Column("job", sa.String(length=255), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("gpu", sa.String(length=255), nullable=True),
        sa.Column("rank", sa.String(length=255), nullable=True),
        sa.Column("link", sa.String(length=255), nullable=True),
        sa.Column("occurrences", sa.Integer(), nullable=False),
        sa.Column("first_seen", sa.Float(), nullable=False),
        sa.Column("last_seen", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float(), nullable=True),
        sa.Column("diagnosis", sa.JSON(), nullable=True),
        sa.Column("merged_into", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["merged_into"], ["incidents.id"], name=op.f("fk_incidents_merged_into_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        sa.UniqueConstraint("open_key", name=op.f("uq_incidents_open_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_incidents_fingerprint"), ["fingerprint"], unique=False)
        batch_op.create_index(batch_op.f("ix_incidents_job"), ["job"], unique=False)
        batch_op.create_index(batch_op.f("ix_incidents_node"), ["node"], unique=False)
        batch_op.create_index("ix_incidents_state_last_seen", ["state", "last_seen"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("contact", sa.String(length=255), nullable=True),
        sa.Column("project", sa.String(length=255), nullable=True),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("min_ranks", sa.Integer(), nullable=True),
        sa.Column("layout", sa.JSON(), nullable=True),
        sa.Column("checkpoint_policy", sa.JSON(), nullable=True),
        sa.Column("max_restarts", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("modes", sa.JSON(), nullable=False),
        sa.Column("local", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_project"), ["project"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)

    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=True),
        sa.Column("agent_id", sa.String(length=64), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("clock_offset_seconds", sa.Float(), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "origins",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("protocol", sa.String(length=16), nullable=False),
        sa.Column("first_seen", sa.Float(), nullable=False),
        sa.Column("last_seen", sa.Float(), nullable=False),
        sa.Column("last_line_time", sa.Float(), nullable=True),
        sa.Column("lag_seconds", sa.Float(), nullable=True),
        sa.Column("lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dropped", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("errors", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_origins")),
    )
    op.create_table(
        "streams",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("origin", sa.String(length=255), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_streams")),
        sa.UniqueConstraint("key", name=op.f("uq_streams_key")),
    )
    with op.batch_alter_table("streams", schema=None) as batch_op:
        batch_op.create_index("ix_streams_job_rank", ["job", "rank"], unique=False)
        batch_op.create_index(batch_op.f("ix_streams_node"), ["node"], unique=False)

    op.create_table(
        "switches",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("set_by", sa.String(length=255), nullable=False),
        sa.Column("set_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_switches")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("binding", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("annotations", sa.JSON(), nullable=False),
        sa.Column("starts_at", sa.Float(), nullable=False),
        sa.Column("ends_at", sa.Float(), nullable=True),
        sa.Column("generator_url", sa.Text(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("first_received", sa.Float(), nullable=False),
        sa.Column("last_received", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_alerts_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alerts_fingerprint"), ["fingerprint"], unique=False)
        batch_op.create_index(batch_op.f("ix_alerts_incident_id"), ["incident_id"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("directive_id", sa.String(length=64), nullable=True),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("store", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_attempts_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job", "number", name=op.f("uq_attempts_job")),
    )
    op.create_table(
        "chunks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("stream_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("raw_bytes", sa.Integer(), nullable=False),
        sa.Column("first_time", sa.Float(), nullable=False),
        sa.Column("last_time", sa.Float(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("fk_chunks_stream_id_streams")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint("stream_id", "sequence", name=op.f("uq_chunks_stream_id")),
    )
    with op.batch_alter_table("chunks", schema=None) as batch_op:
        batch_op.create_index("ix_chunks_last_time", ["last_time"], unique=False)

    op.create_table(
        "dropped_lines",
        sa.Column("stream_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("fk_dropped_lines_stream_id_streams")),
        sa.PrimaryKeyConstraint("stream_id", "rule", name=op.f("pk_dropped_lines")),
    )
    op.create_table(
        "failures",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("reported_at", sa.Float(), nullable=False),
        sa.Column("vouched", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_failures_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failures")),
        sa.UniqueConstraint("job", "idempotency_key", name=op.f("uq_failures_job")),
    )
    with op.batch_alter_table("failures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_failures_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index("ix_failures_job_generation", ["job", "attempt", "generation"], unique=False)

    op.create_table(
        "node_aliases",
        sa.Column("alias", sa.String(length=255), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("learnt_from", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name=op.f("fk_node_aliases_node_nodes")),
        sa.PrimaryKeyConstraint("alias", "node", name=op.f("pk_node_aliases")),
    )
    op.create_table(
        "rank_states",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("step_seconds", sa.Float(), nullable=True),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("age_seconds", sa.Float(), nullable=True),
        sa.Column("heard_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_rank_states_job_jobs")),
        sa.PrimaryKeyConstraint("job", "rank", name=op.f("pk_rank_states")),
    )
    op.create_table(
        "timeline",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_timeline_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_timeline")),
    )
    with op.batch_alter_table("timeline", schema=None) as batch_op:
        batch_op.create_index("ix_timeline_incident", ["incident_id", "id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("timeline", schema=None) as batch_op:
        batch_op.drop_index("ix_timeline_incident")

    op.drop_table("timeline")
    op.drop_table("rank_states")
    op.drop_table("node_aliases")
    with op.batch_alter_table("failures", schema=None) as batch_op:
        batch_op.drop_index("ix_failures_job_generation")
        batch_op.drop_index(batch_op.f("ix_failures_incident_id"))

    op.drop_table("failures")
    op.drop_table("dropped_lines")
    with op.batch_alter_table("chunks", schema=None) as batch_op:
        batch_op.drop_index("ix_chunks_last_time")

    op.drop_table("chunks")
    op.drop_table("attempts")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_alerts_incident_id"))
        batch_op.drop_index(batch_op.f("ix_alerts_fingerprint"))

    op.drop_table("alerts")
    op.drop_table("tokens")
    op.drop_table("switches")
    with op.batch_alter_table("streams", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_streams_node"))
        batch_op.drop_index("ix_streams_job_rank")

    op.drop_table("streams")
    op.drop_table("origins")
    op.drop_table("nodes")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_state"))
        batch_op.drop_index(batch_op.f("ix_jobs_project"))

    op.drop_table("jobs")
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.drop_index("ix_incidents_state_last_seen")
        batch_op.drop_index(batch_op.f("ix_incidents_node"))
        batch_op.drop_index(batch_op.f("ix_incidents_job"))
        batch_op.drop_index(batch_op.f("ix_incidents_fingerprint"))

    op.drop_table("incidents")
    op.drop_table("events")
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_batches_stored_at"))

    op.drop_table("batches")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_time"))
        batch_op.drop_index(batch_op.f("ix_audit_target"))

    op.drop_table("audit")
