"""A directory given on a command line, without asking whether it is there.

On a file server that is away the question may take for ever.
"""

from pathlib import Path

import click


class Unseen(click.ParamType[Path]):
    """An absolute path; a leading `~` that the shell left alone is found."""

    name = "directory"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """Called by click."""
        del param, ctx
        if isinstance(value, Path):
            return value
        try:
            return Path(str(value)).expanduser().absolute()
        except RuntimeError:
            # There is no home of that name: it is told as a directory that is not there.
            return Path(str(value)).absolute()
