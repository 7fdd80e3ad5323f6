"""What an agent and the server say to each other, as JSON over HTTP
(`/agent/v1/{join,report,desired,orders,logs}`).

Unknown keys are ignored and absent ones take their default ("not reported"), so that either side
may be a version older or newer.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from roost.domain.node import Facts
from roost.domain.profile import Engine
from roost.domain.replica import Desired, ObservedShard, ReplicaState

PROTOCOL: Final = 1
MAX_REPORT_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """`POST /agent/v1/join`: a token buys a credential of the node's own."""

    token: str = field(repr=False)
    name: str
    """The name the node would like; host name by default."""
    identity: str
    """Made once by the agent and kept: survives renames and address changes. Two machines never
    share it."""
    boot_id: str | None = None
    agent_version: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to `Join`."""

    fleet: str
    node: str
    credential: str = field(repr=False)
    """Bearer token, good only for this node's reports and desired state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`POST /agent/v1/report`: everything the agent sees, whole, each interval."""

    identity: str
    sequence: int
    """Grows with each report of one agent process; an older one that comes late changes nothing."""
    started_at: float
    """When this agent process started (epoch seconds): orders sequences over restarts."""
    facts: Facts
    shards: tuple[ObservedShard, ...] = ()
    problems: tuple[str, ...] = ()
    """Each source of facts that failed, with its cause."""
    agent_version: str = ""
    protocol: int = PROTOCOL
    boot_id: str | None = None
    hostname: str | None = None
    address: str | None = None
    """Where engines of this node listen: what the server puts into `ShardSpec.host`."""
    port_range: tuple[int, int] | None = None
    """First and last port engines may use; below the ephemeral range."""
    ports_taken: tuple[int, ...] = ()
    """Ports of that range found in use by somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The answer to `Report`."""

    report_interval_s: float = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrder:
    """Somebody asked for a shard's log; the agent sends it as body of `POST /agent/v1/logs/ID`."""

    id: str
    placement: str
    rank: int = 0
    tail_lines: int = 200
    follow: bool = False
    runs_back: int = 0
    """0: the present run, 1: the one before, and so on."""
    previous: bool = False
    """`runs_back` is not 0; for agents that know one earlier run alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The answer to `GET /agent/v1/orders?wait=S`: what is asked of the agent once, apart from
    desired state.
    """

    logs: tuple[LogOrder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """RFC 9457 `application/problem+json`, as the management and the agent API answer errors."""

    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    problems: tuple[str, ...] = ()


encode: Final = msgspec.json.encode
decode_join: Final = msgspec.json.Decoder(Join).decode
decode_joined: Final = msgspec.json.Decoder(Joined).decode
decode_reported: Final = msgspec.json.Decoder(Reported).decode
decode_desired: Final = msgspec.json.Decoder(Desired).decode
decode_orders: Final = msgspec.json.Decoder(Orders).decode
decode_problem: Final = msgspec.json.Decoder(Problem).decode

_decode_report: Final = msgspec.json.Decoder(Report).decode


def decode_report(body: bytes) -> Report:
    """A report; raises `msgspec.DecodeError` of what is none.

    A word that only a newer agent knows must not silence its node: a shard in an unknown state
    exists and is not known to answer, and an engine of an unknown kind can't be adopted.
    """
    try:
        return _decode_report(body)
    except msgspec.ValidationError:
        return msgspec.convert(_in_known_words(msgspec.json.decode(body)), Report)


def _in_known_words(report: Any) -> Any:
    shards = report.get("shards") if isinstance(report, dict) else None
    for shard in shards if isinstance(shards, list) else ():
        if not isinstance(shard, dict):
            continue
        if isinstance(shard.get("state"), str) and shard["state"] not in _STATES:
            shard["state"] = ReplicaState.STARTING
        match shard.get("spec"):
            case {"profile": {"engine": str(engine)}} if engine not in _ENGINES:
                shard["spec"] = None
    return report


_STATES: Final = frozenset(state.value for state in ReplicaState)
_ENGINES: Final = frozenset(engine.value for engine in Engine)
