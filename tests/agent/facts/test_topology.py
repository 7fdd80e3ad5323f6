import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.agent.facts.card import SWITCH, Card, Evidence
from roost.agent.facts.topology import Matrix, domains, parse_matrix


def of_text(text: str, count: int) -> tuple[int | None, ...]:
    matrix = parse_matrix(text)
    assert matrix is not None
    return domains([Card(index=index) for index in range(count)], matrix)


def all_linked(count: int, link: str, nics: int = 0) -> str:
    """As the H100 and B200 boxes print it, NICs and affinities behind the GPUs."""
    names = [f"GPU{n}" for n in range(count)] + [f"NIC{n}" for n in range(nics)]
    lines = ["\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"]
    for row in range(count + nics):
        cells = [
            " X " if row == column else link if row < count and column < count else "NODE"
            for column in range(count + nics)
        ]
        lines.append("\t".join([names[row], *cells, "0-55,112-167", "0"]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  NV#  = Connection"])


# DGX-1: a hybrid cube mesh of eight V100s; each links four others.
CUBE_MESH = """
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    mlx5_0  CPU Affinity
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS     NODE    0-11,24-35
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS     NODE    0-11,24-35
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS     PIX     0-11,24-35
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1     PIX     0-11,24-35
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2     SYS     12-23,36-47
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1     SYS     12-23,36-47
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2     SYS     12-23,36-47
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X      SYS     12-23,36-47
mlx5_0  NODE    NODE    PIX     PIX     SYS     SYS     SYS     SYS      X
"""
# Two A100 PCIe pairs with bridges.
PAIRS = """
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     SYS     0-23            N/A
GPU1    NV12     X      SYS     SYS     24-47           N/A
GPU2    SYS     SYS      X      NV12    48-71           N/A
GPU3    SYS     SYS     NV12     X      72-95           N/A
"""
# Three RTX A6000, one bridge.
PAIR_AND_ONE = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tNODE\t0-31,64-95\t0\n"
    "GPU1\tNV4\t X \tNODE\t0-31,64-95\t0\n"
    "GPU2\tNODE\tNODE\t X \t0-31,64-95\t0\n"
)
# Four A100 in a ring of links, two NICs; the header without a tab before it.
POLARIS = (
    "GPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1 CPU Affinity NUMA Affinity\n"
    "GPU0\t X \tNV4\tNV4\tNV4\tSYS\tSYS\t24-31,56-63\t3\n"
    "GPU1\tNV4\t X \tNV4\tNV4\tSYS\tPHB\t16-23,48-55\t2\n"
    "GPU2\tNV4\tNV4\t X \tNV4\tSYS\tSYS\t8-15,40-47\t1\n"
    "GPU3\tNV4\tNV4\tNV4\t X \tPHB\tSYS\t0-7,32-39\t0\n"
    "mlx5_0\tSYS\tSYS\tSYS\tPHB\t X \tSYS\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (all_linked(8, "NV18", nics=12), (0,) * 8),
        (all_linked(8, "NV12"), (0,) * 8),
        (all_linked(16, "NV6"), (0,) * 16),
        (all_linked(4, "SYS", nics=1), (0, 1, 2, 3)),
        (all_linked(2, "PHB"), (0, 1)),
        (CUBE_MESH, (0,) * 8),
        (PAIRS, (0, 0, 1, 1)),
        (PAIR_AND_ONE, (0, 0, 1)),
        (POLARIS, (0,) * 4),
    ],
)
def test_domains_are_the_connected_parts_of_the_matrix(
    text: str, expected: tuple[int | None, ...]
) -> None:
    assert of_text(text, len(expected)) == expected


def test_a_pair_that_is_garbled_is_not_known_and_its_cards_have_no_domain() -> None:
    garbled = PAIRS.replace("SYS     SYS      X      NV12", "SYS     SYS      X      ????")
    garbled = garbled.replace("SYS     SYS     NV12     X", "SYS     SYS     ????     X")
    assert of_text(garbled, 4) == (0, 0, None, None)


def test_one_readable_direction_of_a_pair_is_enough() -> None:
    assert of_text(PAIRS.replace("GPU1    NV12     X", "GPU1    SYS      X"), 4) == (0, 0, 1, 1)


def test_a_card_that_the_matrix_does_not_have_is_not_known() -> None:
    assert of_text(PAIR_AND_ONE, 4) == (0, 0, None, None)


@pytest.mark.parametrize(
    "text", ["", "Legend:", "GPU 0: NVIDIA L40S (UUID: GPU-1)", "GPU0", "\tGPU0\tGPU0\nGPU0\tX\tX"]
)
def test_text_without_the_table_is_no_matrix(text: str) -> None:
    assert parse_matrix(text) is None


def card(index: int, nvlinks: frozenset[str] | None = None, clique: str | None = None) -> Card:
    return Card(index=index, pci_address=f"0000:{index:02x}:00.0", nvlinks=nvlinks, clique=clique)


def test_links_to_a_switch_join_what_is_behind_it() -> None:
    behind = frozenset({SWITCH})
    assert domains([card(0, behind), card(1, behind), card(2, frozenset())]) == (0, 0, 1)


def test_links_to_each_other_make_pairs() -> None:
    peers = [frozenset({f"0000:{other:02x}:00.0"}) for other in (1, 0, 3, 2)]
    assert domains([card(n, peers[n]) for n in range(4)]) == (0, 0, 1, 1)


def test_a_card_that_says_nothing_is_known_by_the_link_that_ends_at_it() -> None:
    assert domains([card(0, frozenset({"0000:01:00.0"})), card(1), card(2)]) == (0, 0, None)


def test_links_that_end_outside_of_what_is_listed_tell_nothing() -> None:
    assert domains([card(0, frozenset({"0000:99:00.0"}))]) == (None,)


def test_a_lost_card_is_in_no_domain() -> None:
    lost = Card(index=1, evidence=Evidence(lost="lost"), nvlinks=frozenset({SWITCH}))
    assert domains([card(0, frozenset({SWITCH})), lost]) == (0, None)


def test_the_fabric_joins_what_its_links_do_not_tell() -> None:
    assert domains([card(0, clique="a/1"), card(1, clique="a/1"), card(2, clique="a/2")]) == (
        0,
        0,
        1,
    )


pairs = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda p: p[0] < p[1]))


@given(pairs, st.integers(1, 7))
def test_domains_are_what_can_be_reached(links: set[tuple[int, int]], count: int) -> None:
    every = {(a, b): (a, b) in links for a in range(count) for b in range(a + 1, count)}
    matrix = Matrix(pairs=every, gpus=frozenset(range(count)))
    found = domains([card(n) for n in range(count)], matrix)
    reach = {n: {n} for n in range(count)}
    for _ in range(count):  # the rule again, stupidly
        for a, b in links:
            if a < count and b < count:
                reach[a] = reach[b] = reach[a] | reach[b]
    for one in range(count):
        for other in range(count):
            together = any(one in group and other in group for group in reach.values())
            assert (found[one] == found[other]) is together
    assert set(found) == set(range(len(set(found))))
