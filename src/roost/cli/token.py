"""`roost ctl token`: what lets a machine join the fleet."""

import re
from typing import Final
from urllib.parse import urlsplit

import click

from roost.cli.client import part
from roost.cli.output import clock, note, say, say_table
from roost.cli.session import Session, session

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """`90`, `30s`, `15m`, `1h`, `2d` as seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Seconds, more than none."""
        match = re.fullmatch(r"(\d{1,9})([smhd]?)", str(value))
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a duration: as 30s, 15m, 1h or 2d", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


@click.group("token")
def token() -> None:
    """Tokens that let nodes join; each expires, and is good for so many machines.

    \b
    Example:
      roost ctl token create --ttl 1h
    """


@token.command("create")
@click.option(
    "--ttl", type=Duration(), default="1h", show_default=True, help="How long it is good."
)
@click.option(
    "--uses",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="How many machines may join.",
)
@session
def create(run: Session, *, ttl: int, uses: int) -> None:
    """Make a token and print what to run on the new machine, this once.

    \b
    Example:
      roost ctl token create --uses 8
    """
    answer = run.client.post("/api/v1/tokens", {"ttl_s": ttl, "uses": uses})
    if run.as_json:
        run.json(answer)
        return
    url = run.client.endpoint.url
    say(f"roost agent --server {url} --join {answer['token']}")
    until = clock(answer.get("expires_at"))
    note(
        f"good for {'1 machine' if uses == 1 else f'{uses} machines'}"
        + (f" until {until}" if until else "")
        + "; it is not shown again"
    )
    if (urlsplit(url).hostname or "").startswith(("127.", "localhost", "::1")):
        note(
            "the server answers on this machine only: for another one, put the address that "
            "reaches it from there after --server"
        )


@token.command("list")
@session
def list_tokens(run: Session) -> None:
    """The tokens that are still good; never their text.

    \b
    Example:
      roost ctl token list
    """
    answer = run.client.get("/api/v1/tokens")
    if run.as_json:
        run.json(answer)
        return
    if not answer["tokens"]:
        say("no tokens: roost ctl token create")
        return
    say_table(
        ("ID", "USES", "EXPIRES"),
        [
            (
                made["id"],
                str(made.get("uses", "-")),
                clock(made.get("expires_at")),
            )
            for made in answer["tokens"]
        ],
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@session
def revoke(run: Session, token_id: str) -> None:
    """Let nobody else join with a token; who joined stays.

    \b
    Example:
      roost ctl token revoke t-3f9a
    """
    answer = run.client.delete(f"/api/v1/tokens/{part(token_id)}")
    if run.as_json:
        run.json(answer)
        return
    say(f"token {token_id} is revoked")


# By the word that other commands use for it, too.
token.add_command(
    click.Command("delete", params=revoke.params, callback=revoke.callback, hidden=True)
)
