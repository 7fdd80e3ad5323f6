"""What is wrong with a catalog is said all at once, each with its place, and nothing else ever happens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.model import Catalog
from roost.engines import rules
from roost.errors import Unusable
from roost.formats.catalog import parse_catalog


def problems(text: str, filename: str = "c.yaml") -> tuple[str, ...]:
    """What is said of a catalog that can't be used."""
    with pytest.raises(Unusable) as caught:
        parse_catalog(text, filename=filename, rules=rules.broken)
    assert caught.value.exit_code == 2
    return caught.value.problems


def of_profile(keys: str) -> tuple[str, ...]:
    return problems(f"models:\n- name: m\n  profiles:\n  - {{name: p, {keys}}}\n")


def of_model(keys: str) -> tuple[str, ...]:
    return problems(
        f"models:\n- name: m\n  {keys}\n  profiles: [{{name: p, engine: llama.cpp, source: s}}]\n"
    )


CPU = "engine: llama.cpp, source: s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "c.yaml:1:1: the catalog is empty: write models: [] for a catalog of no models"),
        ("# nothing\n", "c.yaml:1:1: the catalog is empty: write models: [] for"),
        ("---\n...\n", "c.yaml:1:1: the catalog is empty"),
        ("models:", "c.yaml:1:1: models has no value: write models: [] for a catalog of no models"),
        ("models: {}", "c.yaml:1:9: models must be a list, not a mapping"),
        ("models: x", 'c.yaml:1:9: models must be a list, not "x"'),
        ("- name: m", "c.yaml:1:1: the catalog must be a mapping with models, not a list: put it"),
        ("hello", 'c.yaml:1:1: the catalog must be a mapping with models, not "hello"'),
        ("{}", "c.yaml:1:1: models is missing in the catalog: write models: []"),
        ("model: []", 'c.yaml:1:1: unknown key "model" in the catalog: did you mean models?'),
        ("models: [3]", "c.yaml:1:10: model 1 must be a mapping with name and profiles, not 3"),
        ("models: [\n", "c.yaml:2:1: the catalog is not YAML: "),
        (
            "models:\n\t- a",
            "c.yaml:2:1: the catalog is not YAML: found character '\\t' that cannot",
        ),
        ("models: []\n---\nmodels: []", "c.yaml:2:1: the catalog has a second document"),
        ("models: *x", "c.yaml:1:9: the catalog has *x, and no &x before it"),
        ("models: &x [*x]", "c.yaml:1:13: the catalog has *x inside &x itself"),
        ("models: !!python/name:os.system x", "c.yaml:1:9: the catalog has the tag tag:yaml.org"),
        ("models: \x00", "c.yaml: the catalog is not YAML: unacceptable character"),
        ('models: "\\UFFFFFFFF"', "c.yaml: the catalog is not YAML"),
        ('models: ["\\ud83d"]', "c.yaml:1:10: the catalog has half a surrogate pair"),
        ("<<: 3\nmodels: []", "c.yaml:1:1: the catalog merges with << what isn't a mapping"),
        ("models: []\nmodels: []", 'c.yaml:2:1: "models" is there twice, first on line 1'),
        ("[a]: b\nmodels: []", "c.yaml:1:1: a key of the catalog must be a word, not a list"),
    ],
)
def test_a_text_that_is_no_catalog_is_refused_with_its_place(text: str, said: str) -> None:
    found = problems(text)
    assert found
    assert any(line.startswith(said) for line in found), found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("replicas: -1", "replicas must be a whole number from 0 to 100000, not -1"),
        ("replicas: true", "replicas must be a whole number from 0 to 100000, not true"),
        ("replicas: 1.0", "replicas must be a whole number from 0 to 100000, not 1.0"),
        ("replicas: 1e3", "replicas must be a whole number from 0 to 100000, not 1e3"),
        ('replicas: "2"', 'not "2", which is text: leave the quotes out'),
        ("replicas: .nan", "replicas must be a whole number from 0 to 100000, not .nan"),
        ("replicas: 1000000000000000000000000000000000000", "replicas must be a whole number"),
        ("replicas: null", "replicas must be a whole number from 0 to 100000, not null"),
        ("replicas:", "replicas has no value: give it one, or leave it out"),
        ("replicas: [2]", "replicas must be a whole number from 0 to 100000, not a list"),
        ("priority: 1.5", "priority must be a whole number"),
        ("priority: high", "priority must be a whole number"),
        ("aliases: coder", 'aliases must be a list, as ["coder"], not "coder"'),
        ("aliases: [m]", 'alias "m" is taken already on line 2'),
        ("aliases: [a, a]", 'alias "a" is taken already on line 3'),
        ("aliases: ['']", "can't be a model's"),
        ("aliases: [-a]", "can't be a model's"),
        ("aliases: [1]", 'aliases[0] must be text, not 1: quote it, as "1"'),
        ("queue: 64", "queue must be a mapping, as {size: 64, max_wait_s: 30}, not 64"),
        ("queue: {sise: 64}", 'unknown key "sise" in the queue of model m: did you mean size?'),
        ("queue: {max_wait_s: 0}", "max_wait_s must be a number of seconds above 0"),
        ("replica: 2", 'unknown key "replica" in model m: did you mean replicas?'),
        ("gpu_class: x", 'unknown key "gpu_class" in model m: it belongs in a profile'),
        ("max_wait_s: 3", "it belongs in a model's queue"),
        ("zzz: 3", "known are name, aliases, replicas, priority, queue, profiles"),
        ("1: 3", 'unknown key "1" in model m'),
    ],
)
def test_a_model_key_that_is_wrong_is_named_with_what_to_write(keys: str, said: str) -> None:
    found = of_model(keys)
    assert len(found) == 1, found
    assert found[0].startswith("c.yaml:3:")
    assert said in found[0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("engine: llama.cpp", "source is missing in profile p of model m: hf:OWNER/NAME, or"),
        ("source: s", "engine is missing in profile p of model m: one of llama.cpp, vllm, sglang"),
        ("engine: vlm, source: s", 'unknown engine "vlm": did you mean vllm?'),
        ("engine: llama_cpp, source: s", 'unknown engine "llama_cpp": did you mean llama.cpp?'),
        ("engine: zzz, source: s", 'unknown engine "zzz": known are llama.cpp, vllm, sglang'),
        ("engine: 3, source: s", 'engine must be text, not 3: quote it, as "3"'),
        (f"{CPU}, node_selector: {{ram: 32}}", "ram in node_selector must be text, not 32: quote"),
        (
            f"{CPU}, node_selector: {{ram: yes, x: true}}",
            "x in node_selector must be text, not tru",
        ),
        (f"{CPU}, node_selector: {{ram: null}}", "ram in node_selector must be text, not null"),
        (f"{CPU}, node_selector: {{ram: }}", "ram in node_selector has no value"),
        (f"{CPU}, node_selector: {{a: b, a: c}}", '"a" is twice in node_selector: keep one'),
        (f"{CPU}, node_selector: [a]", "node_selector must be a mapping, as {name: value}"),
        (f"{CPU}, min_memory_gb: 0", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_memory_gb: -1", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_memory_gb: .inf", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_memory_gb: .nan", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_memory_gb: true", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_memory_gb: 24GB", '"24GB": it is in GB, write the number alone'),
        (f"{CPU}, min_memory_gb: 1e400", "min_memory_gb must be a number of GB above 0"),
        (f"{CPU}, min_disk_gb: []", "min_disk_gb must be a number of GB above 0"),
        (f"{CPU}, min_disk: 4", 'unknown key "min_disk" in profile p of model m: did you mean min'),
        (
            f"{CPU}, replicas: 4",
            'unknown key "replicas" in profile p of model m: it belongs in a mo',
        ),
        (f"{CPU}, load_timeout_s: 0", "load_timeout_s must be a number of seconds above 0"),
        (f"{CPU}, drain_timeout_s: 1m", "drain_timeout_s must be a number of seconds above 0"),
        (f"{CPU}, slots: 0", "slots must be a whole number from 1 to"),
        (f"{CPU}, nodes: 0", "nodes must be a whole number from 1 to"),
        (f"{CPU}, args: -c", 'args must be a list, as ["-c"], not "-c"'),
        (f"{CPU}, args: [-c, 4096]", 'args[1] must be text, not 4096: quote it, as "4096"'),
        (f'{CPU}, args: ["a\\0"]', "args[0] has a control character in it"),
        (f"{CPU}, env: {{A: 1}}", 'A in env must be text, not 1: quote it, as "1"'),
        (f"{CPU}, env: {{A-B: x}}", '"A-B" in env can\'t name a variable'),
        (f"{CPU}, gpus_per_node: 2", "gpus_per_node 2 without gpu_class: name the class"),
        (f"{CPU}, gpu_class: ", "gpu_class has no value"),
        (f"{CPU}, gpu_class: ''", "gpu_class must not be empty"),
        (f"{CPU}, gpu_class: 4090", 'gpu_class must be text, not 4090: quote it, as "4090"'),
        (f"{CPU}, gpu_class: x, gpus_per_node: 0", "gpus_per_node must be a whole number from 1"),
        (f"{CPU}, min_gpu_memory_gb: 8", "min_gpu_memory_gb without gpu_class"),
        (f"{CPU}, health: /x", "health is for engine command, and the engine is llama.cpp"),
        (f"{CPU}, metrics: {{}}", "metrics is for engine command, and the engine is llama.cpp"),
        ("engine: llama.cpp, source: ../../etc", 'source "../../etc" steps out of the model dir'),
        ("engine: llama.cpp, source: a/../../b", "steps out of the model directory"),
        ("engine: llama.cpp, source: -x", "begins with -, which an engine takes for an option"),
        ('engine: llama.cpp, source: "a\\nb"', "source has a line break"),
        ("engine: llama.cpp, source: hf:x", 'source "hf:x" must be hf:OWNER/NAME'),
        ("engine: llama.cpp, source: ''", "source must not be empty"),
        ("engine: command, command: [x], health: x", "health must be a path that begins with /"),
        ("engine: command, command: [x], metrics: [a]", "metrics must be a mapping, as"),
        (
            "engine: command, command: [x], metrics: {running: a}",
            'running must be a list, as ["a"]',
        ),
        ("engine: command, command: [x], metrics: {busy: [a]}", 'unknown key "busy" in metrics of'),
        ("engine: command, command: x", 'command must be a list, as ["x"]'),
    ],
)
def test_a_profile_key_that_is_wrong_is_named_with_what_to_write(keys: str, said: str) -> None:
    found = of_profile(keys)
    assert len(found) == 1, found
    assert found[0].startswith("c.yaml:4:")
    assert said in found[0]


def test_an_engine_rule_has_the_place_of_the_key_it_names() -> None:
    found = problems(
        """\
models:
- name: m
  profiles:
  - name: p
    engine: llama.cpp
    source: s
    args:
    - -c
    - "1024"
    - --host=0.0.0.0
    env:
      CUDA_VISIBLE_DEVICES: "0"
    nodes: 2
"""
    )
    assert [line.split(": ")[0] for line in found] == ["c.yaml:10:7", "c.yaml:12:7", "c.yaml:13:5"]


def test_vllm_without_a_gpu_class_says_why_and_what_to_do() -> None:
    (said,) = of_profile("engine: vllm, source: s")
    assert said == (
        "c.yaml:4:5: engine vllm can't serve without a GPU, and the profile names no gpu_class: "
        "name one (roost ctl nodes shows what the fleet has), or use llama.cpp, "
        "which runs on the CPU"
    )


def test_one_cause_is_said_once() -> None:
    """A misspelt gpu_class is no second error about an engine without a class."""
    assert len(of_profile("engine: vllm, source: s, gpu_clas: x")) == 1
    assert len(of_profile("engine: vllm, source: s, gpu_class: 3, gpus_per_node: 2")) == 1
    assert len(of_profile("engine: vllm, source: s, gpu_class: x, nodes: two")) == 1
    split = "engine: vllm, source: s, gpu_class: x, tensor_parallel: 4"
    assert len(of_profile(f"{split}, gpus_per_node: four")) == 1
    assert len(of_profile(f"{split}, gpus_pernode: 4")) == 1


def test_names_are_unique_over_the_catalog() -> None:
    found = problems(
        """\
models:
- {name: a, aliases: [b], profiles: [{name: p, engine: llama.cpp, source: s}]}
- {name: b, aliases: [c, a], profiles: [{name: p, engine: llama.cpp, source: s}, {name: p, engine: llama.cpp, source: s}]}
- {name: c, profiles: []}
- {profiles: [{name: a/b, engine: llama.cpp, source: s}]}
"""
    )
    assert [re.sub(r":\d+: ", ": ", line, count=1) for line in found] == [
        'c.yaml:3: name "b" is taken already on line 2: names and aliases are unique over the catalog',
        'c.yaml:3: alias "a" is taken already on line 2: names and aliases are unique over the catalog',
        'c.yaml:3: name "p" is taken already on line 3 by another profile of model b',
        'c.yaml:4: name "c" is taken already on line 3: names and aliases are unique over the catalog',
        "c.yaml:4: model c has no profiles: give it at least one way to run",
        "c.yaml:5: name is missing in model 4: it is what clients ask for",
        "c.yaml:5: name \"a/b\" can't be a profile's: up to 128 letters, digits and . _ -, beginning with a letter or digit",
    ]


def test_all_problems_come_at_once_sorted_by_place() -> None:
    found = problems(
        """\
models:
- name: a
  replicas: -1
  profiles:
  - {name: x, engine: vllm, source: s, slots: none, args: [--port, "80"]}
  - {name: y, engine: llama.cpp, source: s, gpu_class: c, gpus_per_node: 2}
- name: b
- name: c c
  profiles: [{name: z, engine: nope, source: s, node_selector: {ram: 32}}]
"""
    )
    places = [tuple(map(int, line.split(":")[1:3])) for line in found]
    assert places == sorted(places)
    assert [line for line, _ in places] == [3, 5, 5, 5, 6, 7, 8, 9, 9]


def test_json_problems_have_places_too() -> None:
    assert problems('{\n\t"models": [\n\t\t{"name": "m", "profiles": []}\n\t]\n}') == (
        "c.yaml:3:29: model m has no profiles: give it at least one way to run",
    )
    assert problems('{"models": [{"name": "m", "name": "n", "profiles": 3}]}') == (
        'c.yaml:1:27: "name" is there twice, first on line 1: keep one',
        "c.yaml:1:52: profiles must be a list, not 3",
    )


def test_hostile_text_is_bounded() -> None:
    """Depth, width and aliases: an unbounded reader would run into the test's time limit."""
    bomb = "models: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"k{i}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(12)
    )
    for text, said in (
        (bomb, "has more than 1000000 parts, aliases counted in full"),
        ("[" * 10_000, "is nested deeper than 64"),
        ("- " * 10_000, "is nested deeper than 64"),
        ('{"a":' * 50_000, "is nested deeper than 64"),
        ("x" * 4_000_001, "has 4000001 characters, 4000000 are read at most"),
    ):
        (found,) = problems(text)
        assert said in found


def test_control_characters_of_a_file_never_reach_a_sentence() -> None:
    for line in problems('models: [{"name": "a\\e[31mb", "x\\e]0;y": 1, profiles: "\\x07"}]'):
        assert line.isprintable()


GOOD = """\
models:
- name: qwen
  aliases: [coder]
  replicas: 2
  queue: {size: 64, max_wait_s: 30}
  profiles:
  - name: h100
    engine: vllm
    source: hf:Q/W
    gpu_class: h100
    gpus_per_node: 2
    node_selector: {pool: code}
    min_memory_gb: 64.5
    args: ["--max-model-len", "32768"]
    env: {A: b}
  - {name: cpu, engine: llama.cpp, source: q.gguf}
  - name: tei
    engine: command
    command: [x, "{port}"]
    metrics: {running: [a]}
"""
PIECES = st.sampled_from(
    [
        *":{}[],&*!|>'\"#%@`-?\n\t \\~<",
        *("<<: *a", "&a ", "*a", "---\n", "!!int ", "null", "0x", ".nan", "\\U", "1e999"),
        *("\x00", "\ud800", "\u2028", "\ufeff", "{{", "nodes: 3", "gpus_per_node: 9"),
    ]
)


def read_or_refused(text: str) -> None:
    said: tuple[str, ...] = ()
    try:
        catalog = parse_catalog(text, filename="c.yaml", rules=rules.broken)
    except Unusable as error:
        said = error.problems
        if not said:
            raise
    else:
        assert isinstance(catalog, Catalog)
    for line in said:
        assert re.match(r"c\.yaml(:\d+:\d+)?: \S", line)
        assert "\n" not in line


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), PIECES), max_size=4))
def test_a_mutated_catalog_is_read_or_refused_with_places(
    edits: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for at, cut, piece in edits:
        text = text[:at] + piece + text[at + cut :]
    read_or_refused(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refused(text)
