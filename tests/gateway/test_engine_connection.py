"""A connection to an engine, fed by hand: what sockets cannot be made to do at will."""

import asyncio

from gateway.feeding import Transport
from gateway.twins import completion, in_loop
from roost.gateway.apis import FORWARDED
from roost.gateway.engine import EngineConnection, Outcome
from roost.gateway.limits import Limits
from roost.gateway.relay import Relay


class Nobody:
    """Keeps no connections."""

    def connection_closed(self, connection: EngineConnection) -> None:
        pass


@in_loop
async def test_a_connection_that_ends_paused_is_not_kept_paused() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> None:
        # The client's buffer fills with the very last bytes.
        written.append(data)
        connection.pause()

    connection = EngineConnection(Nobody(), Limits(), asyncio.get_running_loop())
    transport = Transport()
    connection.connection_made(transport)
    relay = Relay(
        write,
        api=FORWARDED[b"/v1/chat/completions"],
        name="qwen",
        http11=True,
        keep_alive=True,
        request_id=b"r",
        cors=b"",
        most_held=1000,
    )
    outcome = connection.start(b"POST / HTTP/1.1\r\n\r\n", b"", relay)
    body = completion().encode()
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert await outcome is Outcome.WHOLE
    assert written[-1].endswith(body)
    assert connection.usable
    assert not transport.paused
