"""`roost agent`: runs the engines of one machine and tells the server what is there."""

import asyncio
import json
import logging
import os
import socket
import sys
from dataclasses import fields
from pathlib import Path

import click
import structlog

from roost.agent.agent import Agent, Options
from roost.agent.facts import Asked, ports, read
from roost.domain.node import Facts, Node, NodeName
from roost.errors import Unusable

_PATH = click.Path(path_type=Path)


@click.group(invoke_without_command=True)
@click.option("--dir", "directory", type=_PATH, envvar="ROOST_DIR", help="Where state is kept.")
@click.option("--server", envvar="ROOST_SERVER", help="The server's URL, http://server:7400.")
@click.option("--join", "token", envvar="ROOST_JOIN_TOKEN", help="A join token; visible to whoever "
              "lists processes: --token-file is not.")  # fmt: skip
@click.option("--token-file", type=_PATH, help="A file that holds a join token, read when needed.")
@click.option("--name", help="What the node would like to be called. Default: the host's name.")
@click.option("--model-dir", "model_dirs", multiple=True, type=_PATH, help="May be repeated.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--allow-command", is_flag=True, help="Run engines of the kind `command`.")
@click.option(
    "--llama-server", type=_PATH, help="llama.cpp's server. Default: the one on the PATH."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where engines listen.")
@click.option("--port-range", metavar="FIRST-LAST", help="Ports that engines may use.")
@click.option("--root", type=_PATH, default=Path("/"), hidden=True)
@click.option("--stop-engines", is_flag=True, hidden=True)
@click.pass_context
def agent(
    context: click.Context,
    directory: Path | None,
    server: str | None,
    token: str | None,
    token_file: Path | None,
    name: str | None,
    model_dirs: tuple[Path, ...],
    labels: tuple[str, ...],
    allow_command: bool,
    llama_server: Path | None,
    host: str,
    port_range: str | None,
    root: Path,
    stop_engines: bool,
) -> None:
    r"""Run this machine's engines and report to the server.

    SIGTERM ends the agent; engines go on, and the next agent takes them over.

    \b
    Example:
      roost agent --server http://server:7400 --token-file token --model-dir /models
    """
    asked = Asked(
        root=root,
        labels=_labels(labels),
        model_directories=tuple(path.absolute() for path in model_dirs),
        llama_server=llama_server,
        env=os.environ,
    )
    if context.invoked_subcommand is not None:
        context.obj = asked
        return
    if server is None:
        raise Unusable("no server is named", hint="roost agent --server http://SERVER:7400 …")
    if not server.startswith(("http://", "https://")):
        raise Unusable(f"--server {server} is no URL", hint=f"try --server http://{server}")
    if token is not None and token_file is not None:
        raise Unusable("--join and --token-file are two tokens: give one of them")
    _log_to_stderr()
    options = Options(
        directory=(directory or _default_directory()).absolute(),
        server=server,
        name=name or socket.gethostname(),
        token=token,
        token_file=token_file,
        asked=asked,
        allow_command=allow_command,
        host=host,
        port_range=_range(port_range) if port_range is not None else ports.choose(root),
        stop_engines=stop_engines,
    )

    async def work() -> None:
        await Agent(options).run()

    asyncio.run(work())


@agent.command("facts")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def facts(asked: Asked, output: str) -> None:
    """Print what this machine is, as the agent would report it."""
    found, problems = read(asked)
    if output == "json":
        from roost.formats.fleet import node_to_json

        node = Node(name=NodeName(socket.gethostname()), facts=found)
        click.echo(json.dumps({**node_to_json(node), "problems": list(problems)}, indent=2))
        return
    for line in _as_text(found, problems):
        click.echo(line)


def _as_text(found: Facts, problems: tuple[str, ...]) -> list[str]:
    lines = []
    for field in fields(found):
        value = getattr(found, field.name)
        if value is None:
            shown = "-"
        elif field.name == "labels":
            shown = ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
        elif field.name == "storage":
            shown = "; ".join(
                f"{one.filesystem} on {', '.join(one.mounts)}"
                f" ({'shared' if one.shared else 'local'})"
                for one in value
            )
        elif isinstance(value, (frozenset, tuple)):
            shown = ", ".join(sorted(str(one) for one in value)) or "none"
        else:
            shown = str(value)
        lines.append(f"{field.name:14} {shown or 'none'}")
    return [*lines, *(f"problem        {problem}" for problem in problems)]


def _default_directory() -> Path:
    from roost.cli.client import default_directory

    return default_directory()


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for label in given:
        key, equals, value = label.partition("=")
        if not equals or not key.strip():
            raise Unusable(f"--label {label} is not KEY=VALUE")
        if key.startswith("roost/"):
            raise Unusable(f"--label {key}: labels that begin with roost/ are Roost's own")
        found[key.strip()] = value.strip()
    return found


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if dash and first.isdigit() and last.isdigit() and 1024 <= int(first) <= int(last) <= 65535:
        return int(first), int(last)
    raise Unusable(f"--port-range {text} is not FIRST-LAST between 1024 and 65535")


def _log_to_stderr() -> None:
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer()
            if sys.stderr.isatty()
            else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
