"""Hostile input to every parser of GPU and fabric facts: an answer or a problem, never an exception."""

import contextlib
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.facts.gpu_captures import OWN
from roost.agent.facts import amd, amd_sysfs, infiniband, nvidia_xml
from roost.agent.facts.card import Cards, mebibytes, pci_address, whole
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Reader
from roost.agent.facts.processes import Ours, parse_stat
from roost.agent.facts.topology import domains, parse_matrix
from roost.testing.fake_nvml import (
    FakeCard,
    FakeFabric,
    FakeInstance,
    FakeMachine,
    FakeNvml,
    FakeProcess,
)

XMLS = [
    path.read_bytes()
    for path in sorted(OWN.glob("*.xml"))
    if b"nvidia_smi_log" in path.read_bytes()[:400]
]
JSONS = [path.read_bytes() for path in sorted(OWN.glob("*.json"))]
TABLE = b"\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV4\tSYS\t0-3\nGPU1\tNV4\t X \tSYS\t0-3\nGPU2\tSYS\tSYS\t X \t4-7\n"
NUMBERS = [
    b"-1", b"0", b"99999999999999999999999999", b"1e999", b"0x7fffffff", b"NaN", b"\xd9\xa3", b"18446744073709551615",
]  # fmt: skip


def fits(cards: Cards) -> None:
    assert (cards.cards is None) == (bool(cards.problems) and cards.cards is None)
    for card in cards.cards or ():
        assert card.memory_bytes is None or 0 < card.memory_bytes < 1 << 62
        assert 0 <= card.index < 10**6


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A real document: cut, shuffled by lines, with other numbers, with other bytes."""
    data = draw(st.sampled_from(originals))
    dice = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["cut", "shuffle", "number", "bytes", "repeat", "drop"]))
        at = dice.randrange(len(data) + 1)
        if kind == "cut":
            data = data[:at]
        elif kind == "shuffle":
            lines = data.split(b"\n")
            dice.shuffle(lines)
            data = b"\n".join(lines)
        elif kind == "number":
            digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
            if digits:
                place = dice.choice(digits)
                data = data[:place] + dice.choice(NUMBERS) + data[place + 1 :]
        elif kind == "bytes":
            data = data[:at] + dice.randbytes(dice.randrange(1, 9)) + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[at : at + 2000] * 3 + data[at:]
        else:
            data = data[:at] + data[at + dice.randrange(1, 300) :]
    return data


@given(mutated(XMLS))
@settings(max_examples=150, deadline=None)
def test_a_mangled_xml_is_read_or_is_a_problem(data: bytes) -> None:
    cards = nvidia_xml.read(data)
    fits(cards)
    domains(cards.cards or ())


@given(mutated(JSONS))
@settings(max_examples=150, deadline=None)
def test_a_mangled_json_is_read_or_is_a_problem(data: bytes) -> None:
    cards = amd.read(data)
    fits(cards)
    domains(cards.cards or ())


@given(mutated([TABLE]))
@settings(max_examples=300, deadline=None)
def test_a_mangled_matrix_is_read_or_is_none(data: bytes) -> None:
    matrix = parse_matrix(data.decode("utf-8", "replace"))
    cards = nvidia_xml.read(XMLS[0]).cards or ()
    domains(cards, matrix)


@given(st.binary(max_size=400))
def test_any_bytes_are_no_document(data: bytes) -> None:
    assert nvidia_xml.read(data).cards is None
    fits(amd.read(data))
    parse_matrix(data.decode("utf-8", "replace"))


@given(st.text(max_size=60))
def test_any_text_is_a_sane_value_or_none(text: str) -> None:
    for read in (whole, mebibytes, pci_address, infiniband.parse_state, infiniband.parse_rate):
        read(text)
    infiniband.parse_gid_prefix(text)
    amd_sysfs.parse_errors(text)
    amd_sysfs.parse_names(text)
    amd_sysfs.parse_properties(text)
    amd.uuid(text)
    with contextlib.suppress(ValueError, IndexError):
        parse_stat(text.encode("utf-8", "replace"))


def bomb(levels: int) -> bytes:
    names = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, levels))
    return (
        f'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY l0 "ha">{names}]>'
        f"<nvidia_smi_log><gpu><uuid>&l{levels - 1};</uuid></gpu></nvidia_smi_log>"
    ).encode()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "entity bomb": lambda: bomb(12),
    "external entity": lambda: (
        b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><nvidia_smi_log>'
        b"<gpu><product_name>&f;</product_name></gpu></nvidia_smi_log>"
    ),
    "deep": lambda: b"<nvidia_smi_log>" + b"<a>" * 100_000,
    "wide": lambda: b"<nvidia_smi_log>" + b"<gpu/>" * 100_000 + b"</nvidia_smi_log>",
    "very wide": lambda: b"<nvidia_smi_log>" + b"<a/>" * 1_000_000 + b"</nvidia_smi_log>",
    "long text": lambda: b"<nvidia_smi_log><gpu><uuid>" + b"x" * 8_000_000 + b"</uuid></gpu></nvidia_smi_log>",
    "huge": lambda: b"<nvidia_smi_log>" + b" " * 20_000_000 + b"</nvidia_smi_log>",
    "processes": lambda: b"<processes>" * 20_000,
    "deep json": lambda: b"[" * 200_000,
    "deep json objects": lambda: b'{"card0":' * 100_000,
    "long number": lambda: b'{"card0": {"VRAM Total Memory (B)": ' + b"9" * 100_000 + b"}}",
    "many cards": lambda: b"{" + b",".join(b'"card%d": {}' % n for n in range(2000)) + b"}",
    "quotes": lambda: b'{"card0": "' + b'\\"' * 500_000,
    "wide table": lambda: b"\t".join(b"GPU%d" % n for n in range(5000)) + b"\nGPU0" + b"\tNV1" * 5000,
    "tall table": lambda: b"GPU0\tGPU1\n" + b"GPU1\tNV1\tX\n" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_made_to_harm_costs_little_and_gives_no_card(name: str) -> None:
    data = HOSTILE[name]()
    tracemalloc.start()
    started = time.process_time()
    for read in (nvidia_xml.read, amd.read):
        cards = read(data)
        # The text of one element is cut; the card that says nothing else of itself stays.
        assert cards.cards is None or len(cards.cards) <= 1
    parse_matrix(data.decode("utf-8", "replace"))
    took = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000_000
    # Bounded, not fast: quadratic work on these would take hours.
    assert took < 60


# -- trees of files -------------------------------------------------------------------------------

names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in {".", ".."})


@given(
    st.dictionaries(
        names,
        st.dictionaries(
            st.sampled_from(["state", "link_layer", "rate", "gids/0", "phys_state", "gids"]),
            st.binary(max_size=80),
        ),
        max_size=3,
    ),
    st.lists(st.sampled_from(["1", "2", "0", "x", "99999999999999999999"]), max_size=3),
    st.dictionaries(names, st.tuples(names), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_any_tree_of_adapters_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    hcas: dict[str, dict[str, bytes]],
    ports: list[str],
    named: dict[str, tuple[str, ...]],
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "sys/class/infiniband").mkdir(parents=True)
    for name, files in hcas.items():
        for port in ports:
            for file, content in files.items():
                path = root / "sys/class/infiniband" / name / "ports" / port / file
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                except OSError:
                    continue
    attached, found, _ = infiniband.read(root, named)
    assert attached is not None
    listed = [hca for fabric in attached for hca in fabric.hcas]
    assert len(listed) == len(set(listed)) <= len(found or ())


def test_links_in_circles_and_files_that_are_directories_are_not_read(tmp_path: Path) -> None:
    place = tmp_path / "sys/class/infiniband/mlx5_0"
    (place / "ports/1/state").mkdir(parents=True)
    (place / "device").symlink_to("device")
    (tmp_path / "sys/class/infiniband/mlx5_1").symlink_to("mlx5_1")
    attached, found, _ = infiniband.read(tmp_path, {"ib0": ("*",)})
    assert attached == ()
    assert [hca.name for hca in found or ()] == ["mlx5_0", "mlx5_1"]


# -- the library ------------------------------------------------------------------------------------

codes = st.sampled_from([2, 3, 4, 6, 13, 15, 16, 20, 999, 12345])
strings = st.text(max_size=30)
cards = st.builds(
    FakeCard,
    uuid=strings,
    name=st.none() | strings,
    pci=strings | st.just("00000000:01:00.0"),
    pci_id=st.integers(0, 2**32 - 1),
    memory=st.none() | st.integers(0, 2**64 - 1),
    lost=st.booleans(),
    ecc=st.none() | st.integers(0, 2**64 - 1),
    rows=st.none() | st.tuples(st.booleans(), st.booleans()),
    pages_pending=st.none() | st.booleans(),
    fabric=st.none()
    | st.builds(
        FakeFabric,
        state=st.integers(0, 255),
        status=st.integers(0, 2**32 - 1),
        cluster=st.binary(min_size=16, max_size=16).map(bytes.hex),
        clique=st.integers(0, 2**32 - 1),
        summary=st.integers(0, 255),
        mask=st.integers(0, 2**32 - 1),
    ),
    links=st.none() | st.lists(strings | st.just("switch"), max_size=40).map(tuple),
    processes=st.none()
    | st.lists(
        st.builds(FakeProcess, pid=st.integers(0, 2**32 - 1), graphics=st.booleans()), max_size=4
    ).map(tuple),
    mig=st.none()
    | st.lists(
        st.builds(
            FakeInstance,
            profile=strings,
            uuid=strings,
            gpu_instance=st.integers(0, 2**32 - 1),
            memory=st.integers(0, 2**64 - 1),
        ),
        max_size=3,
    ).map(tuple),
    failing=st.dictionaries(
        st.sampled_from(
            ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetUUID",
             "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPciInfo", "nvmlDeviceGetNvLinkState",
             "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMigMode"]
        ),
        codes,
        max_size=3,
    ),
)  # fmt: skip


@given(st.builds(FakeMachine, cards=st.lists(cards, max_size=4).map(tuple)))
@settings(max_examples=200, deadline=None)
def test_whatever_the_library_says_gives_cards_with_indices_and_uuids_of_their_own(
    tmp_path_factory: pytest.TempPathFactory, machine: FakeMachine
) -> None:
    root = tmp_path_factory.getbasetemp()
    found = Reader(Sources(root=root), library=lambda: FakeNvml(lambda: machine)).read(Ours())
    assert found.gpus is not None
    assert len(found.gpus) >= len(machine.cards)
    assert len({gpu.index for gpu in found.gpus}) == len(found.gpus)
    named = [gpu.uuid for gpu in found.gpus if gpu.uuid is not None]
    assert len(named) == len(set(named))
    assert all(gpu.memory_bytes is None or gpu.memory_bytes > 0 for gpu in found.gpus)
    assert all((gpu.healthy is False) == (gpu.unhealthy_reason is not None) for gpu in found.gpus)
