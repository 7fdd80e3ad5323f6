"""What `--help` prints, of every command there is."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from roost.cli.main import roost_group


def commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command and all below it with their words, those loaded late too; hidden ones not."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from commands(inner, (*words, name))


ALL = dict(commands(roost_group))


def test_the_walk_finds_commands_at_every_depth() -> None:
    assert {("demo",), ("agent", "facts"), ("ctl", "keys", "create")} <= ALL.keys()


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_has_an_example_on_a_line_of_its_own(words: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(roost_group, [*words, "--help"], prog_name="roost")
    assert ran.exit_code == 0, ran.output
    assert "\\b" not in ran.output
    assert "\b" not in ran.output
    lines = [line.strip() for line in ran.output.splitlines()]
    assert lines[0].startswith(" ".join(("Usage: roost", *words)))
    # What was written as one line is printed as one: without the mark click runs them together.
    kept = [
        line.strip()
        for block in (ALL[words].help or "").split("\b\n")[1:]
        for line in block.partition("\n\n")[0].splitlines()
    ]
    assert any("roost " in line for line in kept), ran.output
    assert [line for line in kept if line not in lines] == []
