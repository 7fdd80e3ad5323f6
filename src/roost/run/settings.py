"""Where `roost.toml` is looked for."""

import contextlib
import os
from pathlib import Path

from roost.errors import Unusable


def files(named: Path | None) -> list[Path]:
    """The one that was named, or the system's and then the user's, which wins."""
    if named is not None:
        if not named.exists():
            raise Unusable(f"{named} does not exist", hint="--config names a file of settings")
        return [named]
    folders = ["/etc"]
    with contextlib.suppress(RuntimeError):  # an account of a service may have no home
        folders.append(os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser()))
    return [Path(folder) / "roost" / "roost.toml" for folder in folders]
