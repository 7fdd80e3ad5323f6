"""What is kept on disk of each engine, so that the next agent process finds it."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

from roost.domain.replica import ShardSpec
from roost.files import remove, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One shard: written before its process is made (without `pid`), and when there is one."""

    spec: ShardSpec
    """What the process was started with."""
    up: bool = False
    """A process was made, or was about to be."""
    pid: int | None = None
    started: int | None = None
    """Of the process, in clock ticks since boot."""
    boot_id: str | None = None
    starts: int = 0
    restarts: int = 0
    failures: int = 0
    cause: str | None = None
    due: float | None = 0
    """Not to be started before, where no process is wanted yet; None: the server says when."""
    generation: int | None = None
    """The start of its group that it belongs to; None: of one that is alone."""
    ready_since: float | None = None


_decode = msgspec.json.Decoder(Kept).decode


class Shelf:
    """The directory of these files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, kept: Kept) -> None:
        """Keep it, on disk before this returns."""
        path = self._path(kept.spec.placement, kept.spec.rank)
        write_private(path, msgspec.json.encode(kept))

    def remove(self, placement: str, rank: int) -> None:
        """It is gone."""
        remove(self._path(placement, rank))

    def read(self) -> Iterator[Kept | str]:
        """Each shard kept, or a sentence about a file that cannot be read."""
        for path in sorted(self._directory.glob("*.json")):
            if path.name.startswith("."):
                continue
            try:
                yield _decode(path.read_bytes())
            except (OSError, msgspec.DecodeError) as cause:
                yield f"{path} cannot be read: {cause}"

    def _path(self, placement: str, rank: int) -> Path:
        return self._directory / f"{file_stem(placement, rank)}.json"


def file_stem(placement: str, rank: int) -> str:
    """A file name for a shard: no separator, no hidden file, no collision, whatever the placement
    is called.
    """
    name = quote(placement, safe="")
    if len(name) > 120 or name.startswith("."):
        name = f"{name.lstrip('.')[:100]}~{sha256(placement.encode()).hexdigest()[:16]}"
    return f"{name}.{rank}"
