"""`roost ctl orphans`: engines that run and that the server knows no reason for."""

import click

from roost.cli.output import clean, say, say_table
from roost.cli.session import Session, session


@click.command("orphans")
@session
def orphans(run: Session) -> None:
    """Engines that run although nothing here wants them; nothing stops them unasked.

    They appear when the server's database is new or restored. Applying a catalog that names their
    model takes them over as they run.

    \b
    Example:
      roost ctl orphans
    """
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
