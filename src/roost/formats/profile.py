"""One profile of a model as operators write it: read with all its problems, and written back."""

import re
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from roost.domain.gpu import GpuClass
from roost.domain.profile import Engine, MetricNames, Profile, ProfileName
from roost.domain.units import GB
from roost.formats import nodes
from roost.formats.nodes import At, Node, Scalar
from roost.formats.reading import Fields, Problems, nearest, quoted, shown

PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MOST_NODES: Final = 10_000
MOST_GPUS: Final = 1_024
"""Of one node."""
MOST_SLOTS: Final = 1_000_000
MOST_PRIORITY: Final = 1_000_000_000

PROFILE_KEYS: Final = (
    "name",
    "priority",
    "engine",
    "source",
    "gpu_class",
    "gpus_per_node",
    "nodes",
    "tensor_parallel",
    "pipeline_parallel",
    "node_selector",
    "min_memory_gb",
    "min_disk_gb",
    "min_gpu_memory_gb",
    "slots",
    "load_timeout_s",
    "drain_timeout_s",
    "args",
    "env",
    "command",
    "health",
    "metrics",
)
METRICS_KEYS: Final = ("path", "running", "waiting", "kv_usage")

_DEFAULT: Final = Profile(name=ProfileName(""), engine=Engine.COMMAND, source="")
_ENGINES: Final = tuple(engine.value for engine in Engine)
_SHAPE: Final = frozenset(
    {"engine", "gpu_class", "gpus_per_node", "nodes", "tensor_parallel", "pipeline_parallel"}
)
"""What engine rules weigh against each other: with one of them wrong, the others prove nothing."""


class BrokenRule(Protocol):
    """Something an engine can't do: the key at fault and a sentence."""

    @property
    def key(self) -> str:
        """The catalog's key, or a part of its value: `args[2]`, `env.NAME`."""
        ...

    @property
    def message(self) -> str:
        """Why, and what to do."""
        ...


Rules = Callable[[Profile], Iterable[BrokenRule]]


def name_of(node: nodes.Mapping, fallback: str) -> str:
    """What to call a model or profile in sentences, before its name is known to be good."""
    for key, value, _ in node.entries:
        if isinstance(key, Scalar) and key.text == "name" and isinstance(value, Scalar):
            return quoted(value.text)[1:-1] or fallback
    return fallback


def read_profile(
    node: Node,
    problems: Problems,
    rules: Rules,
    *,
    index: int,
    model: str,
    taken: dict[str, At | None],
    elsewhere: Callable[[str], str | None],
) -> Profile | None:
    """The profile at `index` of a model; good for use only if no problem was noted."""
    if not isinstance(node, nodes.Mapping):
        problems.add(
            node.at,
            f"profile {index + 1} of {model} must be a mapping with name, engine and source, "
            f"not {shown(node)}",
        )
        return None
    called = f"profile {name_of(node, str(index + 1))} of {model}"
    fields = Fields(node, problems, known=PROFILE_KEYS, of=called, elsewhere=elsewhere)
    name = _name(fields, model, taken)
    engine = _engine(fields)
    source = _source(fields, engine)
    gpu_class, gpus = _gpus(fields)
    spans = fields.whole("nodes", least=1, most=MOST_NODES) or 1
    tensor = fields.whole("tensor_parallel", least=1, most=MOST_GPUS * MOST_NODES)
    pipeline = fields.whole("pipeline_parallel", least=1, most=MOST_GPUS * MOST_NODES)
    profile = Profile(
        name=ProfileName(name or called),
        engine=engine or Engine.COMMAND,
        source=source or "",
        priority=fields.whole("priority", least=-MOST_PRIORITY, most=MOST_PRIORITY) or 0,
        gpu_class=gpu_class,
        gpus_per_node=gpus,
        nodes=spans,
        tensor_parallel=tensor or max(gpus, 1),
        pipeline_parallel=pipeline or (spans if gpu_class else 1),
        node_selector=fields.text_by_text("node_selector") or {},
        min_memory_bytes=fields.gigabytes("min_memory_gb"),
        min_disk_bytes=fields.gigabytes("min_disk_gb"),
        min_gpu_memory_bytes=_gpu_memory(fields, gpu_class),
        slots=fields.whole("slots", least=1, most=MOST_SLOTS, may_be_null=True),
        load_timeout_s=fields.seconds("load_timeout_s") or _DEFAULT.load_timeout_s,
        drain_timeout_s=fields.seconds("drain_timeout_s") or _DEFAULT.drain_timeout_s,
        args=fields.texts("args") or (),
        env=_env(fields),
        command=fields.texts("command"),
        health=_path(fields, "health") or _DEFAULT.health,
        metrics=_metrics(fields, called),
    )
    if engine is not None:
        _only_for_command(fields, engine)
        _apply_rules(fields, profile, rules)
    return profile


def _name(fields: Fields, model: str, taken: dict[str, At | None]) -> str | None:
    fields.need("name", "answers and reports call the profile by it")
    name = fields.text("name")
    if name is None:
        return None
    if not PROFILE_NAME.fullmatch(name):
        fields.wrong(
            "name",
            f"name {quoted(name)} can't be a profile's: up to 128 letters, digits and . _ -, "
            "beginning with a letter or digit",
        )
    elif name in taken:
        first = taken[name]
        where = f" on line {first.line}" if first else ""
        fields.wrong(
            "name", f"name {quoted(name)} is taken already{where} by another profile of {model}"
        )
    else:
        taken[name] = fields.where("name")
    return name


def _engine(fields: Fields) -> Engine | None:
    fields.need("engine", f"one of {', '.join(_ENGINES)}")
    name = fields.text("engine")
    if name is None:
        return None
    if name in _ENGINES:
        return Engine(name)
    squeezed = re.sub(r"[^a-z]", "", name.lower())
    near = _SPELLINGS.get(squeezed) or nearest(name, _ENGINES)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(_ENGINES)}"
    fields.wrong("engine", f"unknown engine {quoted(name)}: {hint}")
    return None


_SPELLINGS: Final[dict[str, str]] = {
    "llamacpp": Engine.LLAMA_CPP,
    "llamaserver": Engine.LLAMA_CPP,
    "llama": Engine.LLAMA_CPP,
    "gguf": Engine.LLAMA_CPP,
    "vllm": Engine.VLLM,
    "sglang": Engine.SGLANG,
    "sgl": Engine.SGLANG,
    "custom": Engine.COMMAND,
    "exec": Engine.COMMAND,
}
"""What other programs call them."""


def _source(fields: Fields, engine: Engine | None) -> str | None:
    if engine is not Engine.COMMAND:
        fields.need("source", "hf:OWNER/NAME, or a path inside a model directory")
    source = fields.text("source")
    if source is None:
        return None
    if "\n" in source or "\t" in source or source != source.strip():
        fields.wrong("source", "source has a line break, a tab or space around it: write it alone")
    elif source.startswith("-"):
        fields.wrong(
            "source", f"source {quoted(source)} begins with -, which an engine takes for an option"
        )
    elif ".." in source.split("/"):
        fields.wrong(
            "source",
            f"source {quoted(source)} steps out of the model directory with ..: write the path "
            "inside it, or an absolute one",
        )
    elif source.startswith("hf:") and not re.fullmatch(
        r"hf:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*([/:@]\S*)?", source, re.ASCII
    ):
        fields.wrong("source", f"source {quoted(source)} must be hf:OWNER/NAME after hf:")
    return source


def _gpus(fields: Fields) -> tuple[GpuClass | None, int]:
    """The class in lower case and the GPUs per node; 0 exactly when there is no class."""
    written = fields.text("gpu_class", may_be_null=True)
    if written is not None and written != written.strip():
        fields.wrong("gpu_class", f"gpu_class {quoted(written)} has space around it: take it out")
    count = fields.whole(
        "gpus_per_node",
        least=1,
        most=MOST_GPUS,
        instead="" if written else ": leave it out to run on the CPU",
    )
    if written is not None:
        return GpuClass(written.strip().lower()), count or 1
    if count is not None and "gpu_class" not in fields.bad:
        fields.wrong(
            "gpus_per_node",
            f"gpus_per_node {count} without gpu_class: name the class (roost ctl nodes shows what "
            "the fleet has), or leave gpus_per_node out to run on the CPU",
        )
    return None, 0


def _gpu_memory(fields: Fields, gpu_class: GpuClass | None) -> int | None:
    size = fields.gigabytes("min_gpu_memory_gb")
    if size is not None and gpu_class is None and "gpu_class" not in fields.bad:
        fields.wrong(
            "min_gpu_memory_gb",
            "min_gpu_memory_gb without gpu_class: name the class, or say min_memory_gb for main "
            "memory",
        )
    return size


def _env(fields: Fields) -> dict[str, str]:
    env = fields.text_by_text("env") or {}
    for name in env:
        if not ENV_NAME.fullmatch(name):
            fields.wrong(
                "env",
                f"{quoted(name)} in env can't name a variable: letters, digits and _, not "
                "beginning with a digit",
                fields.where(f"env.{name}"),
            )
    return env


def _path(fields: Fields, key: str) -> str | None:
    """The path of a page of the engine's."""
    path = fields.text(key)
    if path is not None and not re.fullmatch(r"/[!-~]*", path):
        fields.wrong(key, f"{key} must be a path that begins with /, not {quoted(path)}")
    return path


def _metrics(fields: Fields, called: str) -> MetricNames | None:
    node = fields.node("metrics", may_be_null=True)
    if node is None:
        return None
    if not isinstance(node, nodes.Mapping):
        fields.wrong(
            "metrics",
            f"metrics must be a mapping, as {{path: /metrics, running: [NAME], waiting: [NAME]}}, "
            f"not {shown(node)}",
        )
        return None
    inner = Fields(node, fields.problems, known=METRICS_KEYS, of=f"metrics of {called}")
    return MetricNames(
        path=_path(inner, "path") or "/metrics",
        running=inner.texts("running") or (),
        waiting=inner.texts("waiting") or (),
        kv_usage=inner.texts("kv_usage") or (),
    )


def _only_for_command(fields: Fields, engine: Engine) -> None:
    """`health` and `metrics` of the engines Roost knows are its own business."""
    if engine is Engine.COMMAND:
        return
    for key in ("health", "metrics"):
        if fields.has(key):
            fields.wrong(
                key,
                f"{key} is for engine command, and the engine is {engine}, whose {key} Roost "
                "knows: leave it out",
                fields.where(key),
            )


def _apply_rules(fields: Fields, profile: Profile, rules: Rules) -> None:
    """What the engine can't do, unless it follows only from something already said."""
    shapeless = _SHAPE & fields.bad
    for rule in rules(profile):
        # A rule about one argument or variable holds whatever else is wrong with the others.
        if rule.key in fields.bad or (rule.key in _SHAPE and shapeless):
            continue
        fields.problems.add(fields.where(rule.key), rule.message)


def profile_to_json(profile: Profile) -> dict[str, object]:
    """A profile by FORMATS' keys, in its order; what is at its default is left out."""
    default_tensor = max(profile.gpus_per_node, 1)
    default_pipeline = profile.nodes if profile.gpu_class else 1
    written: dict[str, object] = {
        "name": profile.name,
        "priority": profile.priority or None,
        "engine": profile.engine.value,
        "source": profile.source or None,
        "gpu_class": profile.gpu_class,
        "gpus_per_node": profile.gpus_per_node or None,
        "nodes": _unless(profile.nodes, 1),
        "tensor_parallel": _unless(profile.tensor_parallel, default_tensor),
        "pipeline_parallel": _unless(profile.pipeline_parallel, default_pipeline),
        "node_selector": dict(profile.node_selector) or None,
        "min_memory_gb": _gigabytes(profile.min_memory_bytes),
        "min_disk_gb": _gigabytes(profile.min_disk_bytes),
        "min_gpu_memory_gb": _gigabytes(profile.min_gpu_memory_bytes),
        "slots": profile.slots,
        "load_timeout_s": _unless(number(profile.load_timeout_s), _DEFAULT.load_timeout_s),
        "drain_timeout_s": _unless(number(profile.drain_timeout_s), _DEFAULT.drain_timeout_s),
        "args": list(profile.args) or None,
        "env": dict(profile.env) or None,
        "command": None if profile.command is None else list(profile.command),
        "health": _unless(profile.health, _DEFAULT.health),
        "metrics": None if profile.metrics is None else _metrics_to_json(profile.metrics),
    }
    return {key: value for key, value in written.items() if value is not None}


def _metrics_to_json(metrics: MetricNames) -> dict[str, object]:
    lists = {
        "running": metrics.running,
        "waiting": metrics.waiting,
        "kv_usage": metrics.kv_usage,
    }
    return {"path": metrics.path} | {key: list(names) for key, names in lists.items() if names}


def _unless(value: float | str, default: float | str) -> float | str | None:
    return None if value == default else value


def number(value: float) -> float:
    """As short as it can be written: 30, not 30.0."""
    return int(value) if value == int(value) else value


def _gigabytes(size: int | None) -> float | None:
    """Exactly: 15 digits at most, which is what a JSON number carries."""
    return None if size is None else number(size / GB)
