"""Replicas whose load is not measured are routed to like any other (B035, B036)."""

import random
from collections import Counter
from pathlib import Path

from gateway.twins import (
    answer,
    ask,
    chat,
    completion,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
    snapshot,
)
from roost.formats.routing import Route, RoutedModel
from roost.gateway.limits import Limits
from roost.gateway.table import Model, RoutingTable


def model_of(*routes: Route) -> Model:
    table = RoutingTable(Limits(), lambda: 0.0, random.Random(7))
    table.adopt(snapshot(RoutedModel(name="qwen", replicas=len(routes), routes=routes)))
    return table.models["qwen"]


def route(name: str, **measured: float | None) -> Route:
    return Route(replica=name, placement=name, host="127.0.0.1", port=1, key="k", **measured)  # type: ignore[arg-type]  # by name


def held(model: Model, requests: int) -> Counter[str]:
    """Where so many requests go of which none ends."""
    taken = [model.take() for _ in range(requests)]
    return Counter(endpoint.route.replica for endpoint in taken if endpoint is not None)


def test_a_replica_whose_kv_is_not_known_is_not_preferred_to_those_whose_is() -> None:
    """B035: 100 requests on one at 0.95, one at 0.10, and one that does not say."""
    where = held(
        model_of(
            route("a", running=1, waiting=0, kv_usage=0.95),
            route("b", running=1, waiting=0, kv_usage=0.10),
            route("c", running=1, waiting=0, kv_usage=None),
        ),
        100,
    )
    assert sum(where.values()) == 100
    assert max(where.values()) - min(where.values()) <= 4


def test_a_replica_that_has_measured_nothing_yet_gets_its_share() -> None:
    """B036: the second of two; by what is in flight there, as of any other."""
    model = model_of(route("old", running=3, waiting=1, kv_usage=0.5, slots=60), route("new"))
    where = held(model, 100)
    assert where == {"old": 50, "new": 50}
    # When it has, nothing else changes.
    known = (route("old", running=3, slots=60), route("new", running=50, waiting=0, kv_usage=0.4))
    model.update(
        RoutedModel(name="qwen", replicas=2, routes=known),
        lambda routed: model_of(*routed.routes).endpoints,
    )
    assert held(model, 10) == {"old": 5, "new": 5}


@in_loop
async def test_the_only_replica_of_a_model_is_sent_its_first_request_unmeasured(
    tmp_path: Path,
) -> None:
    """B036: no error to the client."""
    async with engine(answer(completion())) as one:
        fresh = qwen(one)
        assert (fresh.routes[0].running, fresh.routes[0].slots) == (None, None)
        async with gateway(tmp_path, fresh) as it:
            assert (await ask(it, request(chat()))).status == 200
        assert len(one.received) == 1
