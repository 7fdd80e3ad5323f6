"""The entry point: which command is where, and how every error ends."""

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from roost.cli.lazy import Lazy, LazyGroup
from roost.cli.output import note, say_error
from roost.errors import RoostError

EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141

_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

CTL: Final = {
    "nodes": Lazy("roost.cli.nodes:nodes", "The fleet: memory, disk and GPUs, free of all."),
    "node": Lazy("roost.cli.node:node", "One node with all it reported and what is on it."),
    "models": Lazy("roost.cli.models:models", "The models applied and how many replicas serve."),
    "replicas": Lazy("roost.cli.replicas:replicas", "Every replica: where, how busy, and why not."),
    "explain": Lazy("roost.cli.explain:explain", "Why a model's replicas are where they are."),
    "apply": Lazy("roost.cli.apply:apply", "Want what a catalog file says."),
    "plan": Lazy("roost.cli.ask:plan", "Where a catalog's replicas would go, changing nothing."),
    "delete": Lazy("roost.cli.models:delete", "Stop serving a model and forget it."),
    "logs": Lazy("roost.cli.logs:logs", "What a replica's engine printed."),
    "cordon": Lazy("roost.cli.cordon:cordon", "Place nothing new on a node."),
    "drain": Lazy("roost.cli.cordon:drain", "Move what is on a node to others."),
    "uncordon": Lazy("roost.cli.cordon:uncordon", "Place on a node again."),
    "keys": Lazy("roost.cli.keys:keys", "The gateway's keys: create, list, revoke."),
    "token": Lazy("roost.cli.token:token", "Tokens that let nodes join: create, list, revoke."),
    "events": Lazy("roost.cli.events:events", "What changed: who, when, what and why."),
    "fabrics": Lazy("roost.cli.fabrics:fabrics", "The RDMA networks, and what is on each."),
    "orphans": Lazy("roost.cli.orphans:orphans", "Engines that run and that nobody asked for."),
}

ROOST: Final = {
    "up": Lazy("roost.run.up:up", "Serve from this machine: server, agent and gateway.", "all"),
    "demo": Lazy("roost.run.demo:demo", "A small model served on this machine.", "all"),
    "ctl": Lazy("roost.cli.main:ctl_group", "Ask and tell a running server."),
    "plan": Lazy("roost.cli.plan:plan", "Where replicas would go, from two files, offline."),
    "fleet": Lazy("roost.run.fleet:fleet", "Make up a fleet: plan on it, run it, break it."),
    "server": Lazy("roost.run.server:server", "The control plane alone.", "server"),
    "agent": Lazy("roost.run.agent:agent", "Make this machine a node.", "agent"),
    "gateway": Lazy("roost.run.gateway:gateway", "The OpenAI endpoint alone.", "gateway"),
}


@click.group("ctl", cls=LazyGroup, lazy=CTL, context_settings=_SETTINGS)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    envvar="ROOST_DIR",
    help="Where `roost up` or `roost server` keeps its state. Default: /var/lib/roost, "
    "or ~/.local/state/roost.",
)
@click.pass_context
def ctl_group(ctx: click.Context, directory: str | None) -> None:
    """Ask and tell a running server.

    The server and its credential are found in --dir DIR (or ROOST_DIR); ROOST_SERVER and
    ROOST_CREDENTIAL_FILE name others. Exit status: 0 ok, 1 failed, 2 unusable input,
    3 not found, 4 unplaceable, 5 server unreachable, 6 timed out, 7 refused.

    \b
    Example:
      roost ctl apply -f catalog.yaml --wait
    """
    ctx.obj = directory


@click.group("roost", cls=LazyGroup, lazy=ROOST, context_settings=_SETTINGS)
@click.version_option(package_name="roost", message="%(prog)s %(version)s")
def roost_group() -> None:
    """Serve language models from machines that you own.

    \b
    Start with:
      roost demo
    """


def main(words: Sequence[str] | None = None) -> int:
    """`roost`: the exit status."""
    return _run(roost_group, sys.argv[1:] if words is None else words)


def ctl(words: Sequence[str] | None = None) -> int:
    """`roostctl`, which is `roost ctl`."""
    return _run(ctl_group, sys.argv[1:] if words is None else words, called="roostctl")


def _run(group: LazyGroup, words: Sequence[str], called: str | None = None) -> int:
    try:
        status = group.main(list(words), prog_name=called or group.name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RoostError as error:
        say_error(error)
        return error.exit_code
    except ModuleNotFoundError as error:
        return _not_installed(error, group.extra_for(words))
    except OSError as error:
        return _system_refused(error)
    return status if isinstance(status, int) else 0


def _system_refused(error: OSError) -> int:
    """What no command foresaw: a reader that has gone (`| head`), a full disk."""
    if isinstance(error, BrokenPipeError):
        # Nothing is left to say, and nothing for the interpreter to flush when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    named = f"{error.filename}: " if error.filename else ""
    note(f"error: {named}{(error.strerror or str(error)).lower()}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" {shlex.quote(str(Path(error.filename).parent))}" if error.filename else ""
        note(f"hint: free some room: df -h{where}")
    return 1


def _not_installed(error: ModuleNotFoundError, extra: str | None) -> int:
    """A package of an extra is missing; one of Roost's own is a bug and stays a traceback."""
    if (error.name or "roost").partition(".")[0] == "roost":
        raise error
    note(f"error: this needs {error.name}, which is not installed")
    note(f"hint: pip install 'roost[{extra or 'all'}]'")
    return 1


if __name__ == "__main__":
    sys.exit(main())
