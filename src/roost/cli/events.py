"""`roost ctl events`: what changed, newest last."""

import click

from roost.cli.output import clock, say, say_table
from roost.cli.session import Session, session


@click.command("events")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="How many, the newest.",
)
@click.option("--before", metavar="ID", help="Only older ones than this event.")
@session
def events(run: Session, *, limit: int, before: str | None) -> None:
    """What changed: when, who, what, to what and why; newest last.

    \b
    Example:
      roost ctl events -n 50
    """
    query: dict[str, object] = {"limit": limit}
    if before is not None:
        query["before"] = before
    answer = run.client.get("/api/v1/events", query)
    if run.as_json:
        run.json(answer)
        return
    if not answer["events"]:
        say("no events yet")
        return
    rows = [
        (
            str(event.get("id")),
            clock(event.get("at")),
            event.get("who"),
            event.get("what"),
            event.get("object"),
            event.get("why"),
        )
        for event in answer["events"]
    ]
    # The API tells the newest first; a screen is read from its end.
    say_table(("ID", "AT", "WHO", "WHAT", "OBJECT", "WHY"), rows[::-1])
