"""The page `how placement decides` says what the code does: its example is run."""

import re
from pathlib import Path

import pytest

from roost.domain.reasons import Code
from roost.engines.rules import broken
from roost.formats.catalog import parse_catalog
from roost.formats.fleet import parse_fleet
from roost.placement import plan
from roost.placement.explain import explain

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "how-placement-decides.md"


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


@pytest.fixture(scope="module")
def told(page: str) -> list[str]:
    """What `roost plan --all` prints for the two files on the page."""
    fleet_text, catalog_text = blocks("yaml", page)
    parsed = parse_fleet(fleet_text, filename="fleet.yaml")
    assert parsed.warnings == ()
    catalog = parse_catalog(catalog_text, filename="catalog.yaml", rules=broken)
    return explain(plan(catalog, parsed.fleet), all_nodes=True).splitlines()


def test_every_line_on_the_page_is_a_line_of_the_answer(page: str, told: list[str]) -> None:
    shown = [line for block in blocks("text", page) for line in block.splitlines()]
    assert len(shown) > 20
    assert [line for line in shown if line not in told] == []


def test_blocks_of_several_lines_stand_so_in_the_answer(page: str, told: list[str]) -> None:
    answer = "\n".join(told)
    for block in blocks("text", page):
        if not block.startswith(" "):
            assert block.rstrip() in answer


def test_every_code_has_a_section_with_an_example_in_the_order_of_the_table(page: str) -> None:
    sections = re.split(
        r"^### ", page.split("## How this is known", maxsplit=1)[0], flags=re.MULTILINE
    )[1:]
    named = {section.split("\n")[0].strip("`"): section for section in sections}
    assert list(named) == [code.value for code in Code]
    for code in Code:
        assert blocks("text", named[code.value]), code


SENTENCES = {
    Code.NOT_READY: "is not ready",
    Code.CORDONED: "is cordoned",
    Code.LABEL_MISMATCH: "does not carry",
    Code.ENGINE_ABSENT: "does not have llama.cpp installed",
    Code.MEMORY_SHORT: "GB of memory",
    Code.DISK_SHORT: "on local disk",
    Code.GPUS_UNKNOWN: "does not report its GPUs",
    Code.GPU_CLASS_ABSENT: "has no h100",
    Code.GPU_MEMORY_SHORT: "GB or more",
    Code.GPUS_SHORT: "free of",
    Code.NO_FABRIC: "does not report fabrics",
    Code.FABRIC_SHORT: "node that fits, needs 2",
}


@pytest.mark.parametrize("code", list(Code))
def test_the_example_of_a_code_is_of_that_code(code: Code, page: str) -> None:
    section = page.split(f"### `{code.value}`")[1].split("###", maxsplit=1)[0]
    assert any(SENTENCES[code] in block for block in blocks("text", section))
