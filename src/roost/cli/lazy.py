"""A group of commands whose modules are imported when a command is used, not before."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is and what its line in the list says, so that the list imports nothing."""

    target: str
    """`module:attribute`."""
    summary: str
    extra: str | None = None
    """The extra of the package that brings what it imports."""


class LazyGroup(click.Group):
    """Knows its commands by name and place."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """In the table's order."""
        return [*self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, click.Command):
            raise TypeError(f"{self.lazy[cmd_name].target} is no command")
        return found

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table alone."""
        rows = [(name, row.summary) for name, row in self.lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def extra_for(self, words: Sequence[str]) -> str | None:
        """The extra that the first command among the arguments belongs to."""
        return next((self.lazy[word].extra for word in words if word in self.lazy), None)
