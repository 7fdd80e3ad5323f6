"""How a machine becomes a node, and whose a credential is."""

import re
from dataclasses import replace
from typing import Final

from roost.domain.node import NodeName
from roost.errors import (
    Conflict,
    Copied,
    NotFound,
    Refused,
    Unavailable,
    UnknownCredential,
    Unusable,
)
from roost.formats.agent_wire import PROTOCOL, Join, Joined
from roost.reconcile.nodes import NodeStatus
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.secrets import TOKEN_PREFIX, new_id, new_secret, same, sha256
from roost.store.records import Change, Drop, Event, NodeRecord, Put, TokenRecord

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LONGEST_TTL_S: Final = 10 * 365 * 86_400


class Joining:
    """Join tokens and node credentials; both are stored as digests only."""

    def __init__(self, ledger: Ledger, inventory: Inventory, clock: Clock) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock

    async def create_token(self, *, ttl_s: float, uses: int, who: str) -> tuple[TokenRecord, str]:
        """A token that lets `uses` machines join within `ttl_s` seconds; its text is shown once."""
        if not 0 < ttl_s <= _LONGEST_TTL_S:
            raise Unusable(f"ttl_s is {ttl_s:g}: give more than 0 and at most {_LONGEST_TTL_S}")
        if not 1 <= uses <= 1_000_000:
            raise Unusable(f"uses is {uses}: give 1 to 1000000")
        text, now = new_secret(TOKEN_PREFIX), self._clock.time()
        token = TokenRecord(
            id=new_id("t-"),
            sha256=sha256(text),
            expires_at=now + ttl_s,
            uses_left=uses,
            created_at=now,
        )
        async with self._ledger.turn():
            expired: list[Change] = [
                Drop(record=old)
                for old in self._ledger.stored.tokens.values()
                if old.expires_at <= now or old.uses_left < 1
            ]
            event = Event(
                at=now, who=who, what="token.created", object=token.id, why=f"{uses} uses"
            )
            await self._ledger.commit([*expired, Put(record=token)], events=[event])
        return token, text

    async def delete_token(self, token: str, *, who: str) -> None:
        """Nobody joins with it any more."""
        async with self._ledger.turn():
            record = self._ledger.stored.tokens.get(token)
            if record is None:
                raise NotFound(f"there is no token {token}", hint="roost ctl token list")
            event = Event(at=self._clock.time(), who=who, what="token.deleted", object=token)
            await self._ledger.commit([Drop(record=record)], events=[event])

    async def join(self, asked: Join) -> Joined:
        """Admit a machine; it gets a credential of its own, good only for its node."""
        now = self._clock.time()
        if not _NAME.fullmatch(asked.name):
            raise Unusable(
                f"{asked.name[:80]!r} cannot be a node's name: letters, digits, . _ -, "
                "63 at most, and a letter or digit first",
                hint="give another: roost agent --name NAME",
            )
        if not 8 <= len(asked.identity) <= 128:
            raise Unusable("the identity of a machine is 8 to 128 characters")
        if asked.protocol < PROTOCOL:
            raise Unusable(f"the agent speaks protocol {asked.protocol}, this server {PROTOCOL}")
        async with self._ledger.turn():
            token = self._token(asked.token, now)
            record = self._record(asked, now)
            credential = new_secret()
            record = replace(record, credential_sha256=sha256(credential))
            used = replace(token, uses_left=token.uses_left - 1)
            known = record.name in self._ledger.nodes
            event = Event(
                at=now,
                who=f"node {record.name}",
                what="node.rejoined" if known else "node.joined",
                object=record.name,
                why=f"token {token.id}",
            )
            await self._ledger.commit([Put(record=used), Put(record=record)], events=[event])
        return Joined(fleet=self._ledger.fleet.fleet, node=record.name, credential=credential)

    def _token(self, text: str, now: float) -> TokenRecord:
        digest = sha256(text)
        token = next(
            (t for t in self._ledger.stored.tokens.values() if same(t.sha256, digest)), None
        )
        hint = "make a new one: roost ctl token create"
        if token is None:
            raise Refused("there is no such join token", hint=hint)
        if token.expires_at <= now:
            ago = now - token.expires_at
            raise Refused(f"join token {token.id} expired {ago:.0f} s ago", hint=hint)
        if token.uses_left < 1:
            raise Refused(f"join token {token.id} has been used up", hint=hint)
        return token

    def _record(self, asked: Join, now: float) -> NodeRecord:
        nodes = self._ledger.nodes
        mine = next((n for n in nodes.values() if n.identity == asked.identity), None)
        if mine is not None:
            self._refuse_second_machine(asked, mine)
            return mine  # a node keeps its name and its cordon, whatever it would like to be called
        holder = nodes.get(NodeName(asked.name))
        if holder is not None:
            raise Conflict(
                f"the name {asked.name} is held by another machine "
                f"(identity {holder.identity[:8]}…, {self._silence(holder.name)})",
                hint=f"give another with --name, or: roost ctl nodes delete {asked.name}",
            )
        return NodeRecord(
            name=NodeName(asked.name),
            identity=asked.identity,
            credential_sha256="",
            joined_at=now,
            agent_version=asked.agent_version[:64],
            boot_id=asked.boot_id,
        )

    def _refuse_second_machine(self, asked: Join, mine: NodeRecord) -> None:
        if mine.boot_id is None or asked.boot_id is None or mine.boot_id == asked.boot_id:
            return
        silence = self._inventory.silence_s(mine.name)
        if silence is None and not self._inventory.settled:
            # Whoever is the node has not had the time to say so.
            raise Unavailable(
                f"this identity is node {mine.name}'s, and the server has just started: "
                "it waits for that node to report"
            )
        alive = self._inventory.status(mine.name) is NodeStatus.READY
        if silence is not None and alive and silence < 2 * self._inventory.interval_s:
            raise Copied(
                f"this identity is node {mine.name}'s, which reported {silence:.0f} s ago",
                hint="a copied disk? remove the agent's directory here, so that it makes its own",
            )

    def _silence(self, name: NodeName) -> str:
        silence = self._inventory.silence_s(name)
        return "not heard yet" if silence is None else f"reported {silence:.0f} s ago"

    def node(self, credential: str) -> NodeName:
        """Whose credential it is."""
        name = self._by_digest().get(sha256(credential))
        if name is None:
            raise UnknownCredential(
                "no node of this fleet has this credential",
                hint="join again with a token: roost ctl token create",
            )
        return name

    def _by_digest(self) -> dict[str, NodeName]:
        nodes = self._ledger.stored.nodes
        if self._cached is None or self._cached[0] is not nodes:
            self._cached = (nodes, {n.credential_sha256: n.name for n in nodes.values()})
        return self._cached[1]

    _cached: tuple[object, dict[str, NodeName]] | None = None
