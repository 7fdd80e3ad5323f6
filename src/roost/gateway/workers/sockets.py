"""Sockets that several workers take connections from, bound before any of them is there."""

import socket

from roost.errors import Conflict, Unusable
from roost.gateway.serving import BACKLOG


def listen(host: str, port: int, slots: int) -> list[list[socket.socket]]:
    """For each slot one socket an address of the host; `port` 0: the same free one for all.

    Raises `Conflict`: the port is taken; `Unusable`: the host is no address of this machine.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Unusable(f"--host {host} is no address of this machine: {error.strerror}") from None
    groups: list[list[socket.socket]] = [[] for _ in range(slots)]
    try:
        for family, kind, _, _, address in dict.fromkeys(addresses):
            port = _bind_all(groups, family, kind, (address[0], port, *address[2:]))
        for one in (one for group in groups for one in group):
            one.listen(BACKLOG)
    except OSError as error:
        for one in (one for group in groups for one in group):
            one.close()
        raise Conflict(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            hint="give another --port",
        ) from None
    return groups


def _bind_all(
    groups: list[list[socket.socket]],
    family: socket.AddressFamily,
    kind: socket.SocketKind,
    address: tuple[str | int, ...],
) -> int:
    # Whoever shares a port shares it with every process of the same user: one that listens there
    # already is found by asking for the port alone.
    with _bound(family, kind, address, shared=False) as probe:
        address = (address[0], probe.getsockname()[1], *address[2:])
        for group in groups:
            group.append(_bound(family, kind, address, shared=True))
    return int(address[1])


def _bound(
    family: socket.AddressFamily,
    kind: socket.SocketKind,
    address: tuple[str | int, ...],
    *,
    shared: bool,
) -> socket.socket:
    one = socket.socket(family, kind)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one
