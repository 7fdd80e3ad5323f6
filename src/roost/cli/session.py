"""What every `ctl` command has: `-o`, `--dir`, a client, and errors that programs can read."""

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from roost.cli.client import Client, Endpoint
from roost.cli.output import error_to_json, say_json
from roost.errors import RoostError


class Session:
    """One command's run."""

    def __init__(self, *, output: str, directory: Path | None) -> None:
        self.as_json = output == "json"
        self.wide = output == "wide"
        self._directory = directory
        self._client: Client | None = None
        self._answered = False

    @property
    def client(self) -> Client:
        """The server, looked for when it is first asked."""
        if self._client is None:
            self._client = Client(Endpoint.find(directory=self._directory))
        return self._client

    def json(self, value: object) -> None:
        """The answer for programs."""
        self._answered = True
        say_json(value)

    def failed(self, error: RoostError) -> None:
        """With `-o json`, standard output is JSON whatever happens."""
        if self.as_json and not self._answered:
            say_json(error_to_json(error))


def session(
    function: Callable[..., int | None], *, outputs: tuple[str, ...] = ("table", "json")
) -> Callable[..., int | None]:
    """Give a command its `Session` first; it returns its exit status, or `None` for 0."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice(outputs),
        default="table",
        show_default=True,
        help="For people, or for programs.",
    )
    @click.option(
        "--dir",
        "directory",
        metavar="DIR",
        help="Where the server keeps its state; default: ROOST_DIR.",
    )
    @click.pass_context
    @wraps(function)
    def run(
        ctx: click.Context, /, *, output: str, directory: str | None, **given: Any
    ) -> int | None:
        found = directory or ctx.find_object(str)
        own = Session(output=output, directory=Path(found) if found else None)
        try:
            return function(own, **given)
        except RoostError as error:
            own.failed(error)
            raise

    return run


wide_session = partial(session, outputs=("table", "wide", "json"))
"""The same for a command whose table has columns more to show."""
