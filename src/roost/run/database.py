"""Which database `roost server` was told to use, with no secret where others could see it."""

from pathlib import Path
from typing import Final

from roost.errors import Unusable
from roost.store.database import is_url

_OTHER_READERS: Final = 0o077
_A_URL: Final = "postgresql://USER@HOST/DATABASE"


def named_database(given: str | None, *, on_command_line: bool, file: Path | None) -> str | None:
    """A PostgreSQL's URL or the name of a file; `None`: neither was given."""
    if file is not None:
        if given is not None and on_command_line:
            raise Unusable("--database and --database-file both name a database", hint="give one")
        return _read(file)
    if given is not None and on_command_line and is_url(given) and _has_password(given):
        raise Unusable(
            "a password in --database is seen by everybody on this machine",
            hint="leave it out and name a file of passwords in PGPASSFILE, "
            "or put the whole URL into a file: --database-file FILE",
        )
    return given


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            mode = file.stat().st_mode
            url = opened.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Unusable(f"--database-file {file} cannot be read: {why}") from None
    if "\n" in url or not is_url(url):
        raise Unusable(f"{file} does not hold one line with the URL of a database", hint=_A_URL)
    if mode & _OTHER_READERS and _has_password(url):
        raise Unusable(f"{file} has a password, and others can read it", hint=f"chmod 600 {file}")
    return url


def _has_password(url: str) -> bool:
    # Its driver is an extra.
    from roost.store.postgresql import passwords_in

    return bool(passwords_in(url))
