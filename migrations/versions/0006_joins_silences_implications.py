"""joins silences implications"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "join_decisions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("one", sa.String(length=128), nullable=False),
        sa.Column("other", sa.String(length=128), nullable=False),
        sa.Column("verdict", sa.String(length=8), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_decisions")),
        sa.UniqueConstraint("one", "other", name=op.f("uq_join_decisions_one")),
    )
    with op.batch_alter_table("join_decisions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_join_decisions_other"), ["other"], unique=False)

    op.create_table(
        "silences",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("starts_at", sa.Float(), nullable=False),
        sa.Column("ends_at", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silences")),
    )
    with op.batch_alter_table("silences", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_silences_ends_at"), ["ends_at"], unique=False)

    op.create_table(
        "implications",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_implications_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_implications")),
        sa.UniqueConstraint("incident_id", "kind", "name", name=op.f("uq_implications_incident_id")),
    )
    with op.batch_alter_table("implications", schema=None) as batch_op:
        batch_op.create_index("ix_implications_place", ["kind", "name", "at"], unique=False)

    op.add_column("incidents", sa.Column("silenced_until", sa.Float(), nullable=True))
    op.add_column("incidents", sa.Column("silence_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True))


def downgrade() -> None:
    op.drop_column("incidents", "silence_id")
    op.drop_column("incidents", "silenced_until")
    with op.batch_alter_table("implications", schema=None) as batch_op:
        batch_op.drop_index("ix_implications_place")

    op.drop_table("implications")
    with op.batch_alter_table("silences", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_silences_ends_at"))

    op.drop_table("silences")
    with op.batch_alter_table("join_decisions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_join_decisions_other"))

    op.drop_table("join_decisions")
