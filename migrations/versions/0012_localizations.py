"""fault localisations, their probes, and commands that no action gave"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# SQLite copies the table; its ids must go on rising.
COPY = {"sqlite_autoincrement": True}


def upgrade() -> None:
    op.create_table(
        "localizations",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("recovery_id", ID, nullable=True),
        sa.Column("incident_id", ID, nullable=True),
        sa.Column("job", sa.String(length=255), nullable=True),
        sa.Column("asked_by", sa.String(length=255), nullable=False),
        sa.Column("pool", sa.JSON(), nullable=False),
        sa.Column("able", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("turn_until", sa.Float(), nullable=False),
        sa.Column("probe_seconds", sa.Float(), nullable=False),
        sa.Column("backend", sa.String(length=16), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recoveries.id"], name=op.f("fk_localizations_recovery_id_recoveries")),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_localizations_incident_id_incidents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_localizations")),
    )
    with op.batch_alter_table("localizations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_localizations_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_localizations_state"), ["state"], unique=False)
    op.create_table(
        "probes",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("localization_id", ID, nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["localization_id"], ["localizations.id"], name=op.f("fk_probes_localization_id_localizations")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probes")),
    )
    with op.batch_alter_table("probes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_probes_localization_id"), ["localization_id"], unique=False)
    with op.batch_alter_table("commands", schema=None, table_kwargs=COPY) as batch_op:
        batch_op.alter_column("action_id", existing_type=ID, nullable=True)
        batch_op.alter_column("recovery_id", existing_type=ID, nullable=True)
        batch_op.alter_column("job", existing_type=sa.String(length=255), nullable=True)
        batch_op.add_column(sa.Column("probe_id", ID, nullable=True))
        batch_op.add_column(sa.Column("localization_id", ID, nullable=True))
        batch_op.add_column(sa.Column("answer", sa.JSON(), nullable=True))
        batch_op.create_foreign_key(batch_op.f("fk_commands_probe_id_probes"), "probes", ["probe_id"], ["id"])
        batch_op.create_foreign_key(
            batch_op.f("fk_commands_localization_id_localizations"), "localizations", ["localization_id"], ["id"]
        )
        batch_op.create_index(batch_op.f("ix_commands_localization_id"), ["localization_id"], unique=False)
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("probes", sa.String(length=16), nullable=True))
        batch_op.add_column(sa.Column("probes_at", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.drop_column("probes_at")
        batch_op.drop_column("probes")
    op.execute("DELETE FROM commands WHERE action_id IS NULL")
    with op.batch_alter_table("commands", schema=None, table_kwargs=COPY) as batch_op:
        batch_op.drop_index(batch_op.f("ix_commands_localization_id"))
        batch_op.drop_constraint(batch_op.f("fk_commands_localization_id_localizations"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_commands_probe_id_probes"), type_="foreignkey")
        batch_op.drop_column("answer")
        batch_op.drop_column("localization_id")
        batch_op.drop_column("probe_id")
        batch_op.alter_column("job", existing_type=sa.String(length=255), nullable=False)
        batch_op.alter_column("recovery_id", existing_type=ID, nullable=False)
        batch_op.alter_column("action_id", existing_type=ID, nullable=False)
    op.drop_table("probes")
    op.drop_table("localizations")
