"""How to run a program of the operator's own that speaks the OpenAI API: engine `command`."""

import re
from collections.abc import Mapping
from typing import Final

from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ShardSpec
from roost.engines.adapter import Exit, Site
from roost.engines.devices import cards, visible
from roost.engines.exits import Rule, ended_by
from roost.engines.load_names import names_of
from roost.reconcile.engine_life import Ended, Health

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


class Command:
    """One process, on the CPU or with cards; everything about it is said by the profile."""

    engine = Engine.COMMAND
    downloads = True
    optional_metrics: frozenset[str] = frozenset()
    slots_path: str | None = None

    def argv(self, spec: ShardSpec, site: Site) -> tuple[str, ...]:
        """The profile's `command` and `args`, each word filled in by itself: what is filled in is
        never split, looked through for more braces, or read by a shell.
        """
        known = {
            "host": spec.host,
            "port": str(spec.port),
            "model": str(spec.model),
            "source": site.source,
            "slots": "" if spec.profile.slots is None else str(spec.profile.slots),
            "gpus": cards(spec),
        }
        words = (*(spec.profile.command or ()), *spec.profile.args)
        # Unknown braces stay: the catalog's rules have refused those that look like a placeholder.
        return tuple(_PLACEHOLDER.sub(lambda m: known.get(m[1], m[0]), word) for word in words)

    def env(self, spec: ShardSpec, site: Site) -> Mapping[str, str]:
        """The key, and exactly the cards that are this shard's."""
        del site
        return {
            **spec.profile.env,
            "ROOST_ENGINE_API_KEY": spec.key,
            **visible(spec),
        }

    def health_path(self, spec: ShardSpec) -> str:
        """As the profile says."""
        return spec.profile.health

    def health(self, status: int, body: bytes) -> Health:
        """200 is ready and 503 is loading, whatever is in the body."""
        del body
        if status == 200:
            return Health.READY
        return Health.LOADING if status == 503 else Health.BROKEN

    def metrics(self, spec: ShardSpec) -> MetricNames | None:
        """Those that the profile names, or none."""
        return names_of(spec, None)

    def slots(self, body: bytes) -> int | None:
        """Only the profile says."""
        del body
        return None

    def ended(self, exit_: Exit, spec: ShardSpec) -> Ended:
        """By its status and the last line it wrote; a taken port only where a line names it."""
        return ended_by(exit_, (_port_taken(spec),), key=spec.key, clean=lambda line: line)


def _port_taken(spec: ShardSpec) -> Rule:
    """A line that doesn't name the port may be about another one, which a new one wouldn't cure."""
    taken = r"address (?:is )?already in use|EADDRINUSE"
    port = rf"(?<!\d){spec.port}(?!\d)"
    return Rule(
        pattern=re.compile(rf"(?:{taken}).*{port}|{port}.*(?:{taken})", re.IGNORECASE),
        sentence=lambda _: f"cannot listen on {spec.host} port {spec.port}: it is taken",
        port_taken=True,
    )
