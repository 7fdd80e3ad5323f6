"""The tables, in SQL that SQLite and PostgreSQL both speak."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata: Final = MetaData()

# SQLite numbers rows by itself only in a column that is exactly INTEGER.
_RowId = BigInteger().with_variant(Integer(), "sqlite")

fleet: Final = Table(
    "fleet",
    metadata,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("fleet", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("adopting", Boolean, nullable=False),
    CheckConstraint("one = 1", name="one_fleet"),
)

lease: Final = Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double),
    Column("epoch", BigInteger, nullable=False),
    # The commit that was made last: one whose answer was lost is looked for here.
    Column("last_commit", Text),
)

nodes: Final = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("identity", Text, nullable=False, unique=True),
    Column("credential_sha256", Text, nullable=False, unique=True),
    Column("joined_at", Double, nullable=False),
    Column("cordoned", Boolean, nullable=False),
    Column("cordon_reason", Text),
    Column("draining", Boolean, nullable=False),
    Column("facts", Text),
    Column("address", Text),
    Column("first_port", Integer),
    Column("last_port", Integer),
    Column("agent_version", Text, nullable=False),
    Column("boot_id", Text),
    Column("hostname", Text),
)

models: Final = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("spec", Text, nullable=False),
)

catalogs: Final = Table(
    "catalogs",
    metadata,
    Column("id", _RowId, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("text", Text, nullable=False),
)

tokens: Final = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("expires_at", Double, nullable=False),
    Column("uses_left", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    CheckConstraint("uses_left >= 0", name="counted_uses"),
)

keys: Final = Table(
    "keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("ending", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

replicas: Final = Table(
    "replicas",
    metadata,
    Column("placement", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("profile", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("since", Double, nullable=False),
    Column("wish", Text, nullable=False),
    Column("because", Text),
    Column("state", Text, nullable=False),
    Column("cause", Text),
    Column("ever_ready", Boolean, nullable=False),
    # Of replicas on several nodes; what one on a single node has by default.
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("hold", Boolean, nullable=False, server_default=false()),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("restart_at", Double),
    Column("ready_since", Double),
    Column("at_once", Boolean, nullable=False, server_default=false()),
)

shards: Final = Table(
    "shards",
    metadata,
    Column(
        "placement",
        Text,
        ForeignKey("replicas.placement", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("node", Text, ForeignKey("nodes.name"), nullable=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("gpus", Text, nullable=False),
    Column("gpu_uuids", Text, nullable=False),
    Column("hcas", Text, nullable=False),
    Column("memory_bytes", BigInteger),
    Column("disk_bytes", BigInteger),
    Column("state", Text, nullable=False),
    Column("pid", Integer),
    Column("restarts", Integer, nullable=False),
    Column("seen", Boolean, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("group_port", Integer),
    UniqueConstraint("host", "port", name="one_engine_a_port"),
    Index("shards_by_node", "node"),
)

# A card by its uuid, or by `#INDEX` where its node reports none: two placements cannot share one.
held_gpus: Final = Table(
    "held_gpus",
    metadata,
    Column("node", Text, primary_key=True),
    Column("gpu", Text, primary_key=True),
    Column(
        "placement",
        Text,
        ForeignKey("replicas.placement", ondelete="CASCADE"),
        nullable=False,
    ),
)

events: Final = Table(
    "events",
    metadata,
    Column("id", _RowId, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("why", Text, nullable=False),
    sqlite_autoincrement=True,
)
