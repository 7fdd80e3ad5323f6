"""A streamed answer of a given length, read in a thread, so that a test can act meanwhile."""

import http.client
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from running import wait_for


class Streaming:
    """One chat completion of exactly `tokens` tokens: the engine must know `ignore_eos`."""

    def __init__(self, gateway: str, key: str, *, model: str, tokens: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.done = False
        """The end marker came, after all events."""
        self.status: int | None = None
        self._body = json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": "?"}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        self._key = key
        parts = urlsplit(gateway)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Its connection has ended, however it did."""
        return not self._thread.is_alive()

    @property
    def finish_reasons(self) -> list[str]:
        """One, of an answer that is whole."""
        reasons = [
            choice.get("finish_reason") for e in self.events for choice in e.get("choices", ())
        ]
        return [reason for reason in reasons if reason is not None]

    @property
    def tokens(self) -> int | None:
        """As the engine counted them; `None`: it hasn't said."""
        usage = next((e["usage"] for e in reversed(self.events) if e.get("usage")), None)
        return None if usage is None else int(usage["completion_tokens"])

    def begin(self) -> "Streaming":
        """Wait until some of it is there."""
        wait_for(lambda: self.over or any(event.get("choices") for event in self.events))
        assert not self.over, (self.status, self.events)
        return self

    def finish(self, *, limit_s: float = 300) -> None:
        """Wait until it is over."""
        self._thread.join(limit_s)
        assert self.over, f"not within {limit_s} s, after {len(self.events)} events"

    def leave(self) -> None:
        """Hang up in the middle of it, as a client that was closed does."""
        assert self._connection.sock is not None
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.finish()

    def _read(self) -> None:
        try:
            self._connection.request(
                "POST",
                "/v1/chat/completions",
                self._body,
                {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
            )
            answer = self._connection.getresponse()
            self.status = answer.status
            for line in answer:
                if line.startswith(b"data: ") and not self.done:
                    data = line.removeprefix(b"data: ").strip()
                    if data == b"[DONE]":
                        self.done = True
                    else:
                        self.events.append(json.loads(data))
        except (OSError, http.client.HTTPException, ValueError) as cause:
            self.events.append({"broke_off": str(cause)})
        finally:
            self._connection.close()
