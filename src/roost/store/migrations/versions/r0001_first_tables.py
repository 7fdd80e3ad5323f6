"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "catalogs",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "fleet",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fleet", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("adopting", sa.Boolean(), nullable=False),
        sa.CheckConstraint("one = 1", name="one_fleet"),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "keys",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("ending", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("credential_sha256", sa.Text(), nullable=False),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("cordon_reason", sa.Text(), nullable=True),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("first_port", sa.Integer(), nullable=True),
        sa.Column("last_port", sa.Integer(), nullable=True),
        sa.Column("agent_version", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("credential_sha256"),
        sa.UniqueConstraint("identity"),
    )
    op.create_table(
        "replicas",
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("wish", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("ever_ready", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("placement"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("uses_left >= 0", name="counted_uses"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "held_gpus",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["placement"], ["replicas.placement"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node", "gpu"),
    )
    op.create_table(
        "shards",
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("gpu_uuids", sa.Text(), nullable=False),
        sa.Column("hcas", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("seen", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["node"],
            ["nodes.name"],
        ),
        sa.ForeignKeyConstraint(["placement"], ["replicas.placement"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("placement", "rank"),
        sa.UniqueConstraint("host", "port", name="one_engine_a_port"),
    )
    op.create_index("shards_by_node", "shards", ["node"], unique=False)
