"""Model files that llama.cpp cannot serve, made out of the small real one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.node import small_model

_HEAD: Final = 8_000_000
"""Bytes: metadata and the table of tensors of the small model, and a little more."""
_ARCHITECTURE: Final = b"general.architecture"


def _missing(path: Path) -> None:
    del path


def _directory(path: Path) -> None:
    path.mkdir()


def _empty(path: Path) -> None:
    path.touch()


def _corrupt(path: Path) -> None:
    path.write_bytes(b"&ii?" * 1000)


def _truncated(path: Path) -> None:
    path.write_bytes(_first(20_000_000))


def _cut_in_its_head(path: Path) -> None:
    path.write_bytes(_first(200_000))


def _of_a_later_format(path: Path) -> None:
    head = _first(_HEAD)
    _whole(path, head[:4] + (99).to_bytes(4, "little") + head[8:])


def _of_an_unknown_architecture(path: Path) -> None:
    head = _first(_HEAD)
    # The key, its value's type (4 bytes) and length (8), and the value.
    at = head.index(_ARCHITECTURE) + len(_ARCHITECTURE) + 12
    assert head[at : at + 5] == b"llama"
    _whole(path, head[:at] + b"zeta9" + head[at + 5 :])


def _that_never_comes(path: Path) -> None:
    # Opening it waits for a writer: an engine loads it for as long as nobody writes.
    os.mkfifo(path)


def _first(size: int) -> bytes:
    with small_model().open("rb") as whole:
        return whole.read(size)


def _whole(path: Path, head: bytes) -> None:
    """As long as the real one, with a hole for weights."""
    path.write_bytes(head)
    os.truncate(path, small_model().stat().st_size)


KINDS: Final[dict[str, Callable[[Path], None]]] = {
    "missing": _missing,
    "directory": _directory,
    "empty": _empty,
    "corrupt": _corrupt,
    "truncated": _truncated,
    "cut in its head": _cut_in_its_head,
    "of a later format": _of_a_later_format,
    "of an unknown architecture": _of_an_unknown_architecture,
    "that never comes": _that_never_comes,
}


def bad_model(kind: str, folder: Path) -> Path:
    """Such a file, or the absence of one, in `folder`."""
    path = folder / "model.gguf"
    KINDS[kind](path)
    return path
