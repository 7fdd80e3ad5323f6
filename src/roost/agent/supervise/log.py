"""An engine's log file: opened for each run, the run before kept, never larger than its cap."""

import contextlib
import os
from pathlib import Path
from typing import Final

CAP_BYTES: Final = 64_000_000
KEPT_BYTES: Final = 1_000_000
"""Of the end, when the cap is reached."""
EVIDENCE_BYTES: Final = 65_536


class Log:
    """`NAME.log` of the present run, `NAME.log.1` of the one before.

    The engine writes to the file itself, appending: the agent can restart or be slow, and nothing
    is lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous = path.with_name(path.name + ".1")

    def open(self) -> int:
        """A descriptor for a new run; the caller closes it."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size:
                self.path.replace(self.previous)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path, flags, 0o600)

    def size(self) -> int | None:
        """Bytes written so far; `None`: there is no file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return None

    def tail(self, size: int = EVIDENCE_BYTES) -> str:
        """The last of it, as text."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - size))
                return file.read(size).decode(errors="replace")
        except OSError:
            return ""

    def trim(self) -> None:
        """Cut the beginning off when it has grown over the cap, and say so in it.

        The file is the same one, because the engine holds it open and appends: what it writes
        between the
        reading and the cutting is lost, which the line at the cut admits.
        """
        size = self.size()
        if size is None or size <= CAP_BYTES:
            return
        kept = self.tail(KEPT_BYTES).encode()
        with self.path.open("r+b") as file:
            file.truncate(0)
        with self.path.open("ab") as file:
            file.write(f"[roost: {size - len(kept)} bytes of log were cut here]\n".encode() + kept)

    def remove(self) -> None:
        """Both files."""
        self.path.unlink(missing_ok=True)
        self.previous.unlink(missing_ok=True)
