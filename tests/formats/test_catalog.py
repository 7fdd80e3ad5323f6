"""The catalog: what is read, with which defaults, and that it comes back as it was."""

import json

import pytest
from hypothesis import given

from formats_catalogs import FULL, models
from roost.domain.gpu import GpuClass
from roost.domain.model import Catalog, Model, ModelName, Queue
from roost.domain.profile import Engine, MetricNames, Profile, ProfileName
from roost.engines import rules
from roost.errors import Unusable
from roost.formats.catalog import (
    catalog_to_json,
    model_from_json,
    model_to_json,
    parse_catalog,
)


def parse(text: str) -> Catalog:
    return parse_catalog(text, filename="c.yaml", rules=rules.broken)


def one(profile: str) -> Profile:
    """The profile of a catalog of one model, by the keys that matter to a test."""
    return (
        parse(f"models: [{{name: m, profiles: [{{name: p, source: s, {profile}}}]}}]")
        .models[0]
        .profiles[0]
    )


def test_every_key_is_read() -> None:
    (model,) = parse(FULL).models
    assert model == Model(
        name=ModelName("qwen2.5-coder-14b"),
        aliases=("coder",),
        replicas=2,
        priority=3,
        queue=Queue(size=32, max_wait_s=10.5),
        profiles=(
            Profile(
                name=ProfileName("h100"),
                priority=100,
                engine=Engine.VLLM,
                source="hf:Qwen/Qwen2.5-Coder-14B-Instruct",
                gpu_class=GpuClass("h100-80gb-hbm3"),
                gpus_per_node=2,
                nodes=1,
                tensor_parallel=2,
                pipeline_parallel=1,
                node_selector={"pool": "code"},
                min_memory_bytes=64 * 10**9,
                min_disk_bytes=40 * 10**9,
                min_gpu_memory_bytes=70 * 10**9,
                slots=16,
                load_timeout_s=900,
                drain_timeout_s=30,
                args=("--max-model-len", "32768"),
                env={"A_B": ""},
            ),
            Profile(
                name=ProfileName("cpu"),
                priority=10,
                engine=Engine.LLAMA_CPP,
                source="q4.gguf",
                min_memory_bytes=24 * 10**9,
                node_selector={"ram": "32g"},
            ),
            Profile(
                name=ProfileName("tei"),
                engine=Engine.COMMAND,
                source="/models/bge",
                command=(
                    "/opt/tei/bin/router",
                    "--hostname",
                    "{host}",
                    "--port",
                    "{port}",
                    "--model-id",
                    "{source}",
                ),
                health="/healthz",
                metrics=MetricNames(
                    path="/m", running=("te_queue_running",), waiting=("te_queue_size",)
                ),
            ),
        ),
    )


def test_an_empty_list_of_models_is_an_empty_catalog() -> None:
    assert parse("models: []") == Catalog()
    assert parse('{"models": []}') == Catalog()


def test_what_is_left_out_takes_its_default() -> None:
    (model,) = parse(
        "models: [{name: m, profiles: [{name: p, engine: llama.cpp, source: s}]}]"
    ).models
    assert model == Model(
        name=ModelName("m"),
        profiles=(Profile(name=ProfileName("p"), engine=Engine.LLAMA_CPP, source="s"),),
    )
    assert (model.replicas, model.priority, model.queue) == (1, 0, Queue(size=64, max_wait_s=30))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("engine: llama.cpp", (None, 0, 1, 1, 1)),
        ("engine: llama.cpp, gpu_class: null", (None, 0, 1, 1, 1)),
        ("engine: llama.cpp, gpu_class: RTX-4090", ("rtx-4090", 1, 1, 1, 1)),
        ("engine: vllm, gpu_class: x", ("x", 1, 1, 1, 1)),
        ("engine: vllm, gpu_class: x, gpus_per_node: 4", ("x", 4, 1, 4, 1)),
        ("engine: sglang, gpu_class: x, gpus_per_node: 8, nodes: 2", ("x", 8, 2, 8, 2)),
        (
            "engine: vllm, gpu_class: x, gpus_per_node: 8, nodes: 2, tensor_parallel: 16, pipeline_parallel: 1",
            ("x", 8, 2, 16, 1),
        ),
        ("engine: vllm, gpu_class: any name  at all", ("any name  at all", 1, 1, 1, 1)),
    ],
)
def test_parallelism_follows_gpus_and_nodes(
    written: str, expected: tuple[str | None, int, int, int, int]
) -> None:
    profile = one(written)
    assert (
        profile.gpu_class,
        profile.gpus_per_node,
        profile.nodes,
        profile.tensor_parallel,
        profile.pipeline_parallel,
    ) == expected


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0.5", 500_000_000),
        ("24", 24_000_000_000),
        ("23.96", 23_960_000_000),
        ("1e-9", 1),
        ("1.2345678901", 1_234_567_891),
        ("0.1", 100_000_000),
        ("0x10", 16_000_000_000),
        ("999999.999999999", 999_999_999_999_999),
    ],
)
def test_gigabytes_become_bytes_exactly_and_part_of_a_byte_is_a_byte(
    written: str, size: int
) -> None:
    assert one(f"engine: llama.cpp, min_memory_gb: {written}").min_memory_bytes == size


def test_yaml_1_2_keeps_no_and_dates_as_text() -> None:
    profile = one("engine: llama.cpp, node_selector: {a: no, b: on, c: 2026-01-01, d: 1:30}")
    assert profile.node_selector == {"a": "no", "b": "on", "c": "2026-01-01", "d": "1:30"}


def test_anchors_and_merges_spare_repetition() -> None:
    catalog = parse(
        """\
models:
- name: a
  profiles:
  - &base {name: cpu, engine: llama.cpp, source: a.gguf, min_memory_gb: 8, args: &args ["-c", "4096"]}
- name: b
  profiles:
  - {<<: *base, source: b.gguf}
  - {name: gpu, engine: llama.cpp, source: b.gguf, gpu_class: x, args: *args}
"""
    )
    small, large = catalog.models[1].profiles
    assert (small.name, small.source, small.min_memory_bytes) == ("cpu", "b.gguf", 8 * 10**9)
    assert large.args == small.args == ("-c", "4096")


def test_what_is_written_out_wins_over_what_is_merged_and_earlier_merges_win() -> None:
    (model,) = parse(
        """\
models:
- name: a
  profiles:
  - &one {name: one, engine: llama.cpp, source: one.gguf, slots: 1}
  - &two {name: two, engine: llama.cpp, source: two.gguf, slots: 2, min_memory_gb: 2}
  - {name: three, source: three.gguf, <<: [*one, *two]}
  - {<<: *two, name: four, source: four.gguf}
"""
    ).models
    three, four = model.profiles[2:]
    assert (three.name, three.source, three.slots) == ("three", "three.gguf", 1)
    assert three.min_memory_bytes == 2 * 10**9
    assert (four.name, four.source, four.slots) == ("four", "four.gguf", 2)


def test_json_is_read_alike_with_tabs_and_escapes() -> None:
    text = json.dumps(catalog_to_json(parse(FULL)), indent="\t")
    assert parse(text) == parse(FULL)
    escaped = r'{"models": [{"name": "m", "profiles": [{"name": "p", "engine": "llama.cpp", "source": "\ud83d\ude00\/x"}]}]}'
    assert parse(escaped).models[0].profiles[0].source == "\U0001f600/x"


def test_a_literal_brace_in_a_command_is_left_alone() -> None:
    profile = one("""engine: command, command: [x, '{"a": 1}', "${HOME}", "{}", "{port}"]""")
    assert profile.command == ("x", '{"a": 1}', "${HOME}", "{}", "{port}")


@given(models)
def test_a_model_comes_back_from_json_as_it_was(model: Model) -> None:
    through_text = json.loads(json.dumps(model_to_json(model)))
    assert model_from_json(through_text) == model


@given(models)
def test_a_written_catalog_can_be_applied_as_it_is(model: Model) -> None:
    text = json.dumps(catalog_to_json(Catalog(models=(model,))))
    assert parse_catalog(text, filename="c", rules=lambda _: ()) == Catalog(models=(model,))


def test_a_model_that_is_none_is_unusable_with_the_reasons() -> None:
    with pytest.raises(Unusable) as caught:
        model_from_json({"name": "m", "profiles": [{"name": "p", "engine": "x", "source": "s"}]})
    assert caught.value.problems == (
        'model: unknown engine "x": known are llama.cpp, vllm, sglang, command',
    )
