"""An engine's log: a file for each run, some earlier ones kept, never larger than its cap."""

import contextlib
import os
from pathlib import Path
from typing import Final

from roost.files import write_private

CAP_BYTES: Final = 64_000_000
KEPT_BYTES: Final = 1_000_000
"""Of the end, when the cap is reached."""
EVIDENCE_BYTES: Final = 65_536
EARLIER_RUNS: Final = 4
"""Kept beside the present one: an engine that fails again and again must not lose its first words
at once."""


class Log:
    """`NAME.log` of the present run, `NAME.log.1` of the one before, and so on.

    The engine writes to the file itself, appending: the agent can restart or be slow, and nothing
    is lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def earlier(self, runs_back: int) -> Path:
        """The file of the run so many before the present one; 0 is the present one's."""
        return self.path.with_name(f"{self.path.name}.{runs_back}") if runs_back else self.path

    def open(self) -> int:
        """A descriptor for a new run; the caller closes it."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size:
                self._make_room()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path, flags, 0o600)

    def _make_room(self) -> None:
        """Each run becomes one older; of those before the last the end alone is kept."""
        for runs_back in range(EARLIER_RUNS, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self.earlier(runs_back - 1).replace(self.earlier(runs_back))
        older = self.earlier(2)
        with contextlib.suppress(FileNotFoundError):
            if older.stat().st_size > KEPT_BYTES:
                write_private(older, _end_of(older, KEPT_BYTES))

    def size(self) -> int | None:
        """Bytes written so far; `None`: there is no file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return None

    def tail(self, size: int = EVIDENCE_BYTES) -> str:
        """The last of it, as text."""
        try:
            return _end_of(self.path, size).decode(errors="replace")
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
        """All files."""
        for runs_back in range(EARLIER_RUNS + 1):
            self.earlier(runs_back).unlink(missing_ok=True)


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        return file.read(size)
