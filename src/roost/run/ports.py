"""Ports of this machine's loopback: which are free, and whether somebody answers."""

import errno
import http.client
import os
import socket
from typing import Final
from urllib.parse import urlsplit

from roost.errors import Unavailable

ADDRESS_IN_USE: Final = os.strerror(errno.EADDRINUSE).lower()
"""What the error of a process says that lost its port to somebody."""


def is_free(port: int) -> bool:
    """Whether a listener could bind this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def next_free_port(wanted: int, *, avoid: set[int]) -> int:
    """The first free port from `wanted` on."""
    for port in range(wanted, wanted + 1000):
        if port not in avoid and is_free(port):
            return port
    raise Unavailable(f"no port is free from {wanted} to {wanted + 999}")


def answers(url: str) -> bool:
    """Whether GET says 2xx within two seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
    try:
        connection.request("GET", parts.path)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
