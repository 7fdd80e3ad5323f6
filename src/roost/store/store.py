"""All that is asked of the database: load what is kept, commit changes, page through events."""

import asyncio
import secrets
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import (
    Double,
    RowMapping,
    Select,
    Table,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuUuid
from roost.domain.model import Model, ModelName
from roost.domain.node import Facts, NodeName
from roost.domain.profile import Profile
from roost.domain.replica import PlacementId, ReplicaState
from roost.errors import Conflict, Deposed, Led, Lost, Unavailable, Undecided
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.store import schema
from roost.store.database import Database
from roost.store.records import (
    CatalogText,
    Change,
    Drop,
    Event,
    FleetRecord,
    KeyRecord,
    ModelRecord,
    NodeRecord,
    Put,
    Stored,
    TokenRecord,
)

KEEP_EVENTS: Final = 20_000
KEEP_CATALOGS: Final = 100
PATIENCE_S: Final = 10.0
"""Less than what agents and `ctl` wait for an answer."""
_LEADER: Final = "leader"
_RENEWAL_S: Final = 5.0
_T = TypeVar("_T")

_decode_facts: Final = msgspec.json.Decoder(Facts).decode
_decode_profile: Final = msgspec.json.Decoder(Profile).decode
_decode_model: Final = msgspec.json.Decoder(Model).decode
_decode_ints: Final = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_texts: Final = msgspec.json.Decoder(tuple[str, ...]).decode


class _clock(GenericFunction[float]):  # noqa: N801 - an SQL function
    """The database's own clock, in seconds since the epoch: servers' clocks differ."""

    type = Double()
    inherit_cache = True
    name = "roost_clock"


@compiles(_clock, "sqlite")
def _sqlite_clock(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(_clock, "postgresql")
def _postgresql_clock(*_: Any, **__: Any) -> str:
    return "extract(epoch FROM clock_timestamp())::float8"


class Store:
    """What a server keeps. Every change is fenced by the epoch of the leader that makes it.

    A connection that breaks is made again, and what it broke is tried again until the database
    has been away for `patience_s`; from then on until it is back everything is tried once.
    """

    def __init__(self, database: Database, *, patience_s: float = PATIENCE_S) -> None:
        self._database = database
        self._patience_s = patience_s
        # One at a time also while it is tried again: the leader's row knows only the last commit.
        self._committing = asyncio.Lock()
        self._away_since: float | None = None

    async def lead(self, holder: str, *, for_s: float | None = None) -> int:
        """Become the leader; the epoch is higher than that of anybody who led before.

        `for_s`: until then nobody else can, unless this holder lets go. `None`: anybody can.
        Raises `Led` where another holder has led for less than it said.
        """
        for last in (False, True):
            try:
                led, held = await self._lead(holder, for_s)
            except Conflict:  # another server made the row at the same moment
                if last:
                    raise
            else:
                break
        if not led:
            raise Led(
                f"{held['holder']} leads the fleet of {self._database.name} in epoch "
                f"{held['epoch']}, and for {held['s']:.0f} s more unless it renews that",
                holder=held["holder"],
                hint="stop that server, or wait until it has ended",
            )
        return int(held["epoch"])

    async def _lead(self, holder: str, for_s: float | None) -> tuple[bool, Mapping[str, Any]]:
        """Whether this holder leads now, and who does."""
        lease = schema.lease
        until = None if for_s is None else _clock() + for_s
        free = or_(
            lease.c.holder == holder, lease.c.expires_at.is_(None), lease.c.expires_at <= _clock()
        )
        async with self._noticed(self._database.write()) as connection:
            moved = await connection.execute(
                update(lease)
                .where(lease.c.name == _LEADER, free)
                .values(holder=holder, epoch=lease.c.epoch + 1, expires_at=until)
            )
            left = (lease.c.expires_at - _clock()).label("s")
            asked = select(lease.c.holder, lease.c.epoch, left).where(lease.c.name == _LEADER)
            held = (await connection.execute(asked)).mappings().first()
            if held is not None:
                return moved.rowcount > 0, dict(held)
            first = {"holder": holder, "epoch": 1, "expires_at": until}
            await connection.execute(insert(lease).values(name=_LEADER, **first))
            return True, first

    async def renew(self, epoch: int, *, for_s: float) -> None:
        """Lead for longer; with 0 let go. Raises `Deposed` where another server leads."""
        async with self._noticed(self._database.write(limit_s=_RENEWAL_S)) as connection:
            await _fence(connection, epoch)
            await connection.execute(
                update(schema.lease)
                .where(schema.lease.c.name == _LEADER)
                .values(expires_at=_clock() + for_s)
            )

    async def load(self) -> Stored | None:
        """Everything that is kept; `None`: the database is empty."""
        return await self._read(_load)

    async def settled(self, undecided: Undecided, *, epoch: int) -> tuple[bool, Stored | None]:
        """Whether that commit was made, which no later one has followed, and all that is kept."""
        async with (
            self._committing,
            self._noticed(self._database.write()) as connection,
        ):
            made = await _fence(connection, epoch, undecided.commit)
            return made, await _load(connection)

    async def commit(
        self,
        changes: Sequence[Change],
        *,
        epoch: int,
        events: Iterable[Event] = (),
        catalog: CatalogText | None = None,
    ) -> None:
        """Make all the changes, or none: also none when another leader has taken over.

        Raises `Undecided` where the connection broke in COMMIT and stays away: see `settled`.
        """
        mark = secrets.token_hex(16)
        kept = tuple(events)
        unknown = False
        async with self._committing:
            started = time.monotonic()
            for pause in _pauses():
                try:
                    async with self._noticed(self._database.write()) as connection:
                        if not await _fence(connection, epoch, mark if unknown else None):
                            await _mark(connection, mark)
                            await _write(connection, changes, kept, catalog)
                    break
                except Deposed:
                    raise
                except Unavailable as error:
                    unknown = unknown or (isinstance(error, Lost) and error.committing)
                    late = self._is_late(started, pause)
                    if late and unknown:
                        raise Undecided(
                            f"whether the change was made is not known yet: {error.message}",
                            commit=mark,
                            hint="look before you try again",
                        ) from None
                    if late or not (unknown or isinstance(error, Lost)):
                        raise
                await asyncio.sleep(pause)

    async def events(self, *, limit: int, before: int | None = None) -> tuple[Event, ...]:
        """The newest first."""
        table = schema.events
        query = select(table).order_by(table.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.id < before)
        rows = await self._read(lambda connection: _rows(connection, query))
        return tuple(
            Event(
                id=row["id"],
                at=row["at"],
                who=row["who"],
                what=row["what"],
                object=row["object"],
                why=row["why"],
            )
            for row in rows
        )

    async def catalogs(self, *, limit: int = KEEP_CATALOGS) -> tuple[CatalogText, ...]:
        """What was applied, the newest first."""
        table = schema.catalogs
        query = select(table).order_by(table.c.id.desc()).limit(limit)
        rows = await self._read(lambda connection: _rows(connection, query))
        return tuple(
            CatalogText(at=row["at"], who=row["who"], filename=row["filename"], text=row["text"])
            for row in rows
        )

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        started = time.monotonic()
        for pause in _pauses():
            try:
                async with self._noticed(self._database.read()) as connection:
                    return await work(connection)
            except Lost:
                if self._is_late(started, pause):
                    raise
            await asyncio.sleep(pause)
        raise AssertionError

    @asynccontextmanager
    async def _noticed(
        self, transaction: AbstractAsyncContextManager[AsyncConnection]
    ) -> AsyncIterator[AsyncConnection]:
        """The same, noting whether the database is away."""
        try:
            async with transaction as connection:
                yield connection
        except Lost:
            if self._away_since is None:
                self._away_since = time.monotonic()
            raise
        self._away_since = None

    def _is_late(self, started: float, pause: float) -> bool:
        """Whether another try after that pause would be beyond patience."""
        since = started if self._away_since is None else min(started, self._away_since)
        return time.monotonic() - since + pause > self._patience_s


async def _load(connection: AsyncConnection) -> Stored | None:
    fleet = (await connection.execute(select(schema.fleet))).mappings().first()
    if fleet is None:
        return None
    shards: dict[str, list[Shard]] = {}
    ordered = select(schema.shards).order_by(schema.shards.c.placement, schema.shards.c.rank)
    for row in (await connection.execute(ordered)).mappings():
        shards.setdefault(row["placement"], []).append(_shard(row))
    return Stored(
        fleet=FleetRecord(
            fleet=fleet["fleet"],
            incarnation=fleet["incarnation"],
            adopting=bool(fleet["adopting"]),
        ),
        nodes={n.name: n for n in await _all(connection, schema.nodes, _node)},
        models={m.model.name: m for m in await _all(connection, schema.models, _model)},
        tokens={t.id: t for t in await _all(connection, schema.tokens, _token)},
        keys={k.name: k for k in await _all(connection, schema.keys, _key)},
        replicas={
            r.placement: r
            for r in await _all(
                connection,
                schema.replicas,
                lambda row: _replica(row, shards.get(row["placement"], [])),
            )
        },
    )


def _pauses() -> Iterator[float]:
    """Seconds, for ever: at once, then doubling to 2."""
    yield 0.0
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, 2.0)


async def _fence(connection: AsyncConnection, epoch: int, sought: str | None = None) -> bool:
    """Whether the commit `sought` was made; raises `Deposed` where another epoch leads.

    The row stays locked until the transaction ends: nobody can take over in the middle of it, and
    a commit of the same leader that is still under way is waited for.
    """
    lease = schema.lease
    held = (
        (
            await connection.execute(
                select(lease.c.epoch, lease.c.holder, lease.c.last_commit)
                .where(lease.c.name == _LEADER)
                .with_for_update()
            )
        )
        .mappings()
        .first()
    )
    if held is None or held["epoch"] != epoch:
        now = "" if held is None else f" in epoch {held['epoch']}: {held['holder']}"
        raise Deposed(
            f"another server leads this fleet{now}; this one led in epoch {epoch}, and changes "
            "nothing any more"
        )
    return sought is not None and held["last_commit"] == sought


async def _mark(connection: AsyncConnection, commit: str) -> None:
    lease = schema.lease
    await connection.execute(
        update(lease).where(lease.c.name == _LEADER).values(last_commit=commit)
    )


async def _rows(connection: AsyncConnection, query: Select[Any]) -> Sequence[RowMapping]:
    rows: Sequence[RowMapping] = (await connection.execute(query)).mappings().all()
    return rows


async def _keep_newest(connection: AsyncConnection, table: Table, count: int) -> None:
    newest = select(func.max(table.c.id)).scalar_subquery()
    await connection.execute(delete(table).where(table.c.id <= newest - count))


async def _all(connection: AsyncConnection, table: Table, read: Callable[[Any], _T]) -> list[_T]:
    result = await connection.execute(select(table))
    return [read(row) for row in result.mappings()]


async def _write(
    connection: AsyncConnection,
    changes: Sequence[Change],
    events: Sequence[Event],
    catalog: CatalogText | None,
) -> None:
    for change in changes:
        await _make(connection, change)
    if catalog is not None:
        await connection.execute(
            insert(schema.catalogs).values(
                at=catalog.at,
                who=catalog.who,
                filename=catalog.filename,
                text=catalog.text,
            )
        )
        await _keep_newest(connection, schema.catalogs, KEEP_CATALOGS)
    rows = [
        {
            "at": event.at,
            "who": event.who,
            "what": event.what,
            "object": event.object,
            "why": event.why,
        }
        for event in events
    ]
    if rows:
        await connection.execute(insert(schema.events), rows)
        await _keep_newest(connection, schema.events, KEEP_EVENTS)


async def _make(connection: AsyncConnection, change: Change) -> None:
    record = change.record
    if isinstance(record, Replica):
        await _make_replica(connection, record, keep=isinstance(change, Put))
        return
    row = _row(record)
    table, key = row.table, row.key
    same = and_(*(table.c[name] == value for name, value in key.items()))
    if isinstance(change, Drop):
        await connection.execute(delete(table).where(same))
        return
    moved = await connection.execute(update(table).where(same).values(**row.values))
    if moved.rowcount == 0:
        await connection.execute(insert(table).values(**key, **row.values))


async def _make_replica(connection: AsyncConnection, replica: Replica, *, keep: bool) -> None:
    of = schema.replicas.c.placement == replica.placement
    for table in (schema.held_gpus, schema.shards):
        await connection.execute(delete(table).where(table.c.placement == replica.placement))
    if not keep:
        await connection.execute(delete(schema.replicas).where(of))
        return
    values = {
        "name": replica.name,
        "model": replica.model,
        "index": replica.index,
        "profile": _text(replica.profile),
        "created_at": replica.created_at,
        "since": replica.since,
        "wish": replica.wish.value,
        "because": replica.because,
        "state": replica.state.value,
        "cause": replica.cause,
        "ever_ready": replica.ever_ready,
        "generation": replica.generation,
        "hold": replica.hold,
        "failures": replica.failures,
        "restart_at": replica.restart_at,
        "ready_since": replica.ready_since,
        "at_once": replica.at_once,
    }
    moved = await connection.execute(update(schema.replicas).where(of).values(**values))
    if moved.rowcount == 0:
        await connection.execute(
            insert(schema.replicas).values(placement=replica.placement, **values)
        )
    await connection.execute(
        insert(schema.shards), [_shard_row(replica.placement, shard) for shard in replica.shards]
    )
    held = [
        {"node": shard.node, "gpu": gpu, "placement": replica.placement}
        for shard in replica.shards
        for gpu in held_gpus(shard)
    ]
    if held:
        await connection.execute(insert(schema.held_gpus), held)


def held_gpus(shard: Shard) -> tuple[str, ...]:
    """The cards a shard holds, by uuid, or by `#INDEX` where none is known."""
    if len(shard.gpu_uuids) == len(shard.gpus):
        return tuple(shard.gpu_uuids)
    return tuple(f"#{index}" for index in shard.gpus)


@dataclass(frozen=True, slots=True)
class _Row:
    table: Table
    key: dict[str, Any]
    values: dict[str, Any]


def _row(record: FleetRecord | NodeRecord | ModelRecord | TokenRecord | KeyRecord) -> _Row:
    match record:
        case FleetRecord():
            return _Row(
                schema.fleet,
                {"one": 1},
                {
                    "fleet": record.fleet,
                    "incarnation": record.incarnation,
                    "adopting": record.adopting,
                },
            )
        case NodeRecord():
            first, last = record.port_range or (None, None)
            return _Row(
                schema.nodes,
                {"name": record.name},
                {
                    "identity": record.identity,
                    "credential_sha256": record.credential_sha256,
                    "joined_at": record.joined_at,
                    "cordoned": record.cordoned,
                    "cordon_reason": record.cordon_reason,
                    "draining": record.draining,
                    "facts": None if record.facts is None else _text(record.facts),
                    "address": record.address,
                    "first_port": first,
                    "last_port": last,
                    "agent_version": record.agent_version,
                    "boot_id": record.boot_id,
                    "hostname": record.hostname,
                },
            )
        case ModelRecord():
            return _Row(
                schema.models,
                {"name": record.model.name},
                {"position": record.position, "spec": _text(record.model)},
            )
        case TokenRecord():
            return _Row(
                schema.tokens,
                {"id": record.id},
                {
                    "sha256": record.sha256,
                    "expires_at": record.expires_at,
                    "uses_left": record.uses_left,
                    "created_at": record.created_at,
                },
            )
        case KeyRecord():
            return _Row(
                schema.keys,
                {"name": record.name},
                {
                    "sha256": record.sha256,
                    "ending": record.ending,
                    "created_at": record.created_at,
                },
            )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _node(row: Any) -> NodeRecord:
    first, last = row["first_port"], row["last_port"]
    return NodeRecord(
        name=NodeName(row["name"]),
        identity=row["identity"],
        credential_sha256=row["credential_sha256"],
        joined_at=row["joined_at"],
        cordoned=bool(row["cordoned"]),
        cordon_reason=row["cordon_reason"],
        draining=bool(row["draining"]),
        facts=None if row["facts"] is None else _decode_facts(row["facts"]),
        address=row["address"],
        port_range=None if first is None or last is None else (first, last),
        agent_version=row["agent_version"],
        boot_id=row["boot_id"],
        hostname=row["hostname"],
    )


def _model(row: Any) -> ModelRecord:
    return ModelRecord(model=_decode_model(row["spec"]), position=row["position"])


def _token(row: Any) -> TokenRecord:
    return TokenRecord(
        id=row["id"],
        sha256=row["sha256"],
        expires_at=row["expires_at"],
        uses_left=row["uses_left"],
        created_at=row["created_at"],
    )


def _key(row: Any) -> KeyRecord:
    return KeyRecord(
        name=row["name"],
        sha256=row["sha256"],
        ending=row["ending"],
        created_at=row["created_at"],
    )


def _replica(row: Any, shards: list[Shard]) -> Replica:
    return Replica(
        placement=PlacementId(row["placement"]),
        name=ReplicaName(row["name"]),
        model=ModelName(row["model"]),
        index=row["index"],
        profile=_decode_profile(row["profile"]),
        created_at=row["created_at"],
        since=row["since"],
        shards=tuple(shards),
        wish=Wish(row["wish"]),
        because=row["because"],
        state=ReplicaState(row["state"]),
        cause=row["cause"],
        ever_ready=bool(row["ever_ready"]),
        generation=row["generation"],
        hold=bool(row["hold"]),
        failures=row["failures"],
        restart_at=row["restart_at"],
        ready_since=row["ready_since"],
        at_once=bool(row["at_once"]),
    )


def _shard_row(placement: PlacementId, shard: Shard) -> dict[str, Any]:
    return {
        "placement": placement,
        "rank": shard.rank,
        "node": shard.node,
        "host": shard.host,
        "port": shard.port,
        "key": shard.key,
        "gpus": _text(shard.gpus),
        "gpu_uuids": _text(shard.gpu_uuids),
        "hcas": _text(shard.hcas),
        "memory_bytes": shard.memory_bytes,
        "disk_bytes": shard.disk_bytes,
        "state": shard.state.value,
        "pid": shard.pid,
        "restarts": shard.restarts,
        "seen": shard.seen,
        "generation": shard.generation,
        "group_port": shard.group_port,
    }


def _shard(row: Any) -> Shard:
    return Shard(
        rank=row["rank"],
        node=NodeName(row["node"]),
        host=row["host"],
        port=row["port"],
        key=row["key"],
        gpus=_decode_ints(row["gpus"]),
        gpu_uuids=tuple(GpuUuid(uuid) for uuid in _decode_texts(row["gpu_uuids"])),
        hcas=_decode_texts(row["hcas"]),
        memory_bytes=row["memory_bytes"],
        disk_bytes=row["disk_bytes"],
        state=ReplicaState(row["state"]),
        pid=row["pid"],
        restarts=row["restarts"],
        seen=bool(row["seen"]),
        generation=row["generation"],
        group_port=row["group_port"],
    )
