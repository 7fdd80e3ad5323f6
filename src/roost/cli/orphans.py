"""`roost ctl orphans`: engines that run and that the server knows no reason for; and their end."""

import sys
from typing import Final

import click

from roost.cli.output import clean, plural, say, say_table
from roost.cli.session import Session, session
from roost.errors import Unusable

_SAYS: Final = {
    "ordered": "finishes what it has and stops",
    "stopping": "was told to stop before",
    "kept": "is kept: its model is in the catalog and takes it over",
}


@click.group("orphans", invoke_without_command=True)
@session
def orphans(run: Session) -> None:
    """Engines that run although nothing here wants them; nothing stops them unasked.

    They appear when the server's database is new or restored. Applying a catalog that names their
    model takes them over as they run; `reap` stops them.

    \b
    Example:
      roost ctl orphans
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    answer = run.client.get("/api/v1/orphans")
    if run.as_json:
        run.json(answer)
        return
    found = answer["orphans"]
    if not found:
        say("no orphans: every engine that runs is wanted")
        return
    say_table(
        ("REPLICA", "MODEL", "PROFILE", "NODE", "PLACEMENT"),
        [
            (
                orphan.get("replica"),
                orphan.get("model"),
                orphan.get("profile"),
                ",".join(str(shard.get("node")) for shard in orphan.get("shards") or ()),
                orphan.get("placement"),
            )
            for orphan in found
        ],
    )
    named = sorted({clean(str(orphan["model"])) for orphan in found if orphan.get("model")})
    if named:
        say(f"to keep them: roost ctl apply -f a catalog with {', '.join(named)}")
    say("to stop one: roost ctl orphans reap PLACEMENT")


@orphans.command("reap")
@click.argument("placements", nargs=-1, metavar="PLACEMENT...")
@click.option("--all", "every", is_flag=True, help="All that no model in the catalog takes over.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@session
def reap(run: Session, *, placements: tuple[str, ...], every: bool, yes: bool) -> None:
    """Stop orphans: they finish what they have, and their GPUs are free once they are gone.

    Of those named all are stopped or none. One that stops already stays so; exit status 3: there
    is none of that placement, or it is gone. A model that is in the catalog is stopped by
    `roost ctl delete`.

    \b
    Example:
      roost ctl orphans reap p-1f9c2e --yes
    """
    if every == bool(placements):
        raise Unusable(
            "name the orphans to reap, or say --all",
            hint="roost ctl orphans",
        )
    if not yes:
        _ask("all orphans" if every else ", ".join(placements), as_json=run.as_json)
    told = {"all": True} if every else {"placements": list(placements)}
    answer = run.client.post("/api/v1/orphans/reap", told)
    if run.as_json:
        run.json(answer)
        return
    for one in answer["reaped"]:
        where = ", ".join(str(node) for node in one.get("nodes") or ())
        says = _SAYS.get(one["outcome"], one["outcome"])
        say(f"{one['placement']} ({one['replica']} on {where}) {says}")
    ordered = sum(one["outcome"] == "ordered" for one in answer["reaped"])
    if ordered:
        say(f"{plural(ordered, 'orphan')} told to stop (watch: roost ctl replicas)")
    elif not answer["reaped"]:
        say("no orphans: nothing was stopped")


def _ask(what: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise Unusable(
            f"stopping {what} cannot be undone, and nobody is here to ask",
            hint="say --yes",
        )
    click.confirm(f"stop {clean(what)}?", abort=True, err=True)
