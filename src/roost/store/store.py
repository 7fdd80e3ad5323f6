"""All that is asked of the database: load what is kept, commit changes, page through events."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Table, and_, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuUuid
from roost.domain.model import Model, ModelName
from roost.domain.node import Facts, NodeName
from roost.domain.profile import Profile
from roost.domain.replica import PlacementId, ReplicaState
from roost.errors import Unavailable
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
_LEADER: Final = "leader"
_T = TypeVar("_T")

_decode_facts: Final = msgspec.json.Decoder(Facts).decode
_decode_profile: Final = msgspec.json.Decoder(Profile).decode
_decode_model: Final = msgspec.json.Decoder(Model).decode
_decode_ints: Final = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_texts: Final = msgspec.json.Decoder(tuple[str, ...]).decode


class Store:
    """What a server keeps. Every change is fenced by the epoch of the leader that makes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lead(self, holder: str) -> int:
        """Become the leader; the epoch is higher than that of anybody who led before."""
        async with self._database.write() as connection:
            lease = schema.lease
            moved = await connection.execute(
                update(lease)
                .where(lease.c.name == _LEADER)
                .values(holder=holder, epoch=lease.c.epoch + 1, expires_at=None)
            )
            if moved.rowcount == 0:
                await connection.execute(
                    insert(lease).values(name=_LEADER, holder=holder, epoch=1, expires_at=None)
                )
            epoch = await connection.scalar(select(lease.c.epoch).where(lease.c.name == _LEADER))
            return int(epoch or 0)

    async def load(self) -> Stored | None:
        """Everything that is kept; `None`: the database is empty."""
        async with self._database.read() as connection:
            fleet = (await connection.execute(select(schema.fleet))).mappings().first()
            if fleet is None:
                return None
            shards: dict[str, list[Shard]] = {}
            ordered = select(schema.shards).order_by(
                schema.shards.c.placement, schema.shards.c.rank
            )
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

    async def commit(
        self,
        changes: Sequence[Change],
        *,
        epoch: int,
        events: Iterable[Event] = (),
        catalog: CatalogText | None = None,
    ) -> None:
        """Make all the changes, or none: also none when another leader has taken over."""
        async with self._database.write() as connection:
            await _fence(connection, epoch)
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

    async def events(self, *, limit: int, before: int | None = None) -> tuple[Event, ...]:
        """The newest first."""
        table = schema.events
        query = select(table).order_by(table.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.id < before)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
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
        async with self._database.read() as connection:
            rows = (
                (await connection.execute(select(table).order_by(table.c.id.desc()).limit(limit)))
                .mappings()
                .all()
            )
        return tuple(
            CatalogText(at=row["at"], who=row["who"], filename=row["filename"], text=row["text"])
            for row in rows
        )


async def _fence(connection: AsyncConnection, epoch: int) -> None:
    # The row stays locked until the transaction ends: nobody can take over in the middle of it.
    lease = schema.lease
    held = await connection.execute(
        update(lease)
        .where(and_(lease.c.name == _LEADER, lease.c.epoch == epoch))
        .values(epoch=lease.c.epoch)
    )
    if held.rowcount != 1:
        raise Unavailable(
            f"another server leads this fleet since epoch {epoch}; nothing was changed"
        )


async def _keep_newest(connection: AsyncConnection, table: Table, count: int) -> None:
    newest = select(func.max(table.c.id)).scalar_subquery()
    await connection.execute(delete(table).where(table.c.id <= newest - count))


async def _all(connection: AsyncConnection, table: Table, read: Callable[[Any], _T]) -> list[_T]:
    result = await connection.execute(select(table))
    return [read(row) for row in result.mappings()]


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
