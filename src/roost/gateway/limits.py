"""How large, how long and how many: every bound the gateway keeps, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. Nothing bounds how long a live stream may take in all."""

    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 32 * 1024 * 1024
    buffered_bytes: int = 512 * 1024 * 1024
    """Request bodies held at once, over all connections."""
    pipelined_bytes: int = 64 * 1024
    """Held behind the request in flight; past it the connection is not read until that is done."""
    renamed_bytes: int = 8 * 1024 * 1024
    """A larger answer passes with the engine's own spelling of the model's name."""

    head_s: float = 10
    body_idle_s: float = 30
    keep_alive_s: float = 75
    linger_s: float = 2
    """A refused upload is read and dropped for so long, so that the client sees the refusal."""
    connect_s: float = 5
    first_byte_s: float = 600
    """A long answer that is not streamed is silent until its end."""
    stream_idle_s: float = 300
    stalled_s: float = 300
    """A client that reads nothing for so long is given up."""
    engine_idle_s: float = 4
    """Below the 5 s after which llama.cpp and vLLM close an idle connection."""
    engine_idle_connections: int = 64
    first_snapshot_s: float = 3
    """Right after start, a request for an unknown model or by an unknown key waits for news."""
    drain_s: float = 30
    sweep_s: float = 0.5
