"""`roost ctl models` and `delete`: what is served, and what is to be no more."""

import click

from roost.cli.client import part
from roost.cli.output import say, say_table
from roost.cli.session import Session, session

COLUMNS = ("NAME", "READY", "PRIORITY", "PROFILES", "ALIASES", "STATE")


@click.command("models")
@session
def models(run: Session) -> None:
    """The models applied: READY is how many of the wanted replicas serve.

    \b
    Example:
      roost ctl models
    """
    answer = run.client.get("/api/v1/models")
    if run.as_json:
        run.json(answer)
        return
    if not answer["models"]:
        say("no models yet: roost ctl apply -f catalog.yaml")
        return
    say_table(
        COLUMNS,
        [
            (
                model["model"],
                f"{model.get('ready', '-')}/{model.get('replicas', '-')}",
                str(model.get("priority", "-")),
                ",".join(model.get("profiles") or ()),
                ",".join(model.get("aliases") or ()),
                model.get("state"),
            )
            for model in answer["models"]
        ],
    )


@click.command("delete")
@click.argument("model")
@session
def delete(run: Session, model: str) -> None:
    """Stop serving a model: its replicas finish what they have and stop.

    \b
    Example:
      roost ctl delete coder
    """
    answer = run.client.delete(f"/api/v1/models/{part(model)}")
    if run.as_json:
        run.json(answer)
        return
    say(f"{model} is no longer wanted: its replicas finish what they have and stop")
