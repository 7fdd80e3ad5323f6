"""What an engine can't do with a profile, on whatever fleet: catalog errors that say what to do."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roost.domain.profile import Engine, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One rule a profile breaks; `key` is the catalog's, as precise as `args[2]` or `env.NAME`."""

    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What Roost writes itself for one engine, with the reason an operator's own would break it."""

    flags: Mapping[str, str]
    abbreviates: bool
    """Its argument parser takes any unambiguous beginning of a long flag."""
    env: Mapping[str, str]


PLACEHOLDERS: Final = ("host", "port", "model", "source", "slots", "gpus")
"""What `{…}` in `command` may name; braces around anything but one lower-case word stay."""

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")

_ADDRESS: Final = "Roost gives every engine its address, leave it out"
_KEY: Final = "Roost gives every engine a key of its own, leave it out"
_SOURCE: Final = "the model is what source says, set source"
_NAME: Final = "the name is what the catalog calls the model, use name and aliases"
_METRICS: Final = "Roost turns the metrics page on itself, leave it out"
_TENSOR: Final = "set tensor_parallel, which placement counts on"
_PIPELINE: Final = "set pipeline_parallel, which placement counts on"
_NODES: Final = "set nodes, and Roost starts every rank with its own address"
_COPIES: Final = (
    "it takes more GPUs than the profile asks for, set replicas or the model's profiles"
)
_TLS: Final = "Roost speaks plain HTTP to its engines, leave it out"
_PATHS: Final = "it moves the pages Roost asks for, leave it out"
_LOG: Final = "Roost keeps the engine's log and reads failures from it, leave it out"
_FILE: Final = "it reads more arguments from a file, which Roost can't check, write them in args"
_GPUS: Final = "Roost gives every replica its GPUs, set gpu_class and gpus_per_node"
_SEVERAL: Final = "Roost runs one model in an engine, add a model to the catalog"
_REMOTE: Final = "Roost does not spread llama.cpp over nodes, use vllm or sglang"
_ENDS: Final = "the engine would print something and end, leave it out"


def _table(*rows: tuple[str, str]) -> dict[str, str]:
    """Flag by flag from rows of space-separated flags and one reason."""
    return {flag: why for flags, why in rows for flag in flags.split()}


_DEVICES: Final = _table(
    ("CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES", _GPUS),
    ("HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL", _GPUS),
)

RESERVED: Final[Mapping[Engine, Reserved]] = {
    Engine.LLAMA_CPP: Reserved(
        flags=_table(
            ("--host --port --reuse-port", _ADDRESS),
            ("--api-key --api-key-file", _KEY),
            ("-m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file", _SOURCE),
            ("-dr --docker-repo -hft --hf-token", _SOURCE),
            ("-a --alias", _NAME),
            ("--metrics", _METRICS),
            ("--api-prefix", _PATHS),
            ("--ssl-key-file --ssl-cert-file", _TLS),
            ("--models-dir --models-max --models-preset --models-autoload", _SEVERAL),
            ("--rpc", _REMOTE),
            ("--log-disable --log-file", _LOG),
            ("-h --help --usage --version --license -cl --cache-list --list-devices", _ENDS),
            ("--completion-bash", _ENDS),
        ),
        abbreviates=False,
        env=_table(
            ("LLAMA_API_KEY LLAMA_ARG_API_KEY LLAMA_ARG_API_KEY_FILE", _KEY),
            ("LLAMA_ARG_HOST LLAMA_ARG_PORT LLAMA_ARG_REUSE_PORT", _ADDRESS),
            ("LLAMA_ARG_MODEL LLAMA_ARG_MODEL_URL LLAMA_ARG_HF_REPO LLAMA_ARG_HF_FILE", _SOURCE),
            ("LLAMA_ARG_DOCKER_REPO", _SOURCE),
            ("LLAMA_ARG_ALIAS", _NAME),
            ("LLAMA_ARG_ENDPOINT_METRICS LLAMA_ARG_NO_ENDPOINT_METRICS", _METRICS),
            ("LLAMA_ARG_API_PREFIX", _PATHS),
            ("LLAMA_ARG_SSL_KEY_FILE LLAMA_ARG_SSL_CERT_FILE", _TLS),
            ("LLAMA_ARG_MODELS_DIR LLAMA_ARG_MODELS_MAX LLAMA_ARG_MODELS_PRESET", _SEVERAL),
            ("LLAMA_ARG_RPC", _REMOTE),
            ("LLAMA_LOG_FILE LLAMA_ARG_LOG_FILE", _LOG),
        ),
    ),
    Engine.VLLM: Reserved(
        flags=_table(
            ("--host --port --uds", _ADDRESS),
            ("--api-key", _KEY),
            ("--model --model-tag", _SOURCE),
            ("--served-model-name", _NAME),
            ("-tp --tensor-parallel-size", _TENSOR),
            ("-pp --pipeline-parallel-size", _PIPELINE),
            ("-n --nnodes -r --node-rank --master-addr --master-port --headless", _NODES),
            ("--distributed-executor-backend", _NODES),
            ("-dp --data-parallel-size -dpn --data-parallel-rank", _COPIES),
            ("-dpr --data-parallel-start-rank -dpl --data-parallel-size-local", _COPIES),
            ("-dpa --data-parallel-address -dpp --data-parallel-rpc-port", _COPIES),
            ("-dpb --data-parallel-backend -dph --data-parallel-hybrid-lb", _COPIES),
            ("-dpe --data-parallel-external-lb -dpm", _COPIES),
            ("--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs", _TLS),
            ("--root-path", _PATHS),
            ("--config", _FILE),
            ("-h --help -v --version", _ENDS),
        ),
        abbreviates=True,
        env=_table(
            ("VLLM_API_KEY", _KEY),
            ("VLLM_HOST_IP VLLM_PORT", _ADDRESS),
            ("NCCL_IB_HCA", "Roost gives a replica only adapters of its one fabric, leave it out"),
            ("MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK", _NODES),
        ),
    ),
    Engine.SGLANG: Reserved(
        flags=_table(
            ("--host --port", _ADDRESS),
            ("--api-key --admin-api-key", _KEY),
            ("--model-path --model", _SOURCE),
            ("--served-model-name", _NAME),
            ("--enable-metrics", _METRICS),
            ("--tp --tp-size --tensor-parallel-size", _TENSOR),
            ("--pp --pp-size --pipeline-parallel-size", _PIPELINE),
            ("--nnodes --node-rank --dist-init-addr --nccl-init-addr --nccl-port", _NODES),
            ("--dp --dp-size --data-parallel-size", _COPIES),
            ("--base-gpu-id --gpu-id-step", _GPUS),
            ("--ssl-keyfile --ssl-certfile --ssl-ca-certs", _TLS),
            ("--fastapi-root-path", _PATHS),
            ("--config", _FILE),
            ("-h --help --version", _ENDS),
        ),
        abbreviates=True,
        env=_table(
            ("SGLANG_API_KEY", _KEY),
            ("SGLANG_HOST_IP HOST_IP SGLANG_PORT", _ADDRESS),
            ("NCCL_IB_HCA", "Roost gives a replica only adapters of its one fabric, leave it out"),
            ("MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK", _NODES),
        ),
    ),
    Engine.COMMAND: Reserved(flags={}, abbreviates=False, env={}),
}

_ON_GPUS_ONLY: Final = frozenset({Engine.VLLM, Engine.SGLANG})


def broken(profile: Profile) -> Iterator[BrokenRule]:
    """Every rule the profile breaks."""
    yield from _shape(profile)
    yield from _args(profile)
    yield from _env(profile)
    yield from _command(profile)


def _shape(profile: Profile) -> Iterator[BrokenRule]:
    """Nodes, GPUs, and how a model is split over them."""
    engine = profile.engine
    if engine in _ON_GPUS_ONLY and profile.gpu_class is None:
        yield BrokenRule(
            key="gpu_class",
            message=f"engine {engine} can't serve without a GPU, and the profile names no "
            "gpu_class: name one (roost ctl nodes shows what the fleet has), or use llama.cpp, "
            "which runs on the CPU",
        )
        return
    if profile.nodes > 1 and engine is Engine.LLAMA_CPP:
        yield BrokenRule(
            key="nodes",
            message=f"engine llama.cpp runs on one node, and nodes is {profile.nodes}: "
            "set nodes: 1, or use vllm or sglang, which can span nodes",
        )
    if profile.nodes > 1 and engine is Engine.COMMAND:
        yield BrokenRule(
            key="nodes",
            message=f"engine command runs on one node, and nodes is {profile.nodes}: Roost can't "
            "know how the command finds its other ranks, set nodes: 1, or use vllm or sglang",
        )
    if engine is Engine.LLAMA_CPP and profile.gpus_per_node > 1:
        yield BrokenRule(
            key="gpus_per_node",
            message=f"engine llama.cpp with gpus_per_node {profile.gpus_per_node} would be tensor "
            "parallel, and it splits another way: set gpus_per_node: 1, or use vllm or sglang",
        )
    if engine is Engine.LLAMA_CPP:
        for key, value in (
            ("tensor_parallel", profile.tensor_parallel),
            ("pipeline_parallel", profile.pipeline_parallel),
        ):
            # With more GPUs or nodes the default is above one, and a sentence above has said it.
            if value > 1 and profile.gpus_per_node <= 1 and profile.nodes == 1:
                yield BrokenRule(
                    key=key,
                    message=f"engine llama.cpp has no {key.replace('_', ' ')}, and {key} is "
                    f"{value}: leave it out, or use vllm or sglang",
                )
        return
    yield from _split(profile)


def _split(profile: Profile) -> Iterator[BrokenRule]:
    """Tensor × pipeline parallel is gpus × nodes; without a GPU nothing is split."""
    gpus = profile.gpus_per_node * profile.nodes if profile.gpu_class else 1
    split = profile.tensor_parallel * profile.pipeline_parallel
    if profile.gpu_class is None and profile.nodes > 1:
        return
    if split != gpus:
        have = (
            f"gpus_per_node {profile.gpus_per_node} × nodes {profile.nodes} is {gpus}: "
            "one must equal the other, because every GPU holds one part of the model"
            if profile.gpu_class
            else "a profile without gpu_class has one part: leave both out, or name a gpu_class"
        )
        yield BrokenRule(
            key="tensor_parallel" if profile.tensor_parallel > 1 else "pipeline_parallel",
            message=f"tensor_parallel {profile.tensor_parallel} × pipeline_parallel "
            f"{profile.pipeline_parallel} is {split}, and {have}",
        )


def _args(profile: Profile) -> Iterator[BrokenRule]:
    """Arguments that would break what Roost writes itself."""
    reserved = RESERVED[profile.engine]
    for index, arg in enumerate(profile.args):
        flag = _reserved_flag(arg, reserved)
        if flag is not None:
            yield BrokenRule(
                key=f"args[{index}]",
                message=f"args has {arg.partition('=')[0]}: {reserved.flags[flag]}",
            )


def _reserved_flag(arg: str, reserved: Reserved) -> str | None:
    """Which reserved flag an argument is, in any spelling its engine's parser takes."""
    if not arg.startswith("-"):
        return None
    flag = arg.partition("=")[0]
    if flag.startswith("--"):
        flag = "--" + flag[2:].replace("_", "-")
    if flag in reserved.flags:
        return flag
    if not reserved.abbreviates:
        return None
    if len(flag) >= 4 and flag.startswith("--"):
        return next((known for known in reserved.flags if known.startswith(flag)), None)
    # argparse takes the value of a one-letter flag right behind it: -n2
    if re.fullmatch(r"-[a-z]\d+", flag) and flag[:2] in reserved.flags:
        return flag[:2]
    return None


def _env(profile: Profile) -> Iterator[BrokenRule]:
    """Variables that Roost sets itself."""
    reserved = {**_DEVICES, **RESERVED[profile.engine].env}
    for name in profile.env:
        why = reserved.get(name.upper())
        if name.upper().startswith("ROOST_"):
            why = "names that begin with ROOST_ are Roost's own, use another"
        if why is not None:
            yield BrokenRule(key=f"env.{name}", message=f"env has {name}: {why}")


def _command(profile: Profile) -> Iterator[BrokenRule]:
    """A command of the operator's own, and what may be filled into it."""
    if profile.engine is not Engine.COMMAND:
        if profile.command is not None:
            yield BrokenRule(
                key="command",
                message=f"command is for engine command, and the engine is {profile.engine}: "
                "leave it out and use args, or set engine: command",
            )
        return
    if not profile.command or not profile.command[0]:
        yield BrokenRule(
            key="command",
            message="engine command needs command, the program and its arguments as a list: "
            'command: ["/opt/server", "--host", "{host}", "--port", "{port}"]',
        )
        return
    yield from _placeholders("command", profile.command, profile)
    yield from _placeholders("args", profile.args, profile)


def _placeholders(key: str, parts: Sequence[str], profile: Profile) -> Iterator[BrokenRule]:
    absent = {
        "source": "source" if not profile.source else None,
        "slots": "slots" if profile.slots is None else None,
    }
    for index, part in enumerate(parts):
        for name in _PLACEHOLDER.findall(part):
            if name not in PLACEHOLDERS:
                known = ", ".join("{" + known + "}" for known in PLACEHOLDERS)
                yield BrokenRule(
                    key=f"{key}[{index}]",
                    message=f"{key} has {{{name}}}, which stands for nothing: known are {known}",
                )
            elif absent.get(name):
                yield BrokenRule(
                    key=f"{key}[{index}]",
                    message=f"{key} has {{{name}}}, and the profile has no {name}: set it",
                )
