"""Whether a directory may hold a server's state: one server each, and no network filesystem."""

from pathlib import Path
from typing import Final

from roost.errors import Unusable
from roost.files import Lock

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


def lock(directory: Path) -> Lock:
    """Held while a server runs; `Conflict` where another one has the directory."""
    return Lock(
        directory / "lock",
        what=f"{directory} is in use by a roost server",
        hint="stop that server, or give this one a directory of its own with --dir",
    )


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
