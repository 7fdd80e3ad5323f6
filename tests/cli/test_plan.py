"""`roost plan`: what it prints, and its exit status."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from roost.cli.plan import plan
from roost.formats.decision import decisions_schema

FLEET = """
nodes:
- name: gpu-a
  gpus: [{index: 0, uuid: GPU-0, class: l4, memory_bytes: 24000000000}]
- {name: cpu-1, memory_bytes: 16000000000, gpus: []}
"""
CATALOG = """
models:
- name: coder
  replicas: 1
  profiles: [{name: l4, engine: vllm, source: "hf:a/b", gpu_class: l4}]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    return tmp_path


def run(folder: Path, *more: str, stdin: str | None = None, fleet: str = "fleet.yaml") -> Result:
    words = ["--fleet", fleet if fleet == "-" else str(folder / fleet)]
    words += ["--catalog", str(folder / "catalog.yaml"), *more]
    return CliRunner().invoke(plan, words, input=stdin)


def test_all_placed_is_0_and_the_text_says_where_and_why(files: Path) -> None:
    done = run(files)
    assert done.exit_code == 0
    assert done.stdout.startswith("coder-0: placed on gpu-a, GPU 0 by profile l4\n  ")


def test_one_that_has_no_place_is_4_with_the_reasons_of_every_node(files: Path) -> None:
    (files / "catalog.yaml").write_text(CATALOG.replace("replicas: 1", "replicas: 2"))
    done = run(files)
    assert done.exit_code == 4
    assert done.stdout.startswith("2 replicas: 1 placed, 1 unplaceable\n")
    assert "gpu-a: has 0 free of 1 l4 (1 allocated to coder-0), needs 1" in done.stdout
    assert "cpu-1: has no l4, needs 1" in done.stdout


def test_json_is_the_format_that_its_schema_says_and_brief_leaves_nodes_out(files: Path) -> None:
    (files / "catalog.yaml").write_text(CATALOG.replace("replicas: 1", "replicas: 2"))
    whole = run(files, "-o", "json")
    brief = run(files, "-o", "json", "--brief")
    assert whole.exit_code == brief.exit_code == 4
    told, short = json.loads(whole.stdout), json.loads(brief.stdout)
    for answer in (told, short):
        jsonschema.validate(answer, decisions_schema())
    rejected = [one.pop("rejected") for decision in told["decisions"] for one in decision["tried"]]
    assert [len(nodes) for nodes in rejected] == [1, 2]
    assert told == short


def test_the_fleet_can_come_from_stdin(files: Path) -> None:
    assert run(files, fleet="-", stdin=FLEET).exit_code == 0


def test_both_files_from_stdin_is_a_usage_error() -> None:
    done = CliRunner().invoke(plan, ["--fleet", "-", "--catalog", "-"])
    assert done.exit_code == 2
    assert "only one of" in done.stderr


def test_unknown_keys_are_a_warning_on_stderr_and_no_error(files: Path) -> None:
    (files / "fleet.yaml").write_text(FLEET + "spin: 1\n")
    done = run(files, "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)
    assert "does not know: spin" in done.stderr


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("fleet.yaml", "", "is empty"),
        ("fleet.yaml", "nodes:\n- {name: a, ready: 3}\n", ":2: node a: `ready` is 3"),
        ("catalog.yaml", "", "catalog.yaml:1:1: the catalog is empty"),
        ("catalog.yaml", CATALOG.replace("vllm", "vlm"), "catalog.yaml:5"),
    ],
)
def test_a_file_that_cannot_be_used_is_2_and_says_where(
    files: Path, file: str, text: str, said: str
) -> None:
    (files / file).write_text(text)
    done = run(files)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_file_that_is_not_there_or_not_text_is_2(files: Path) -> None:
    gone = run(files, fleet="gone.yaml")
    assert gone.exit_code == 2
    assert "gone.yaml" in gone.stderr
    (files / "fleet.yaml").write_bytes(b"nodes: \xff")
    broken = run(files)
    assert broken.exit_code == 2
    assert "not UTF-8" in broken.stderr


def test_an_empty_catalog_on_an_empty_fleet_is_a_plan(files: Path) -> None:
    (files / "catalog.yaml").write_text("models: []")
    (files / "fleet.yaml").write_text("nodes: []")
    done = run(files, "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"decisions": []}
    assert run(files).stdout == "0 replicas\n"


def test_what_a_node_says_cannot_move_the_cursor(files: Path) -> None:
    (files / "fleet.yaml").write_text('nodes: [{name: "\\e[2Jevil\\nb", gpus: []}]')
    done = run(files, "--all")
    assert done.exit_code == 4
    assert "\x1b" not in done.output
    assert "\\x1b[2Jevil\\nb: has no l4, needs 1" in done.stdout
