"""What engines can't do: every rule, in every spelling, and what stays allowed."""

from dataclasses import replace

import pytest

from roost.domain.gpu import GpuClass
from roost.domain.profile import Engine, Profile, ProfileName
from roost.engines.rules import PLACEHOLDERS, RESERVED, broken

X = GpuClass("x")


def profile(engine: Engine, **keys: object) -> Profile:
    base = Profile(name=ProfileName("p"), engine=engine, source="s")
    if engine in (Engine.VLLM, Engine.SGLANG):
        base = replace(base, gpu_class=X, gpus_per_node=1)
    if engine is Engine.COMMAND:
        base = replace(base, command=("x",))
    return replace(base, **keys)  # type: ignore[arg-type]  # a test writes any key


def keys(candidate: Profile) -> list[str]:
    return [rule.key for rule in broken(candidate)]


@pytest.mark.parametrize("engine", list(Engine))
def test_a_plain_profile_breaks_nothing(engine: Engine) -> None:
    assert keys(profile(engine)) == []


@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG])
def test_an_engine_that_needs_a_card_is_refused_without_a_class(engine: Engine) -> None:
    (rule,) = broken(profile(engine, gpu_class=None, gpus_per_node=0))
    assert rule.key == "gpu_class"
    assert rule.message.startswith(f"engine {engine} can't serve without a GPU")
    assert "llama.cpp" in rule.message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"nodes": 2}, "nodes"),
        ({"gpu_class": X, "gpus_per_node": 2, "tensor_parallel": 2}, "gpus_per_node"),
        ({"gpu_class": X, "gpus_per_node": 1, "tensor_parallel": 2}, "tensor_parallel"),
        ({"pipeline_parallel": 2}, "pipeline_parallel"),
    ],
)
def test_llama_cpp_is_one_node_and_one_card(changes: dict[str, object], key: str) -> None:
    (rule,) = broken(profile(Engine.LLAMA_CPP, **changes))
    assert rule.key == key
    assert "llama.cpp" in rule.message
    assert "vllm" in rule.message


def test_llama_cpp_on_several_nodes_and_cards_says_both() -> None:
    candidate = profile(
        Engine.LLAMA_CPP, gpu_class=X, gpus_per_node=2, nodes=2, tensor_parallel=2,
        pipeline_parallel=2,
    )  # fmt: skip
    assert keys(candidate) == ["nodes", "gpus_per_node"]


def test_a_command_is_one_node_and_may_have_many_cards() -> None:
    cards = {"gpu_class": X, "gpus_per_node": 4, "tensor_parallel": 4}
    assert keys(profile(Engine.COMMAND, **cards)) == []
    assert keys(profile(Engine.COMMAND, **cards, nodes=2, pipeline_parallel=2)) == ["nodes"]


@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG])
@pytest.mark.parametrize(
    ("gpus", "nodes", "tensor", "pipeline", "holds"),
    [
        (2, 1, 2, 1, True),
        (2, 1, 1, 2, True),
        (4, 2, 4, 2, True),
        (4, 2, 8, 1, True),
        (4, 2, 2, 4, True),
        (2, 1, 4, 1, False),
        (4, 2, 8, 2, False),
        (4, 1, 2, 1, False),
        (2, 1, 1, 1, False),
    ],
)
def test_tensor_times_pipeline_is_gpus_times_nodes(
    engine: Engine, gpus: int, nodes: int, tensor: int, pipeline: int, holds: bool
) -> None:
    candidate = profile(
        engine, gpus_per_node=gpus, nodes=nodes, tensor_parallel=tensor, pipeline_parallel=pipeline
    )
    found = list(broken(candidate))
    assert bool(found) is not holds
    if not holds:
        assert f"is {tensor * pipeline}, and" in found[0].message
        assert f"is {gpus * nodes}:" in found[0].message


def test_what_runs_on_the_cpu_has_one_part() -> None:
    assert keys(profile(Engine.COMMAND, tensor_parallel=2)) == ["tensor_parallel"]
    assert keys(profile(Engine.COMMAND, pipeline_parallel=2)) == ["pipeline_parallel"]


@pytest.mark.parametrize(
    ("engine", "flag"),
    [(engine, flag) for engine in Engine for flag in RESERVED[engine].flags],
)
def test_every_reserved_flag_is_refused_alone_and_with_its_value(engine: Engine, flag: str) -> None:
    for spelt in (flag, f"{flag}=x", flag[:2] + flag[2:].replace("-", "_")):
        (rule,) = broken(profile(engine, args=("a", spelt)))
        assert rule.key == "args[1]"
        assert rule.message.startswith(f"args has {spelt.partition('=')[0]}: ")


@pytest.mark.parametrize(
    ("engine", "arg", "refused"),
    [
        (Engine.VLLM, "--tensor-par", True),
        (Engine.VLLM, "--tensor_parallel_size=2", True),
        (Engine.VLLM, "--served", True),
        (Engine.VLLM, "-n2", True),
        (Engine.VLLM, "-tp=2", True),
        (Engine.SGLANG, "--enable-m", True),
        (Engine.SGLANG, "--tp=2", True),
        (Engine.LLAMA_CPP, "--api_key=x", True),
        (Engine.VLLM, "--max-model-len", False),
        (Engine.VLLM, "--model-impl", False),
        (Engine.VLLM, "--hf-overrides", False),
        (Engine.VLLM, "--enable-lora", False),
        (Engine.VLLM, "-O3", False),
        (Engine.VLLM, "--port-like-word", False),
        (Engine.VLLM, "host", False),
        (Engine.VLLM, "-", False),
        (Engine.VLLM, "--", False),
        (Engine.SGLANG, "--mem-fraction-static=0.8", False),
        (Engine.SGLANG, "--enable-torch-compile", False),
        (Engine.LLAMA_CPP, "-md", False),
        (Engine.LLAMA_CPP, "-mg", False),
        (Engine.LLAMA_CPP, "-c", False),
        (Engine.LLAMA_CPP, "-np", False),
        (Engine.LLAMA_CPP, "--embeddings", False),
        (Engine.LLAMA_CPP, "--no-warmup", False),
        (Engine.LLAMA_CPP, "--hos", False),
        (Engine.COMMAND, "--host", False),
    ],
)
def test_the_parser_of_each_engine_is_taken_as_it_is(
    engine: Engine, arg: str, refused: bool
) -> None:
    assert bool(keys(profile(engine, args=(arg,)))) is refused


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *((engine, "CUDA_VISIBLE_DEVICES") for engine in Engine),
        *((engine, "ROOST_ENGINE_API_KEY") for engine in Engine),
        *((engine, name) for engine in Engine for name in RESERVED[engine].env),
        (Engine.VLLM, "vllm_api_key"),
    ],
)
def test_variables_roost_sets_itself_are_refused(engine: Engine, name: str) -> None:
    (rule,) = broken(profile(engine, env={"A": "b", name: "x"}))
    assert rule.key == f"env.{name}"
    assert rule.message.startswith(f"env has {name}: ")


def test_other_variables_are_the_operators() -> None:
    env = {"HF_HOME": "/x", "LD_LIBRARY_PATH": "/y", "NCCL_DEBUG": "INFO", "VLLM_USE_V1": "1"}
    assert keys(profile(Engine.VLLM, env=env)) == []


def test_a_command_is_needed_by_engine_command_and_no_other() -> None:
    assert keys(profile(Engine.COMMAND, command=None)) == ["command"]
    assert keys(profile(Engine.COMMAND, command=())) == ["command"]
    assert keys(profile(Engine.COMMAND, command=("",))) == ["command"]
    assert keys(profile(Engine.LLAMA_CPP, command=("x",))) == ["command"]


def test_placeholders_are_known_and_have_something_to_stand_for() -> None:
    every = tuple("{" + name + "}" for name in PLACEHOLDERS)
    assert keys(profile(Engine.COMMAND, command=("x", *every), slots=4)) == []
    (rule,) = broken(profile(Engine.COMMAND, command=("x", "--p={prot}")))
    assert rule.key == "command[1]"
    assert "{prot}, which stands for nothing: known are {host}, {port}" in rule.message
    assert keys(profile(Engine.COMMAND, command=("x", "{slots}"))) == ["command[1]"]
    assert keys(profile(Engine.COMMAND, command=("x", "{source}"), source="")) == ["command[1]"]
    assert keys(profile(Engine.COMMAND, command=("x",), args=("{nope}",))) == ["args[0]"]
    # Braces around anything else are the program's own.
    assert keys(profile(Engine.COMMAND, command=("x", '{"a": "b"}', "{}", "${HOME}"))) == []
