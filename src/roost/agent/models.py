"""Where a profile's `source` is on this machine."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from roost.errors import Unavailable

HUB: Final = "hf:"


def found(
    source: str,
    directories: Sequence[Path],
    exists: Callable[[str], bool | None],
    *,
    downloads: bool,
) -> str:
    """What an engine is to be told: a path, or the name of a model that it `downloads` itself."""
    if not source or (downloads and source.startswith(HUB)):
        # Only engine `command` may go without a source: the catalog has seen to that.
        return source.removeprefix(HUB)
    return str(resolve(source, directories, exists))


def resolve(
    source: str,
    directories: Sequence[Path],
    exists: Callable[[str], bool | None] = os.path.exists,
) -> Path:
    """The absolute path of a model: as given, or inside the first model directory that has it.

    `exists` says `None` of what is on a mount that does not answer.
    """
    if "\0" in source:
        raise Unavailable("the source holds a NUL character")
    if source.startswith(HUB):
        raise Unavailable(f"this agent does not download models yet: {source}")
    path = PurePosixPath(source)
    if ".." in path.parts:
        raise Unavailable(f"the source {source} leaves the model directories: take out the ..")
    if path.is_absolute():
        return Path(source)
    silent = []
    for directory in directories:
        there = exists(str(directory / path))
        if there:
            return (directory / path).absolute()
        if there is None:
            silent.append(str(directory))
    if silent:
        raise Unavailable(
            f"{source} is not found: {', '.join(silent)} is on a mount that does not answer"
        )
    if not directories:
        raise Unavailable(f"{source} is relative, and this agent has no --model-dir")
    where = ", ".join(str(directory) for directory in directories)
    raise Unavailable(f"no {source} in the model directories of this node ({where})")
