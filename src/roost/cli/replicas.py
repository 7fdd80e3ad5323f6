"""`roost ctl replicas`: every replica, where it is, how busy it is, and why not."""

from collections.abc import Iterable
from typing import Any

import click

from roost.cli.output import count, say, say_table, seconds_since, span
from roost.cli.session import Session, session

COLUMNS = (
    *("REPLICA", "MODEL", "PROFILE", "STATE", "NODE", "RESTARTS", "RUNNING", "WAITING", "KV"),
    *("SINCE", "CAUSE"),
)


@click.command("replicas")
@session
def replicas(run: Session) -> None:
    """Every replica: RUNNING and WAITING are requests, KV is how full its cache is.

    SINCE is how long it has been in its STATE. `-` was not measured. CAUSE of a failed one begins
    with when it is started again; of one that serves it says what its metrics page lacks.

    \b
    Example:
      roost ctl replicas
    """
    answer = run.client.get("/api/v1/replicas")
    if run.as_json:
        run.json(answer)
    elif answer["replicas"]:
        show(answer["replicas"])
    else:
        say("no replicas: roost ctl apply -f catalog.yaml wants some")


def show(rows: Iterable[dict[str, Any]]) -> None:
    """The table of them."""
    say_table(COLUMNS, [_row(replica) for replica in rows])


def _row(replica: dict[str, Any]) -> tuple[str | None, ...]:
    kv = replica.get("kv_usage")
    where = dict.fromkeys(str(shard["node"]) for shard in replica.get("shards") or ())
    return (
        replica["replica"],
        replica.get("model"),
        replica.get("profile"),
        replica.get("state"),
        ",".join(where),
        count(replica.get("restarts")),
        count(replica.get("running")),
        count(replica.get("waiting")),
        None if kv is None else f"{kv * 100:.0f}%",
        span(seconds_since(replica.get("since"))),
        cause(replica),
    )


def cause(replica: dict[str, Any]) -> str | None:
    """Why it is as it is, and of a failed one when it is tried again, which must not be cut off."""
    why = replica.get("cause") or replica.get("because")
    if lacks := replica.get("unmeasured"):
        lacks = f"its metrics page has no {', no '.join(lacks)}"
        why = f"{lacks}; {why}" if why else lacks
    late_s = seconds_since(replica.get("next_try_at"))
    if late_s is None:
        return why
    soon = f"next try in {span(-late_s)}" if late_s < 0 else "next try now"
    return f"{soon}: {why}" if why else soon
