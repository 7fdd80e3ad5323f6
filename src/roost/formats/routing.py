"""What the server tells gateways: models, where their ready replicas are, and the keys that clients
may use.

`GET /gateway/v1/snapshot?revision=N&wait=S` answers the whole `Snapshot` when it is newer than N,
else 204 after S seconds. A gateway keeps the last one in a 0600 file and routes by it while the
server is away.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One ready replica: where its rank 0 answers."""

    replica: str
    placement: str
    host: str
    port: int
    key: str = field(repr=False)
    """The engine's API key."""
    slots: int | None = None
    """Requests at once; `None`: not known."""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedModel:
    """A model clients may ask for; `routes` is empty while none of its replicas is ready."""

    name: str
    aliases: tuple[str, ...] = ()
    replicas: int = 1
    """Wanted."""
    queue_size: int = 64
    queue_max_wait_s: float = 30
    routes: tuple[Route, ...] = ()
    state: str | None = None
    """Why no replica is ready, in a few words (`loading`, `pending: no profile fits`); for the
    503's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayKey:
    """A client's key as it is stored."""

    name: str
    sha256: str
    """Hex digest of the whole key text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a gateway needs; within a fleet, (`incarnation`, `epoch`, `revision`) only grows."""

    fleet: str
    incarnation: int
    epoch: int
    revision: int
    adopting: bool = False
    """The server's database is new or restored and no catalog has been applied or confirmed since:
    a gateway that already routes for another fleet or incarnation keeps what it has."""
    models: tuple[RoutedModel, ...] = ()
    keys: tuple[GatewayKey, ...] = ()


encode: Final = msgspec.json.encode
decode_snapshot: Final = msgspec.json.Decoder(Snapshot).decode
