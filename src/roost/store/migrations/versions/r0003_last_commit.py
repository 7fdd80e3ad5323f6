"""Which commit the leader made last: how one of unknown outcome is found out."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("lease", sa.Column("last_commit", sa.Text()))
