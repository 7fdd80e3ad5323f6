"""No reader behind the gateway sees another request than the gateway judged."""

import asyncio
import json
from pathlib import Path

from gateway.smuggling import attacks
from gateway.twins import (
    KEY,
    Received,
    Wire,
    answer,
    chat,
    connect,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
)

SECRET = "smuggled"
PATH = "/v1/chat/completions"


async def echo(received: Received, wire: Wire) -> None:
    """A script: what was asked."""
    await answer(received.body)(received, wire)


async def answers_to(reader: asyncio.StreamReader) -> list[tuple[int, bytes]]:
    """All answers on a connection until the gateway closes it or falls silent."""
    raw = b""
    try:
        async with asyncio.timeout(0.3):
            while more := await reader.read(65536):
                raw += more
    except (TimeoutError, ConnectionError):
        pass
    found = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
        assert len(lengths) == 1, head
        size = int(lengths[0])
        found.append((int(head.split(b" ")[1]), rest[:size]))
        raw = rest[size:]
    return found


@in_loop
async def test_no_request_is_seen_that_was_not_judged(tmp_path: Path) -> None:
    # The hidden request has a wrong key: whoever sees it as a request of its own has to refuse it,
    # and an engine never sees it.
    hidden = request(chat(messages=[{"role": "user", "content": SECRET}]), key="of-nobody")
    cases = list(attacks(PATH, KEY, hidden))
    assert len(cases) > 1000
    async with engine(echo) as one, gateway(tmp_path, qwen(one)) as it:
        kept = await connect(it)
        limit = asyncio.Semaphore(50)

        async def attack(raw: bytes) -> None:
            async with limit, await connect(it) as client:
                await client.send(raw)
                got = await answers_to(client.reader)
                statuses = [status for status, _ in got]
                # One of its own, perhaps; what is behind it is refused, as bad or for its key.
                assert set(statuses[:1]) <= {200, 400, 404, 413, 501}, (raw, got)
                assert set(statuses[1:]) <= {400, 401}, (raw, got)
                assert statuses[1:].count(401) <= 1, (raw, got)

        await asyncio.gather(*(attack(raw) for raw in cases))
        for received in one.received:
            assert received.path == PATH
            # Its framing is the gateway's own, so one reader is as good as another.
            assert received.header("transfer-encoding") is None
            assert received.header("content-length") == str(len(received.body))
            assert "of-nobody" not in str(received.headers)
            assert json.loads(received.body)["model"] == "qwen"
        # Connections to the engine are in step: everybody gets the answer to what they asked.
        for number in range(80):
            asked = chat(messages=[{"role": "user", "content": f"mine {number}"}])
            await kept.send(request(asked))
            got = await kept.answer()
            assert (got.status, got.json) == (200, asked)
        kept.close()
