"""What is decided and seen of replicas on several nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for table, name in (
        ("replicas", "generation"),
        ("replicas", "failures"),
        ("shards", "generation"),
    ):
        op.add_column(
            table, sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
        )
    for name in ("hold", "at_once"):
        op.add_column(
            "replicas", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())
        )
    op.add_column("replicas", sa.Column("restart_at", sa.Double()))
    op.add_column("replicas", sa.Column("ready_since", sa.Double()))
    op.add_column("shards", sa.Column("group_port", sa.Integer()))
