"""Where a gateway listens and whom it follows, and what it tells of that on disk."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from roost.errors import Conflict
from roost.files import Lock, write_private
from roost.gateway.certificate import Certificate
from roost.gateway.limits import Limits

STDERR: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where a gateway listens and whom it follows."""

    directory: Path
    credential_file: Path
    server: str | None = None
    """`None`: as DIR/server/endpoint.json says."""
    host: str = "127.0.0.1"
    port: int = 7480
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 7490
    tls: Certificate | None = None
    """`None`: plain HTTP."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may use it, as `https://host`; `*`: all."""
    limits: Limits = field(default_factory=Limits)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One gateway a state directory: raises `Conflict`, which names the other one."""
    path = directory / "gateway" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = Lock(
        path,
        what=f"a gateway is running from {directory}",
        hint="give this one another --dir, with --server URL and --credential-file FILE",
    )
    try:
        yield
    finally:
        lock.release()


def tell_where(options: Options, port: int, metrics_port: int) -> None:
    """Write DIR/gateway/endpoint.json."""
    file = options.directory / "gateway" / "endpoint.json"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scheme = "http" if options.tls is None else "https"
    told = {
        "gateway": f"{scheme}://{options.host}:{port}",
        "metrics": f"http://{options.metrics_host}:{metrics_port}",
    }
    write_private(file, msgspec.json.encode(told))


def port_of(server: asyncio.Server | None) -> int:
    """The port it listens on; 0: it does not."""
    if server is None or not server.sockets:
        return 0
    address: tuple[str, int] = server.sockets[0].getsockname()[:2]
    return address[1]


async def listening(
    server: Awaitable[asyncio.Server], host: str, port: int, option: str
) -> asyncio.Server:
    """The server, once it listens; raises `Conflict`: it cannot."""
    try:
        return await server
    except OSError as error:
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"give another {option}",
        ) from error
