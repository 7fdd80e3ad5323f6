"""How to run llama.cpp's `llama-server`, and how to read what it answers and writes.

The same command line drives a real `llama-server` and `roost.agent.llama_server`, which is
llama.cpp's own server out of the xllamacpp package.
"""

import itertools
import json
import re
from collections.abc import Mapping
from typing import Final

from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ShardSpec
from roost.engines.adapter import Exit, Site
from roost.engines.devices import visible
from roost.engines.exits import Rule, ended_by
from roost.engines.load_names import names_of
from roost.reconcile.engine_life import Ended, Health

DEFAULT_SLOTS: Final = 4
CONTEXT_PER_SLOT: Final = 4096
"""Tokens. `llama-server`'s own default is the model's whole context, which for many models is more
memory than
the weights; a profile that wants more says so in its `args`."""

_METRICS: Final = MetricNames(
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
)

_SAME: Final = {
    "-c": {"-c", "--ctx-size"},
    "-np": {"-np", "--parallel"},
    "-t": {"-t", "--threads"},
    "-ngl": {"-ngl", "--gpu-layers", "--n-gpu-layers"},
}

_PREFIX: Final = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] +(?:(?:srv|cmn|slot|que|res) +)?")


class LlamaCpp:
    """llama.cpp, one process, on the CPU or with one card."""

    engine = Engine.LLAMA_CPP
    downloads = False
    # Newer builds have no KV gauge.
    optional_metrics: frozenset[str] = frozenset(_METRICS.kv_usage)
    slots_path: str | None = "/props"

    def argv(self, spec: ShardSpec, site: Site) -> tuple[str, ...]:
        """Roost's own flags, those of the defaults that the profile's `args` don't set, then the
        `args`.
        """
        slots = spec.profile.slots or _given(spec, "-np") or DEFAULT_SLOTS
        own = ["-m", site.source, "--alias", spec.model]
        own += ["--host", spec.host, "--port", str(spec.port), "--metrics"]
        defaults = {
            "-np": str(slots),
            "-c": str(CONTEXT_PER_SLOT * slots),
            "-t": None if site.threads is None else str(site.threads),
            "-ngl": "0" if spec.profile.gpu_class is None else "999",
        }
        named = {arg.partition("=")[0] for arg in spec.profile.args}
        for flag, value in defaults.items():
            if value is not None and not _SAME[flag] & named:
                own += [flag, value]
        return (*site.program, *own, *spec.profile.args)

    def env(self, spec: ShardSpec, site: Site) -> Mapping[str, str]:
        """The key, and exactly the cards that are this shard's."""
        del site
        # Roost's own come last: a profile's env must not open the engine or show it other cards.
        return {
            **spec.profile.env,
            "LLAMA_API_KEY": spec.key,
            **visible(spec),
        }

    def health_path(self, spec: ShardSpec) -> str:
        """The same for every profile."""
        del spec
        return "/health"

    def health(self, status: int, body: bytes) -> Health:
        """The listener opens before the model is loaded and says 503 until it is."""
        del body
        if status == 200:
            return Health.READY
        return Health.LOADING if status == 503 else Health.BROKEN

    def metrics(self, spec: ShardSpec) -> MetricNames | None:
        """Its own names, if nobody says others."""
        return names_of(spec, _METRICS)

    def slots(self, body: bytes) -> int | None:
        """`total_slots` of `/props`."""
        try:
            total = json.loads(body)["total_slots"]
        except (ValueError, KeyError, TypeError):
            return None
        return total if isinstance(total, int) and total > 0 else None

    def ended(self, exit_: Exit, spec: ShardSpec) -> Ended:
        """By the rules below."""
        return ended_by(
            exit_,
            _rules(spec.profile.source),
            key=spec.key,
            clean=lambda line: _PREFIX.sub("", line),
        )


def _rules(model: str) -> tuple[Rule, ...]:
    """What it writes when it fails; `model` is what the profile calls the file."""
    return (
        Rule(
            pattern=re.compile(r"couldn't bind HTTP server socket, hostname: (.+), port: (\d+)"),
            sentence=lambda m: f"cannot listen on {m[1]} port {m[2]}: it is taken",
            port_taken=True,
        ),
        Rule(
            pattern=re.compile(r"failed to open GGUF file '(.*)' \((.*)\)"),
            sentence=lambda m: f"cannot open the model file {m[1]}: {m[2].lower()}",
        ),
        Rule(
            pattern=re.compile(r"invalid magic characters"),
            sentence=lambda _: f"{model} is not a GGUF file (invalid magic characters)",
        ),
        Rule(
            pattern=re.compile(r"failed to read magic"),
            sentence=lambda _: f"{model} is empty or a directory (failed to read magic)",
        ),
        Rule(
            pattern=re.compile(
                r"GGUF file is version (\d+) but .* only supports up to version (\d+)"
            ),
            sentence=lambda m: (
                f"{model} is of GGUF version {m[1]}, and this build of llama.cpp knows up to {m[2]}"
            ),
        ),
        Rule(
            pattern=re.compile(r"gguf_init_from_\w+: (failed to read .*)"),
            sentence=lambda m: f"{model} is truncated or corrupt: {m[1]}",
        ),
        Rule(
            pattern=re.compile(r"(tensor '.*') data is not within the file bounds"),
            sentence=lambda m: f"{model} is truncated or corrupt: {m[1]} lies outside of it",
        ),
        Rule(
            pattern=re.compile(r"failed to allocate (.+ buffer of size \d+)"),
            sentence=lambda m: f"out of memory: cannot allocate {m[1]}",
        ),
        Rule(
            pattern=re.compile(r"failed to allocate (buffer for kv cache|compute .*buffers?)"),
            sentence=lambda m: f"out of memory: cannot allocate {m[1]}",
        ),
        Rule(
            pattern=re.compile(
                r"std::bad_alloc|^MemoryError|unable to allocate|ggml_aligned_malloc: insufficient"
            ),
            sentence=lambda m: f"out of memory: {m[0]}",
        ),
        Rule(
            pattern=re.compile(r"unknown model architecture: ('.*')"),
            sentence=lambda m: (
                f"this build of llama.cpp does not know the architecture {m[1]} of {model}"
            ),
        ),
        Rule(
            pattern=re.compile(r"error: invalid argument: (.*)"),
            sentence=lambda m: (
                f"llama-server has no argument {m[1]}: take it out of the profile's args"
            ),
        ),
        Rule(
            pattern=re.compile(r"error while handling argument (.*)"),
            sentence=lambda m: f"llama-server cannot use the argument {m[1]}",
        ),
        Rule(
            pattern=re.compile(r"error loading model: (.*)"),
            sentence=lambda m: f"cannot load {model}: {m[1]}",
        ),
        Rule(pattern=re.compile(r"GGML_ASSERT\(.*\) failed"), sentence=lambda m: m[0]),
        Rule(
            # What a signal makes it write; the first of the two also after each failure above.
            pattern=re.compile(r"cleaning up before exit"),
            sentence=lambda _: _SIGNALLED,
            status=0,
        ),
        Rule(
            pattern=re.compile(r"Received second interrupt"),
            sentence=lambda _: _SIGNALLED,
        ),
    )


_SIGNALLED: Final = "somebody ended it (SIGTERM or SIGINT)"


def _given(spec: ShardSpec, flag: str) -> int | None:
    """The number that the profile's own `args` give `flag`, if they do."""
    value: str | None = None
    args = spec.profile.args
    for arg, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        name, _, inline = arg.partition("=")
        if name in _SAME[flag]:
            value = inline or following
    return int(value) if value is not None and value.isdigit() and int(value) > 0 else None
