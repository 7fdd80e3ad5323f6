"""The text of a shard's log, as an answer to a `LogOrder`: the last lines, and what follows."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

BLOCK: Final = 65_536
MOST_TAIL_BYTES: Final = 8_000_000
"""However many lines were asked for: one line may be megabytes long."""
LOOK_EVERY_S: Final = 0.3


def start_of_tail(path: Path, lines: int, *, block: int = BLOCK) -> int:
    """Where the last `lines` lines begin, read from the end; 0: there aren't so many."""
    if lines <= 0:
        return path.stat().st_size
    with path.open("rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        floor = max(0, end - MOST_TAIL_BYTES)
        left = lines
        first = True
        while position > floor:
            size = min(block, position - floor)
            position -= size
            file.seek(position)
            text = file.read(size)
            stop = len(text)
            if first and text.endswith(b"\n"):
                stop -= 1
            first = False
            while (stop := text.rfind(b"\n", 0, stop)) >= 0:
                left -= 1
                if left == 0:
                    return position + stop + 1
        return floor


async def stream(path: Path, *, tail_lines: int, follow: bool, secret: str) -> AsyncIterator[bytes]:
    """The log from its last lines on; `secret` is never in it.

    A new run and a cut are marked by a line: nothing is missing without a word. Followed, an empty
    piece at every look says that there is nothing new.
    """
    veil = Veil(secret)
    try:
        reader = Reader(path, start_of_tail(path, tail_lines))
    except FileNotFoundError:
        return
    try:
        while True:
            while chunk := reader.read():
                if shown := veil.through(chunk):
                    yield shown
            if not follow or reader.removed:
                break
            yield b""
            await asyncio.sleep(LOOK_EVERY_S)
        if rest := veil.rest():
            yield rest
    finally:
        reader.close()


class Reader:
    """Reads a file that grows, is cut, and is replaced by the next run's."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._file = path.open("rb")
        self._file.seek(position)

    @property
    def removed(self) -> bool:
        """The engine was stopped and nothing of it is kept."""
        return not self._path.exists()

    def read(self) -> bytes:
        """The next block; empty: nothing new."""
        if block := self._file.read(BLOCK):
            return block
        try:
            now, held = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return b""
        if (now.st_ino, now.st_dev) != (held.st_ino, held.st_dev):
            # What the old run wrote before its end comes first.
            if block := self._file.read(BLOCK):
                return block
            self._file.close()
            self._file = self._path.open("rb")
            return b"[roost: the engine was started again]\n"
        if now.st_size < self._file.tell():
            self._file.seek(0)
            return b"[roost: the log was cut]\n"
        return b""

    def close(self) -> None:
        """Close what is open."""
        self._file.close()


class Veil:
    """Replaces a secret in a stream of bytes, also where it lies across two chunks."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held = b""

    def through(self, chunk: bytes) -> bytes:
        """What can be shown now: an end that may be the secret's beginning is held back."""
        if not self._secret:
            return chunk
        text = (self._held + chunk).replace(self._secret, b"***")
        keep = 0
        for size in range(min(len(self._secret) - 1, len(text)), 0, -1):
            if text.endswith(self._secret[:size]):
                keep = size
                break
        self._held = text[len(text) - keep :] if keep else b""
        return text[: len(text) - keep] if keep else text

    def rest(self) -> bytes:
        """What was held back, at the end."""
        held, self._held = self._held, b""
        return held
