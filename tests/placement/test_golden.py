"""One whole decision for each reason code, kept as files that programs outside may rely on.

After a change that is meant: `python tests/placement/test_golden.py --regenerate`, and read the
difference.
"""

import json
import sys
from pathlib import Path

import pytest

from roost.domain.reasons import Code
from roost.engines.rules import broken
from roost.formats.catalog import parse_catalog
from roost.formats.decision import decisions_to_json
from roost.formats.fleet import parse_fleet
from roost.placement import plan

GOLDEN = Path(__file__).parents[1] / "data" / "placement" / "golden"


def decided(folder: Path) -> str:
    fleet = parse_fleet((folder / "fleet.yaml").read_text(), filename="fleet.yaml")
    assert fleet.warnings == ()
    text = (folder / "catalog.yaml").read_text()
    catalog = parse_catalog(text, filename="catalog.yaml", rules=broken)
    answer = decisions_to_json(plan(catalog, fleet.fleet))
    return json.dumps(answer, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("code", list(Code))
def test_the_decision_is_the_one_that_was_kept(code: Code) -> None:
    folder = GOLDEN / code.value
    kept = (folder / "decision.json").read_text()
    assert json.loads(decided(folder)) == json.loads(kept)
    assert decided(folder) == kept
    (decision,) = json.loads(kept)["decisions"]
    for tried in decision["tried"]:
        assert list(tried["counts"]) == [code.value]
        for rejection in tried["rejected"]:
            assert [reason["code"] for reason in rejection["reasons"]] == [code.value]


def test_every_folder_is_of_a_code() -> None:
    assert {folder.name for folder in GOLDEN.iterdir()} == {code.value for code in Code}


if __name__ == "__main__" and sys.argv[1:] == ["--regenerate"]:
    for one in sorted(GOLDEN.iterdir()):
        (one / "decision.json").write_text(decided(one))
