"""candidates"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "candidates",
        sa.Column("id", number, autoincrement=True, nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("cited", sa.JSON(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("scope", sa.JSON(), nullable=False),
        sa.Column("judged", sa.JSON(), nullable=True),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("code", "version", name=op.f("uq_candidates_code")),
    )
    op.create_index(op.f("ix_candidates_state"), "candidates", ["state"])
    op.create_table(
        "candidate_hits",
        sa.Column("id", number, autoincrement=True, nullable=False),
        sa.Column("candidate_id", number, nullable=False),
        sa.Column("incident_id", number, nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("agrees", sa.Boolean(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_candidate_hits_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_candidate_hits_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidate_hits")),
        sa.UniqueConstraint("candidate_id", "incident_id", name=op.f("uq_candidate_hits_candidate_id")),
    )
    op.create_index(op.f("ix_candidate_hits_incident_id"), "candidate_hits", ["incident_id"])


def downgrade() -> None:
    op.drop_table("candidate_hits")
    op.drop_table("candidates")
