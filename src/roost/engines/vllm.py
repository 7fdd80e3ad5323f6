"""How to run vLLM (0.10 and later), and how to read what it answers and writes.

Facts measured with vLLM 0.32 on a CPU; several nodes without Ray, by its own `mp` executor.
"""

import re
from collections.abc import Mapping
from typing import Final

from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ShardSpec
from roost.engines.adapter import Exit, Site, gives
from roost.engines.devices import meeting_of, network, visible
from roost.engines.exits import Rule, ended_by
from roost.engines.load_names import VLLM, names_of
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

# `(EngineCore pid=123) ERROR 10-11 12:34:56 [core.py:778] ` and what of it there is.
_PREFIX: Final = re.compile(
    r"^(?:\(\S+ pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S+\] )?)?"
)

# A line that doesn't say what follows when another of its processes, or another rank, has failed.
_ROOT: Final = (
    rf"^(?!.*(?:{LOST}|"
    r": (?:Engine ?[Cc]ore |Executor failed|Worker failed with error |WorkerProc )))"
)


class Vllm:
    """One process on each node; rank 0 has the API, the others answer nobody."""

    engine = Engine.VLLM
    downloads = True
    optional_metrics: frozenset[str] = frozenset()
    slots_path: str | None = None

    def argv(self, spec: ShardSpec, site: Site) -> tuple[str, ...]:
        """Roost's own flags, then the profile's `args`. The key is in the environment."""
        profile = spec.profile
        own = ["serve", site.source, "--served-model-name", spec.model]
        own += ["--tensor-parallel-size", str(profile.tensor_parallel)]
        own += ["--pipeline-parallel-size", str(profile.pipeline_parallel)]
        own += _group(spec)
        if spec.rank == 0:
            own += ["--host", spec.host, "--port", str(spec.port)]
        else:
            own.append("--headless")
        if profile.slots is not None and not gives(profile.args, "--max-num-seqs"):
            own += ["--max-num-seqs", str(profile.slots)]
        return (*site.program, *own, *profile.args)

    def env(self, spec: ShardSpec, site: Site) -> Mapping[str, str]:
        """The key, exactly the shard's cards, and its own address for the other ranks."""
        return {
            # It would tell its makers of every start.
            "VLLM_NO_USAGE_STATS": "1",
            **network(spec, site.interface),
            **spec.profile.env,
            "VLLM_API_KEY": spec.key,
            "VLLM_HOST_IP": spec.host,
            **visible(spec),
        }

    def health_path(self, spec: ShardSpec) -> str | None:
        """Of rank 0."""
        return "/health" if spec.rank == 0 else None

    def health(self, status: int, body: bytes) -> Health:
        """It listens once it is ready; 503 is an engine that died behind its API."""
        del body
        return Health.READY if status == 200 else Health.BROKEN

    def metrics(self, spec: ShardSpec) -> MetricNames | None:
        """Older versions call the KV gauge otherwise."""
        return names_of(spec, VLLM) if spec.rank == 0 else None

    def slots(self, body: bytes) -> int | None:
        """It doesn't say."""
        del body
        return None

    def ended(self, exit_: Exit, spec: ShardSpec) -> Ended:
        """By the rules below: its last line is never the cause."""
        return ended_by(exit_, _rules(spec), key=spec.key, clean=lambda line: _PREFIX.sub("", line))


def _group(spec: ShardSpec) -> list[str]:
    """The same on every rank, but for its number."""
    if (meeting := meeting_of(spec)) is None:
        return []
    host, port = meeting
    return [
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", str(len(spec.peers)), "--node-rank", str(spec.rank)),
        *("--master-addr", host, "--master-port", str(port)),
    ]


def _rules(spec: ShardSpec) -> tuple[Rule, ...]:
    """What it writes when it fails, the telling lines before those that follow from them."""
    model = spec.profile.source
    return (
        no_such_flag("vllm"),
        port_taken(spec),
        meeting_failed(spec),
        Rule(
            pattern=re.compile(r"(Free memory on device .*? utilization \(.*?\))"),
            sentence=lambda m: f"out of GPU memory: {m[1]}",
        ),
        Rule(
            pattern=re.compile(r"No available memory for the cache blocks"),
            sentence=lambda _: (
                "out of GPU memory: the model leaves none for the KV cache; raise "
                "--gpu-memory-utilization in args, or use larger or more cards"
            ),
        ),
        Rule(
            pattern=re.compile(
                r"(?:model's|models) max seq len \((\d+)\).*?\(([\d.]+) GiB.*?"
                r"larger than the available KV cache memory \(([\d.]+) GiB\)"
            ),
            sentence=lambda m: (
                f"out of GPU memory: a context of {m[1]} tokens needs {m[2]} GiB of KV cache, and "
                f"{m[3]} GiB are left; set --max-model-len in args"
            ),
        ),
        Rule(
            pattern=re.compile(r"less than requested memory for kv|Available memory on node .*"),
            sentence=lambda m: f"out of memory: {m[0]}",
        ),
        OUT_OF_MEMORY,
        Rule(
            pattern=re.compile(r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-"),
            sentence=lambda _: (
                "this version of vLLM takes no cards by uuid: install a newer one (0.32 does)"
            ),
        ),
        Rule(
            pattern=re.compile(
                r"Repo id must be|HFValidationError|does not appear to have a file named|"
                r"Invalid repository ID or local directory|"
                r"is not a local folder and is not a valid model identifier"
            ),
            sentence=lambda _: f"{model} is no model that vLLM can load",
        ),
        Rule(
            pattern=re.compile(r"Model architectures (\[.*?\]) (?:are not supported|failed)"),
            sentence=lambda m: f"this version of vLLM does not know the architecture {m[1]}",
        ),
        damaged(model),
        no_tokenizer(model),
        Rule(
            pattern=re.compile(
                r"User-specified max_model_len \((\d+)\) is greater than the derived "
                r"max_model_len \(\w+=(\d+)"
            ),
            sentence=lambda m: (
                f"a context of {m[1]} tokens is more than the model's {m[2]}: lower "
                "--max-model-len in args"
            ),
        ),
        Rule(
            pattern=re.compile(
                r"No CUDA GPUs are available|Failed to infer device type|"
                r"no CUDA-capable device"
            ),
            sentence=lambda _: "vLLM sees no GPU: its driver or its build does not fit this node",
        ),
        Rule(
            # The second is how it refuses its own arguments, indented, by pydantic.
            pattern=re.compile(
                rf"{_ROOT}((?:\w+\.)*(?:ValueError|OSError|RuntimeError|ImportError): .+)|"
                r"^ *Value error, (.+)"
            ),
            sentence=lambda m: m[1] or m[2],
        ),
        Rule(
            pattern=re.compile(rf"{_ROOT}((?:\w+\.)*\w+(?:Error|Exception): .+)"),
            sentence=lambda m: m[1],
        ),
        another_gone(spec),
    )
