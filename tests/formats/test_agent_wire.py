"""Reports of agents that are newer than this server."""

import json
from typing import Any

import msgspec
import pytest

from engines.specs import spec
from roost.domain.profile import Engine
from roost.domain.replica import ReplicaState
from roost.formats import agent_wire as wire


def body(**shard: Any) -> bytes:
    seen = {"placement": "p1", "rank": 0, "replica": "m-0", "state": "ready", "since": 1.0}
    report = {"identity": "i", "sequence": 1, "started_at": 1.0, "facts": {}}
    return json.dumps({**report, "shards": [{**seen, **shard}, seen]}).encode()


def test_a_state_that_is_not_known_here_is_one_that_is_not_ready() -> None:
    first, second = wire.decode_report(body(state="hibernating")).shards
    assert first.state is ReplicaState.STARTING
    assert second.state is ReplicaState.READY


def test_an_engine_that_is_not_known_here_is_reported_without_what_it_was_started_with() -> None:
    known = json.loads(wire.encode(spec(Engine.VLLM)))
    (first, _) = wire.decode_report(body(spec=known)).shards
    assert first.spec == spec(Engine.VLLM)
    known["profile"]["engine"] = "vllm2"
    (first, _) = wire.decode_report(body(spec=known)).shards
    assert (first.spec, first.state) == (None, ReplicaState.READY)


@pytest.mark.parametrize(
    "wrong",
    [
        body(state=7),
        body(rank="first"),
        body(spec={"profile": {"engine": 1}}),
        b'{"shards": 3}',
        b'{"shards": [3]}',
        b"[]",
        b"7",
    ],
)
def test_what_is_wrong_in_any_version_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_report(wrong)
