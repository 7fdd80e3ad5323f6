"""Files that survive a crash and tell nobody, and directories that one process owns at a time."""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from roost.errors import Conflict


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step, on disk before it returns, readable by its owner."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    sync_directory(path.parent)


def remove(path: Path) -> None:
    """Remove `path`, on disk before it returns; nothing to do is no error."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make creations and removals in it last."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """A lock file, held by this process; the kernel lets go of it however the process ends."""

    def __init__(self, path: Path, *, what: str, hint: str) -> None:
        """Take it; `Conflict` names who has it. `what`: `roost is running from DIR`."""
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
                os.close(self._fd)
                who = f" (process {holder})" if holder.isdigit() else ""
                raise Conflict(f"{what}{who}", hint=hint) from None
            self._path = path
            if self._is_there():
                break
            os.close(self._fd)  # its holder removed it on leaving, between our open and our lock
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:  # a full disk
            self.release()
            error.filename = str(path)
            raise

    def release(self) -> None:
        """Remove the file and let another process have it."""
        if self._is_there():
            self._path.unlink()
        os.close(self._fd)

    def _is_there(self) -> bool:
        """The file of that name is ours: others may have emptied the directory and taken it."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return False
