"""Under which names an engine's load is found: its own, the profile's, or the server's settings."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from roost.domain.profile import MetricNames
from roost.domain.replica import ShardSpec

VLLM: Final = MetricNames(
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)


def names_of(spec: ShardSpec, own: MetricNames | None) -> MetricNames | None:
    """The server's settings win over the profile, and that over the engine's `own`."""
    said = spec.metrics or spec.profile.metrics
    return own if said is None else completed(said)


def completed(said: MetricNames) -> MetricNames:
    """A mapping that names its own `running` is a complete statement: what it leaves blank is not
    measured. Another one, an empty one too, means vLLM's names where it is blank.
    """
    if said.running:
        return said
    return replace(
        VLLM,
        path=said.path,
        waiting=said.waiting or VLLM.waiting,
        kv_usage=said.kv_usage or VLLM.kv_usage,
    )


def missing(
    names: MetricNames, page: Collection[str], *, optional: Collection[str] = ()
) -> tuple[str, ...]:
    """What is looked for and is on no line of a page that has series of the names in `page`.

    One for each number, `a or b` where it may be called either way. Of `optional` names an engine's
    page may have none.
    """
    looked_for = (names.running, names.waiting, names.kv_usage)
    return tuple(
        " or ".join(several)
        for several in looked_for
        if any(name not in optional for name in several)
        and not any(name in page for name in several)
    )
