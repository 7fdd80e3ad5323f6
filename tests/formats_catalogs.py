"""A catalog with every key, and models by every key, for tests of how they are read and written."""

from hypothesis import strategies as st

from roost.domain.gpu import GpuClass
from roost.domain.model import Model, ModelName, Queue
from roost.domain.profile import Engine, MetricNames, Profile, ProfileName

FULL = """\
models:                            # required
- name: qwen2.5-coder-14b
  aliases: [coder]
  replicas: 2
  priority: 3
  queue: {size: 32, max_wait_s: 10.5}
  profiles:
  - name: h100
    priority: 100
    engine: vllm
    source: hf:Qwen/Qwen2.5-Coder-14B-Instruct
    gpu_class: H100-80GB-hbm3
    gpus_per_node: 2
    nodes: 1
    tensor_parallel: 2
    pipeline_parallel: 1
    node_selector: {pool: code}
    min_memory_gb: 64
    min_disk_gb: 40
    min_gpu_memory_gb: 70
    slots: 16
    load_timeout_s: 900
    drain_timeout_s: 30
    args: ["--max-model-len", "32768"]
    env: {A_B: ""}
  - {name: cpu, priority: 10, engine: llama.cpp, source: q4.gguf, min_memory_gb: 24, node_selector: {ram: 32g}}
  - name: tei
    engine: command
    source: /models/bge
    command: ["/opt/tei/bin/router", "--hostname", "{host}", "--port", "{port}", "--model-id", "{source}"]
    health: /healthz
    metrics: {path: /m, running: ["te_queue_running"], waiting: ["te_queue_size"]}
"""


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
sizes = st.none() | st.integers(1, 10**15)
durations = st.floats(0.001, 10**6)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Profiles by every key, as no rule forbids them."""
    gpu_class = draw(st.none() | st.sampled_from(["h100", "rtx-4090"]))
    gpus = draw(st.integers(1, 8)) if gpu_class else 0
    span = draw(st.integers(1, 4)) if gpu_class else 1
    own_command = draw(st.booleans())
    engine = Engine.COMMAND if own_command else Engine.VLLM if gpu_class else Engine.LLAMA_CPP
    if own_command:
        span = 1
    return Profile(
        name=ProfileName(draw(names)),
        engine=engine,
        source=draw(names),
        priority=draw(st.integers(-5, 5)),
        gpu_class=GpuClass(gpu_class) if gpu_class else None,
        gpus_per_node=gpus,
        nodes=span,
        tensor_parallel=draw(st.sampled_from([max(gpus, 1), 3])),
        pipeline_parallel=draw(st.sampled_from([span, 2])),
        node_selector=draw(st.dictionaries(names, texts, max_size=2)),
        min_memory_bytes=draw(sizes),
        min_disk_bytes=draw(sizes),
        min_gpu_memory_bytes=draw(sizes) if gpu_class else None,
        slots=draw(st.none() | st.integers(1, 64)),
        load_timeout_s=draw(durations),
        drain_timeout_s=draw(durations),
        args=tuple(draw(st.lists(texts, max_size=2))),
        env=draw(st.dictionaries(st.sampled_from(["A", "B_1"]), texts, max_size=2)),
        command=("/bin/x", "{port}") if own_command else None,
        health=draw(st.sampled_from(["/health", "/ok"])) if own_command else "/health",
        metrics=draw(st.none() | st.just(MetricNames()) | st.just(MetricNames(running=("r",))))
        if own_command
        else None,
    )


models = st.builds(
    Model,
    name=names.map(ModelName),
    profiles=st.lists(profiles(), min_size=1, max_size=3, unique_by=lambda p: p.name).map(tuple),
    aliases=st.just(()) | names.map(lambda name: (f"_{name}"[1:] + "/x",)),
    replicas=st.integers(0, 9),
    priority=st.integers(-9, 9),
    queue=st.builds(Queue, size=st.integers(0, 99), max_wait_s=durations),
)
