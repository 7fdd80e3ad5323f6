"""Where the captures of other people's GPUs are, and how they are read."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Found, Reader
from roost.agent.facts.processes import Ours
from roost.agent.facts.xml_tree import Element

CHECKOUT = Path(__file__).parents[3]
OWN = CHECKOUT / "tests/data/facts/gpu"
SHARED = Path(os.environ.get("ROOST_CAPTURES") or CHECKOUT.parent / "shared/captures")
FOLDERS = ("smi", "amd", "topo", "rdma", "placement")
MIB = 1024 * 1024


def capture(name: str) -> Path:
    """A capture of this checkout, or of the shared folder where there is one."""
    for place in (OWN, *(SHARED / folder for folder in FOLDERS)):
        if (place / name).is_file():
            return place / name
    pytest.skip(f"{name} is not in tests/data, and there are no captures in {SHARED}")


def shared(folder: str) -> list[Path | None]:
    """All captures of a folder; one None where there is no folder: a test skips it by its name."""
    found: Sequence[Path] = sorted((SHARED / folder).glob("*")) if SHARED.is_dir() else []
    return list(found) or [None]


def look(tmp_path: Path, **files: Path) -> Found:
    """What a machine is that has nothing but these files."""
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    return Reader(Sources(root=root, **files)).read(Ours())  # type: ignore[arg-type]  # only paths


def everywhere(element: Element, tag: str) -> list[Element]:
    """Every element of that name below this one, in the document's order."""
    found = [element] if element.tag == tag else []
    for child in element.children:
        found += everywhere(child, tag)
    return found
