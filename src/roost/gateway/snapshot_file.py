"""The last snapshot on disk: what a gateway routes by when it starts while the server is away."""

from pathlib import Path

import msgspec

from roost.errors import Unusable
from roost.files import write_private
from roost.formats.routing import Snapshot, decode_snapshot, encode


def read_snapshot(path: Path) -> Snapshot | None:
    """The snapshot in the file; `None`: there is no file."""
    try:
        return decode_snapshot(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise Unusable(
            f"the snapshot {path} cannot be read: {error}",
            hint=f"rm {path}: the gateway gets a new one from the server",
        ) from error


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replace the file whole; it holds engines' keys, so only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, encode(snapshot))
