"""How to run SGLang, and how to read what it answers and writes.

Read from SGLang 0.5.23; not run, since it needs a GPU.
"""

import re
from collections.abc import Mapping
from typing import Final

from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ShardSpec
from roost.engines.adapter import Exit, Site, gives
from roost.engines.devices import meeting_of, network, visible
from roost.engines.exits import Rule, ended_by
from roost.engines.load_names import names_of
from roost.engines.torch_logs import (
    LOST,
    OUT_OF_MEMORY,
    another_gone,
    damaged,
    meeting_failed,
    no_such_flag,
    no_tokenizer,
    port_taken,
)
from roost.reconcile.engine_life import Ended, Health

METRICS: Final = MetricNames(
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
)

LAUNCH: Final = (
    "import os, runpy, sys; "
    "sys.argv[1:1] = ['--api-key', os.environ['ROOST_ENGINE_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)
"""SGLang takes its key as an argument alone. Added inside the process it is on no command line that
others can read."""

# `[2026-10-11 12:34:56 TP0] ` and what of it there is.
_PREFIX: Final = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ")


# Its schedulers send it SIGQUIT when they fail, and then it kills all of its processes and itself.
_ENDS_ITSELF: Final = re.compile(r"Received sigquit from a child process|SIGQUIT received\.")


class Sglang:
    """One process on each node; rank 0 has the API, the others answer nobody."""

    engine = Engine.SGLANG
    downloads = True
    optional_metrics: frozenset[str] = frozenset()
    slots_path: str | None = None

    def argv(self, spec: ShardSpec, site: Site) -> tuple[str, ...]:
        """Roost's own flags, then the profile's `args`; `site.program` is a Python that has it."""
        profile = spec.profile
        own = ["--model-path", site.source, "--served-model-name", spec.model]
        own += ["--host", spec.host, "--port", str(spec.port), "--enable-metrics"]
        own += ["--tp-size", str(profile.tensor_parallel)]
        own += ["--pp-size", str(profile.pipeline_parallel)]
        own += _group(spec)
        if profile.slots is not None and not gives(profile.args, "--max-running-requests"):
            own += ["--max-running-requests", str(profile.slots)]
        return (*site.program, "-c", LAUNCH, *own, *profile.args)

    def env(self, spec: ShardSpec, site: Site) -> Mapping[str, str]:
        """The key, exactly the shard's cards, and its own address for the other ranks."""
        return {
            # Else every health check generates a token, and waits behind those that work.
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            **network(spec, site.interface),
            **spec.profile.env,
            "ROOST_ENGINE_API_KEY": spec.key,
            "SGLANG_HOST_IP": spec.host,
            **visible(spec),
        }

    def health_path(self, spec: ShardSpec) -> str | None:
        """Of rank 0."""
        return "/health" if spec.rank == 0 else None

    def health(self, status: int, body: bytes) -> Health:
        """503 while it starts."""
        del body
        if status == 200:
            return Health.READY
        return Health.LOADING if status == 503 else Health.BROKEN

    def metrics(self, spec: ShardSpec) -> MetricNames | None:
        """Of rank 0."""
        return names_of(spec, METRICS) if spec.rank == 0 else None

    def slots(self, body: bytes) -> int | None:
        """Only the profile says."""
        del body
        return None

    def ended(self, exit_: Exit, spec: ShardSpec) -> Ended:
        """By the rules below."""
        return ended_by(
            exit_,
            _rules(spec),
            key=spec.key,
            clean=lambda line: _PREFIX.sub("", line),
            ends_itself=_ENDS_ITSELF,
        )


def _group(spec: ShardSpec) -> list[str]:
    """The same on every rank, but for its number."""
    if (meeting := meeting_of(spec)) is None:
        return []
    host, port = meeting
    head = f"[{host}]" if ":" in host else host
    return [
        *("--nnodes", str(len(spec.peers)), "--node-rank", str(spec.rank)),
        *("--dist-init-addr", f"{head}:{port}"),
    ]


def _rules(spec: ShardSpec) -> tuple[Rule, ...]:
    """What it writes when it fails, the telling lines before those that follow from them."""
    model = spec.profile.source
    return (
        no_such_flag("sglang"),
        port_taken(spec),
        meeting_failed(spec),
        Rule(
            pattern=re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"),
            sentence=lambda _: (
                "out of GPU memory: the model leaves none for the KV cache; raise "
                "--mem-fraction-static in args, or use larger or more cards"
            ),
        ),
        OUT_OF_MEMORY,
        Rule(
            pattern=re.compile(
                r"Repo id must be|HFValidationError|does not appear to have a file named|"
                r"is not a local folder and is not a valid model identifier"
            ),
            sentence=lambda _: f"{model} is no model that SGLang can load",
        ),
        damaged(model),
        no_tokenizer(model),
        Rule(
            pattern=re.compile(r"No CUDA GPUs are available|no CUDA-capable device"),
            sentence=lambda _: "SGLang sees no GPU: its driver or its build does not fit this node",
        ),
        Rule(
            pattern=re.compile(
                rf"^(?!.*(?:{LOST}))"
                r"((?:\w+\.)*(?:ValueError|OSError|RuntimeError|ImportError): .+)"
            ),
            sentence=lambda m: m[1],
        ),
        Rule(
            pattern=re.compile(rf"^(?!.*(?:{LOST}))((?:\w+\.)*\w+(?:Error|Exception): .+)"),
            sentence=lambda m: m[1],
        ),
        another_gone(spec),
    )
