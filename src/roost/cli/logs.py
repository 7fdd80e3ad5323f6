"""`roost ctl logs`: what a replica's engine printed, as it is printed."""

import codecs
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import click

from roost.cli.client import part
from roost.cli.output import clean, note
from roost.cli.session import Session, session
from roost.errors import Unavailable

_AGAIN_S: Final = 1.0
_GIVE_UP_S: Final = 60.0


@click.command("logs")
@click.argument("replica")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--tail",
    type=click.IntRange(0, 1_000_000),
    default=200,
    show_default=True,
    help="How many lines to begin with.",
)
@click.option("--previous", is_flag=True, help="The run before the present one: --runs-back 1.")
@click.option(
    "--runs-back",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="An earlier run, counted from the present one; the last few are kept.",
)
@click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Of several nodes, which."
)
@session
def logs(
    run: Session,
    replica: str,
    *,
    follow: bool,
    tail: int,
    previous: bool,
    runs_back: int,
    rank: int,
) -> None:
    """What a replica's engine printed.

    \b
    Examples:
      roost ctl logs coder-0
      roost ctl logs coder-0 --previous    # why it ended
    """
    back = runs_back or int(previous)
    query = {"tail": tail, "follow": int(follow), "runs_back": back, "rank": rank}
    path = f"/api/v1/replicas/{part(replica)}/logs"
    if run.as_json:
        with run.client.stream(path, {**query, "follow": 0}, timeout=run.client.timeout) as parts:
            text = "".join(_lines(parts))
        run.json({"replica": replica, "lines": text.splitlines()})
        return
    if not follow:
        with run.client.stream(path, query, timeout=run.client.timeout) as parts:
            _print(_lines(parts))
        return
    _follow(run, path, query)


def _follow(run: Session, path: str, query: dict[str, int]) -> None:
    """Print as it comes; where the connection is lost, say so and go on from now."""
    lost_at: float | None = None
    begun = False
    while True:
        try:
            # Silence is no failure: an engine without requests prints nothing for hours.
            with run.client.stream(path, query, timeout=None) as parts:
                begun, lost_at = True, None
                _print(_lines(parts))
        except Unavailable:
            if not begun or (lost_at is not None and time.monotonic() - lost_at > _GIVE_UP_S):
                raise
        if lost_at is None:
            lost_at = time.monotonic()
            note("-- the log broke off: lines may be missing here; following again")
        query = {**query, "tail": 0}
        time.sleep(_AGAIN_S)


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    """The text so far, whatever bytes it is made of; carriage returns end a line too."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace").decode
    returned = False
    for piece in parts:
        text = decode(piece)
        if returned:
            text = "\r" + text
        # A carriage return at the end of a piece may be half of a line's end.
        returned = text.endswith("\r")
        text = text[:-1] if returned else text
        yield text.replace("\r\n", "\n").replace("\r", "\n")
    yield decode(b"", final=True) + ("\n" if returned else "")


def _print(texts: Iterable[str]) -> None:
    ended = True
    for text in texts:
        if text:
            sys.stdout.write(clean(text, keep="\n\t"))
            sys.stdout.flush()
            ended = text.endswith("\n")
    if not ended:
        sys.stdout.write("\n")
        sys.stdout.flush()
