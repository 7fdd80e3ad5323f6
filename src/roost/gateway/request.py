"""One request as the client's connection has read it."""

from typing import Protocol

from roost.gateway.apis import Api
from roost.gateway.heads import RequestHead


class Room(Protocol):
    """Where bodies are counted."""

    body_bytes: int


class Request:
    """Its head, what it is for, and its body as far as it has come."""

    __slots__ = (
        "api",
        "arrived_at",
        "body",
        "cors",
        "head",
        "held",
        "id",
        "key",
        "key_name",
        "parts",
        "size",
    )

    def __init__(self, head: RequestHead, request_id: bytes, arrived_at: float) -> None:
        self.head = head
        self.id = request_id
        self.arrived_at = arrived_at
        self.api: Api | None = None
        """`None`: it is answered by the gateway itself."""
        self.key: bytes | None = None
        self.key_name: str | None = None
        self.cors = b""
        """Header lines for the web page that asks, if it is let in."""
        self.parts: list[bytes] = []
        self.size = 0
        """Bytes of the body that came."""
        self.held = 0
        """Bytes of it that are kept."""
        self.body = b""

    def let_go(self, room: Room) -> None:
        """The body is not needed any more."""
        room.body_bytes -= self.held
        self.held = 0
        self.parts = []
        self.body = b""
