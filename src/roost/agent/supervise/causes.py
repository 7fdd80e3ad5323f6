"""Why an engine ended or could not be started, as a sentence."""

import contextlib
import errno
import socket

from roost.domain.replica import ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit
from roost.errors import Unavailable
from roost.reconcile.engine_life import Ended


def why(exit_: Exit, spec: ShardSpec) -> Ended:
    """By what the engine's adapter reads out of its log."""
    try:
        ended = adapter(spec.profile.engine).ended(exit_, spec)
    except Unavailable as cause:
        return Ended(cause=cause.message)
    if ended.port_taken and not is_own_address(spec.host):
        # Engines say the same of both; no other port would help here.
        return Ended(
            cause=f"cannot listen on {spec.host}: no address of this machine (roost agent --host)"
        )
    return ended


def not_started(program: str, cause: OSError | ValueError) -> str:
    """The kernel's refusal, or Python's of words that no kernel takes."""
    said = cause.strerror if isinstance(cause, OSError) else None
    return f"cannot start {program}: {(said or str(cause)).lower()}"


def taken_port(spec: ShardSpec) -> int | None:
    """A port of the shard that somebody has: what answers there would be taken for its engine."""
    return next((port for port in _ports(spec) if _is_taken(spec.host, port)), None)


def port_taken(host: str, port: int) -> Ended:
    """The sentence for it."""
    return Ended(cause=f"port {port} of {host} is taken", port_taken=True)


def _ports(spec: ShardSpec) -> tuple[int, ...]:
    """Where a shard listens: rank 0 alone does, to the gateways and to the other ranks."""
    if spec.rank > 0:
        return ()
    return (spec.port,) if spec.group_port is None else (spec.port, spec.group_port)


def _is_taken(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError:
        return False  # the engine says it better
    with socket.socket(family, kind, protocol) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(address)
        except OSError as cause:
            return cause.errno == errno.EADDRINUSE
    return False


def is_own_address(host: str) -> bool:
    """Something could listen there."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as one, contextlib.suppress(OSError):
            one.bind(address)
            return True
    return False
