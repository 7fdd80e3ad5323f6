"""Whether a directory may hold a server's state: one server each, and no network filesystem."""

import fcntl
import os
from pathlib import Path
from typing import Final

from roost.errors import Conflict, Unusable

# Locks on these are not trustworthy, and SQLite's WAL needs memory that all its users share.
_NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "fuse.sshfs",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "fuse.s3fs",
        "fuse.cephfs",
        "ocfs2",
        "gfs2",
    }
)


class DirectoryLock:
    """Held while a server runs; the kernel lets go of it however the server ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise Conflict(
                f"{directory} is in use by a roost server ({who})",
                hint="stop that server, or give this one a directory of its own with --dir",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another server have the directory."""
        os.close(self._fd)


def refuse_network_filesystem(directory: Path, *, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Raise if the directory is known to be on a filesystem that other machines share."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return  # not known is no reason to refuse
    at = directory.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = Path(fields[1].replace("\\040", " "))
        # Of several on one mount point the last one is what is seen.
        if at.is_relative_to(mount) and (best is None or len(mount.parts) >= best[0]):
            best = (len(mount.parts), fields[2])
    if best is not None and best[1] in _NETWORK:
        raise Unusable(
            f"{directory} is on a network filesystem ({best[1]}), where a database is not safe",
            hint="give a directory on a local disk with --dir",
        )
