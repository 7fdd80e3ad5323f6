import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.gpu_captures import OWN
from roost.agent.facts.card import MIB
from roost.agent.facts.gpu_class import LONGEST, gpu_class, mig_class, mig_profile

PRODUCTS = dict(
    line.split("\t") for line in (OWN / "products.tsv").read_text().splitlines() if line.strip()
)


def test_more_than_two_hundred_products_have_a_class_each_and_share_none() -> None:
    assert len(PRODUCTS) >= 200
    classes = [gpu_class(product) for product in PRODUCTS]
    assert len(set(classes)) == len(PRODUCTS)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_class_that_was_shipped_keeps_its_name(product: str) -> None:
    assert gpu_class(product) == PRODUCTS[product]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA Tesla T4", "Tesla T4"),
        ("NVIDIA H100 80GB HBM3 ", "nvidia  h100 80gb hbm3"),
        ("Arcturus GL-XL [Instinct MI100]", "AMD Instinct MI100"),
        ("Radeon RX 7800 XT", "AMD Radeon(TM) RX 7800 XT"),
        ("AMD INSTINCT MI250X", "AMD Instinct\u2122 MI250X"),
        ("NVIDIA GeForce\u00ae RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("TITAN RTX", "NVIDIA TITAN RTX"),
        ("NVIDIA GeForce\u00a0RTX 3090", "GeForce RTX 3090"),
    ],
)
def test_one_product_is_one_class_however_its_driver_spells_it(one: str, other: str) -> None:
    assert gpu_class(one) == gpu_class(other)


def test_a_laptop_chip_that_differs_by_capitals_alone_is_another_product() -> None:
    assert gpu_class("NVIDIA GeForce RTX 2080 SUPER") == "rtx-2080-super"
    assert gpu_class("NVIDIA GeForce RTX 2080 Super") == "rtx-2080-super-laptop"
    assert (
        gpu_class("NVIDIA GeForce RTX 2080 Super with Max-Q Design")
        == "rtx-2080-super-with-max-q-design"
    )


@pytest.mark.parametrize("product", ["NVIDIA Graphics Device", "Graphics Device", "NVIDIA", ""])
def test_cards_without_a_name_are_told_apart_by_their_chip(product: str) -> None:
    one, other = gpu_class(product, "10de:307f"), gpu_class(product, "10de:2330")
    assert one != other
    assert one.endswith("10de-307f")


def test_a_card_that_tells_nothing_is_of_an_unknown_class() -> None:
    assert gpu_class(None) == "unknown"
    assert gpu_class(None, "1002:744c") == "pci-1002-744c"


def test_a_product_of_the_future_is_a_class_of_its_own() -> None:
    known = set(PRODUCTS.values())
    for product in (
        "NVIDIA H1000 80GB HBM3",
        "NVIDIA A10X",
        "NVIDIA L40SX",
        "NVIDIA GeForce RTX 4090 T",
    ):
        assert gpu_class(product) not in known


def test_a_name_that_is_too_long_stays_its_own() -> None:
    one, other = "NVIDIA " + "x" * 300 + " A", "NVIDIA " + "x" * 300 + " B"
    assert gpu_class(one) != gpu_class(other)
    assert len(gpu_class(one)) <= LONGEST


@given(st.text(max_size=300), st.none() | st.text(max_size=20))
def test_any_text_gives_a_short_lower_case_class(product: str, pci_id: str | None) -> None:
    found = gpu_class(product, pci_id)
    assert 0 < len(found) <= LONGEST + 60
    assert not any(character.isspace() for character in found)
    assert gpu_class(product, pci_id) == found


def mig(sm: int, engines: int | None, mib: int, parent_mib: int) -> str | None:
    return mig_profile(
        multiprocessors=sm, copy_engines=engines, memory=mib * MIB, parent_memory=parent_mib * MIB
    )


@pytest.mark.parametrize(
    ("found", "profile"),
    [
        (mig(60, 3, 40448, 81559), "3g.40gb"),
        (mig(32, 2, 20096, 81559), "2g.20gb"),
        (mig(16, 1, 9984, 81559), "1g.10gb"),
        (mig(26, 1, 20096, 81559), "1g.20gb"),
        (mig(132, 8, 81559, 81559), "7g.80gb"),
        (mig(14, 1, 19968, 81920), "1g.20gb"),
        (mig(14, 1, 4864, 40536), "1g.5gb"),
        (mig(42, 3, 19968, 40536), "3g.20gb"),
        (mig(98, 7, 40192, 40536), "7g.40gb"),
        (mig(14, 1, 5952, 24576), "1g.6gb"),
        (mig(16, 1, 16384, 143771), "1g.18gb"),
        (mig(18, 1, 22528, 183359), "1g.23gb"),
    ],
)
def test_a_mig_profile_is_told_by_what_the_instance_has(found: str, profile: str) -> None:
    assert found == profile


def test_an_instance_of_an_unknown_chip_is_named_by_what_it_has_and_not_taken_for_another() -> None:
    assert mig(16, None, 10240, 81920) == "16sm.10gb"
    assert mig(200, 3, 40448, 81559) == "200sm.40gb"
    assert mig(16, 1, 90000, 81559) is None
    assert mig_class(gpu_class("NVIDIA H100 80GB HBM3"), "1g.10gb") == "h100-80gb-hbm3-mig-1g.10gb"
    assert gpu_class("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me") == "h100-80gb-hbm3-mig-1g.10gb+me"
