"""Where a chunked body's data is, and where the body ends."""

import re
from typing import Final

# Bounded, so that a line that came in one piece and one that came in many are judged alike.
_SIZE: Final = rb"([0-9A-Fa-f]{1,15})[ \t]{0,64}(?:;[\t\x20-\x7e\x80-\xff]{0,1024})?"
_SIZE_LINE: Final = re.compile(rb"%b\r\n" % _SIZE)
_SIZE_START: Final = re.compile(rb"(?:%b\r?)?\Z" % _SIZE)
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_MAX_TRAILER: Final = 1024
_MAX_TRAILERS: Final = 32


class BadChunk(Exception):
    """The bytes are not a chunked body."""


class ChunkWalker:
    """
    Walks a chunked body block by block.

    `feed` says how far it came; what it left over goes in front of the next block. `data` has the
    block's data, `forward_to` ends what may be passed on verbatim: all but size lines that are not
    whole, the last chunk and the trailers.
    """

    __slots__ = ("_crlf", "_left", "_trailers", "data", "done", "forward_to")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.done = False
        self.forward_to = 0
        self._left = 0
        self._crlf = 0
        """Bytes of the CRLF after a chunk's data that are still to come."""
        self._trailers = -1
        """Trailer lines seen; -1 before the last chunk."""

    @property
    def between_chunks(self) -> bool:
        """Whether all that was fed ends with a whole chunk."""
        return self._left == 0 and self._crlf == 0

    def feed(self, block: bytes, at: int = 0) -> int:
        """Walk on; the offset behind what was used."""
        self.data = data = []
        size = len(block)
        while at < size:
            if self._left:
                end = at + self._left
                if end > size:
                    data.append(block[at:])
                    self._left = end - size
                    at = size
                    break
                data.append(block[at:end])
                self._left = 0
                self._crlf = 2
                at = end
            elif self._crlf:
                if block[at] != (13 if self._crlf == 2 else 10):
                    raise BadChunk("a chunk is longer than its size says")
                self._crlf -= 1
                at += 1
            elif self._trailers >= 0:
                self.forward_to = at
                return self._walk_trailers(block, at)
            else:
                line = _SIZE_LINE.match(block, at)
                if line is None:
                    if not _SIZE_START.match(block, at):
                        raise BadChunk("a chunk's size is not a number in hexadecimal")
                    break
                self._left = int(line[1], 16)
                if self._left == 0:
                    self._trailers = 0
                    self.forward_to = at
                    return self._walk_trailers(block, line.end())
                at = line.end()
        self.forward_to = at
        return at

    def _walk_trailers(self, block: bytes, at: int) -> int:
        while True:
            if block.startswith(b"\r\n", at):
                self.done = True
                return at + 2
            line = _TRAILER.match(block, at)
            if line is None:
                rest = block[at:]
                if b"\n" in rest or len(rest) > _MAX_TRAILER or b"\r" in rest[:-1]:
                    raise BadChunk("what follows the last chunk is not a trailer")
                return at
            if line.end() - at > _MAX_TRAILER:
                raise BadChunk(f"a trailer of more than {_MAX_TRAILER} bytes")
            self._trailers += 1
            if self._trailers > _MAX_TRAILERS:
                raise BadChunk(f"more than {_MAX_TRAILERS} trailers")
            at = line.end()
