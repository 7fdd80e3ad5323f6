"""How are the files of a machine read, this one's or those kept under some directory?"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 16_000_000
MAX_LINKS: Final = 40
"""As many symlinks in one path as the kernel follows."""


class Tree:
    """A machine's files below `root`; links stay in it: an absolute one begins there again."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root.resolve())
        self.is_live = self._root == "/"
        """Whether this is the machine that runs this: only then can its filesystems be asked."""

    def read(self, path: str, *, at_most: int = MAX_BYTES) -> bytes:
        """A regular file, whole; `OSError` says why not."""
        if not self.is_live:
            path = self.resolve(path)
        # Whatever lies there instead of a file: opening it must not wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        handle = os.open(self.on_disk(path), flags)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "is not a file", path)
            pieces: list[bytes] = []
            left = at_most + 1
            while left > 0 and (piece := os.read(handle, min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
        finally:
            os.close(handle)
        if left <= 0:
            raise OSError(errno.EFBIG, f"is larger than {at_most} bytes", path)
        return b"".join(pieces)

    def names(self, path: str) -> list[str]:
        """What is in a directory, in order."""
        directory = path if self.is_live else self.resolve(path)
        with os.scandir(self.on_disk(directory)) as entries:
            return sorted(entry.name for entry in entries)

    def on_disk(self, path: str) -> str:
        """Where an absolute path without links is for this process."""
        return path if self.is_live else self._root + path

    def resolve(self, path: str, *, until: Callable[[str], bool] = lambda _: False) -> str:
        """An absolute path without links. A directory that `until` is true of is not touched, nor
        anything below it; `OSError` says what is missing.
        """
        waiting = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        links = 0
        done = ""
        while waiting:
            part = waiting.pop()
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{part}"
            if until(here):
                return "/".join((here, *reversed(waiting)))
            if not stat.S_ISLNK(os.lstat(self.on_disk(here)).st_mode):
                done = here
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = str(Path(self.on_disk(here)).readlink())
            if target.startswith("/"):
                done = ""
            waiting.extend(p for p in reversed(target.split("/")) if p not in {"", "."})
        return done or "/"
