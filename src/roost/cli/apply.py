"""`roost ctl apply`: want what a catalog file says, and wait for it if asked."""

from typing import Any

import click

from roost.cli.files import read_text
from roost.cli.output import note, plural, say
from roost.cli.session import Session, session


@click.command("apply")
@click.option("-f", "--file", required=True, metavar="FILE", help="The catalog; - is stdin.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--wait", is_flag=True, help="Return when every replica of its models is ready.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --wait waits.",
)
@session
def apply(run: Session, *, file: str, dry_run: bool, wait: bool, timeout: float) -> int:
    """Want what a catalog file says; models that it doesn't name stay as they are.

    A file with a mistake is refused whole. With --wait the exit status is 0 when all its replicas
    are ready, 1 when one keeps failing, 4 when one fits nowhere, 6 when the time is up.

    \b
    Examples:
      roost ctl apply -f catalog.yaml --wait --timeout 300
      roost ctl apply -f - --dry-run <catalog.yaml
    """
    text, name = read_text(file)
    answer = run.client.apply(text, filename=name, dry_run=dry_run)
    if not run.as_json:
        _say_changes(answer["changes"], dry_run=dry_run)
    if not wait or dry_run:
        if run.as_json:
            run.json(answer)
        return 0
    # Late: an apply that doesn't wait needs none of it.
    from roost.cli.waiting import Status, await_ready

    told = note if not run.as_json else _silent
    verdict = await_ready(run.client, answer["changes"], timeout=timeout, tell=told)
    if run.as_json:
        ready = verdict.status is Status.READY
        run.json({**answer, "ready": ready, "replicas": list(verdict.replicas)})
    for line in verdict.lines:
        if run.as_json or verdict.status is not Status.READY:
            note(line)
        else:
            say(line)
    return verdict.status.exit_code


def _silent(_line: str) -> None:
    """With `-o json` nothing is said while waiting."""


def _say_changes(changes: list[dict[str, Any]], *, dry_run: bool) -> None:
    if not changes:
        say("the catalog names no models: nothing changes")
    for change in changes:
        say(f"{change['model']} {'would be ' if dry_run else ''}{change['change']}")
    if dry_run:
        changed = sum(change["change"] != "unchanged" for change in changes)
        say(f"nothing was applied: {plural(changed, 'model')} would change")
