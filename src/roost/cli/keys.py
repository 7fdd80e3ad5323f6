"""`roost ctl keys`: what clients of the gateway hold."""

import click

from roost.cli.client import part
from roost.cli.output import clock, note, say, say_table
from roost.cli.session import Session, session


@click.group("keys")
def keys() -> None:
    """The gateway's keys; a key's text is shown once, when it is made.

    \b
    Example:
      roost ctl keys create laptop
    """


@keys.command("create")
@click.argument("name")
@session
def create(run: Session, name: str) -> None:
    """Make a key and print it, this once; only the key is on standard output.

    \b
    Example:
      ROOST_KEY=$(roost ctl keys create laptop)
    """
    answer = run.client.post("/api/v1/keys", {"name": name})
    if run.as_json:
        run.json(answer)
        return
    say(answer["key"])
    note(f"key {name} is good now and is not shown again; revoke it: roost ctl keys revoke {name}")


@keys.command("list")
@session
def list_keys(run: Session) -> None:
    """The keys by name; never their text.

    \b
    Example:
      roost ctl keys list
    """
    answer = run.client.get("/api/v1/keys")
    if run.as_json:
        run.json(answer)
        return
    if not answer["keys"]:
        say("no keys yet: roost ctl keys create NAME")
        return
    say_table(
        ("NAME", "ENDING", "CREATED"),
        [(key["name"], key.get("ending"), clock(key.get("created_at"))) for key in answer["keys"]],
    )


@keys.command("revoke")
@click.argument("name")
@session
def revoke(run: Session, name: str) -> None:
    """Make a key good for nothing.

    \b
    Example:
      roost ctl keys revoke laptop
    """
    answer = run.client.delete(f"/api/v1/keys/{part(name)}")
    if run.as_json:
        run.json(answer)
        return
    say(f"key {name} is revoked")


# By the word that other commands use for it, too.
keys.add_command(
    click.Command("delete", params=revoke.params, callback=revoke.callback, hidden=True)
)
