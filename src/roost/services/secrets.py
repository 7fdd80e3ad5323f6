"""Random secrets, how they are stored, and how they are compared."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roost.errors import Unusable
from roost.files import write_private

KEY_PREFIX: Final = "roost-"
TOKEN_PREFIX: Final = "roost-join-"  # noqa: S105 - the part that is no secret


def new_secret(prefix: str = "") -> str:
    """256 random bits as text."""
    return prefix + secrets.token_urlsafe(32)


def new_id(prefix: str) -> str:
    """A name that no other thing has."""
    return prefix + secrets.token_hex(6)


def sha256(secret: str) -> str:
    """What is stored of a secret. The secrets are random: nothing slower is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare in a time that says nothing about where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def secret_file(path: Path, *, make: Callable[[], str] = new_secret) -> str:
    """The secret in a 0600 file of one line; made at the first start."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        text = make()
        write_private(path, f"{text}\n".encode())
    if not text:
        raise Unusable(f"{path} is empty", hint=f"remove it to get a new one: rm {path}")
    return text
