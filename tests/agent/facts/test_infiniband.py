"""RDMA adapters of other people's machines; values of the rdma captures (gpud, procfs), trees ours."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.facts.gpu_captures import SHARED, capture
from roost.agent.facts.infiniband import parse_gid_prefix, parse_rate, parse_state, read
from roost.domain.fabric import FabricAttachment, FabricName, HcaName

DEFAULT = "fe80:0000:0000:0000:248a:0703:001e:39fe"
OWN_PREFIX = "fec0:0000:0000:0007:248a:0703:001e:39fe"


def hca(root: Path, name: str, ports: Mapping[int, Mapping[str, str]], **values: str) -> None:
    place = root / "sys/class/infiniband" / name
    place.mkdir(parents=True)
    for key, value in values.items():
        (place / key).write_text(value + "\n")
    for number, said in ports.items():
        for key, value in said.items():
            file = place / "ports" / str(number) / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(value + "\n")


def port(
    state: str = "4: ACTIVE",
    layer: str = "InfiniBand",
    gid: str = DEFAULT,
    phys: str = "5: LinkUp",
    rate: str = "400 Gb/sec (4X NDR)",
) -> dict[str, str]:
    return {
        "state": state, "link_layer": layer, "gids/0": gid, "phys_state": phys, "rate": rate,
    }  # fmt: skip


def attachment(name: str, *hcas: str) -> FabricAttachment:
    return FabricAttachment(name=FabricName(name), hcas=tuple(HcaName(one) for one in hcas))


def test_an_hgx_h100_has_its_mlx5s_on_the_fabric_that_the_operator_names(tmp_path: Path) -> None:
    # gpud's machine: mlx5_0, 1, 4, 5, 6, 8, 9, all ConnectX-7, NDR.
    names = ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_8", "mlx5_9", "mlx5_10"]
    for name in names:
        hca(tmp_path, name, {1: port()}, hca_type="MT4129", fw_ver="28.41.1000")
    attached, hcas, problems = read(tmp_path, {"ib0": ("mlx5_*",)})
    assert attached == (attachment("ib0", *names),)
    assert problems == []
    assert hcas is not None
    one = next(one for one in hcas if one.name == "mlx5_0")
    assert (one.kind, one.firmware) == ("MT4129", "28.41.1000")
    (first,) = one.ports
    assert (first.active, first.state, first.physical_state, first.rate_gbps, first.link_layer) == (
        True, "ACTIVE", "LinkUp", 400, "InfiniBand",
    )  # fmt: skip


def test_an_mlx4_with_two_ports_is_on_its_subnets_fabric(tmp_path: Path) -> None:
    two = {n: port(gid=OWN_PREFIX, rate="40 Gb/sec (4X QDR)") for n in (1, 2)}
    hca(tmp_path, "mlx4_0", two, hca_type="MT4099", fw_ver="2.31.5050")
    attached, hcas, problems = read(tmp_path, {})
    assert attached == (attachment("ib-fec0000000000007", "mlx4_0"),)
    assert problems == []
    assert [one.rate_gbps for one in (hcas or ())[0].ports] == [40, 40]


def test_the_default_subnet_prefix_names_no_fabric_and_the_hint_says_how(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2"):
        hca(tmp_path, name, {1: port()})
    attached, _, problems = read(tmp_path, {})
    assert attached == ()
    (problem,) = problems
    assert problem.startswith("mlx5_2, mlx5_10: InfiniBand is active and the fabric has no name")
    assert problem.endswith("name it: --fabric ib0=mlx5_2,mlx5_10")


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", ""])
def test_a_port_that_is_not_active_attaches_nothing(state: str, tmp_path: Path) -> None:
    hca(tmp_path, "mlx5_0", {1: port(state=state, gid=OWN_PREFIX)})
    attached, hcas, problems = read(tmp_path, {"ib0": ("mlx5_0",)})
    assert attached == ()
    assert problems == []
    assert [one.active for one in (hcas or ())[0].ports] == [False]


def test_an_adapter_that_loses_one_of_two_ports_keeps_the_other(tmp_path: Path) -> None:
    # B010.
    hca(tmp_path, "mlx5_0", {1: port(state="1: DOWN", phys="3: Disabled"), 2: port()})
    attached, hcas, _ = read(tmp_path, {"ib0": ("mlx5_0",)})
    assert attached == (attachment("ib0", "mlx5_0"),)
    assert [(one.number, one.active) for one in (hcas or ())[0].ports] == [(1, False), (2, True)]


def test_roce_is_on_a_fabric_only_when_somebody_says_so(tmp_path: Path) -> None:
    # ionic, bnxt and mlx5 over Ethernet (AMD's device-metrics-exporter has two such machines).
    for name in ("rocep68s0", "rocep132s0", "ionic_1"):
        hca(tmp_path, name, {1: port(layer="Ethernet", gid="fe80::1")})
    assert read(tmp_path, {})[0] == ()
    assert read(tmp_path, {})[2] == []
    attached, _, _ = read(tmp_path, {"roce": ("rocep*",)})
    assert attached == (attachment("roce", "rocep68s0", "rocep132s0"),)


def test_efa_has_a_link_layer_of_no_name_and_is_the_operators_to_name(tmp_path: Path) -> None:
    # p4d, p5: EFA says "Unspecified"; its ports are always active.
    for bus in (16, 32, 144, 160):
        hca(tmp_path, f"rdmap{bus}s27", {1: port(layer="Unspecified", gid=OWN_PREFIX)})
    assert read(tmp_path, {})[0] == ()
    attached, _, _ = read(tmp_path, {"efa": ("rdmap*",)})
    assert attached == (
        attachment("efa", "rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27"),
    )


def test_ndv4_and_ndv5_have_eight_adapters_of_one_fabric(tmp_path: Path) -> None:
    for number in range(8):
        hca(tmp_path, f"mlx5_ib{number}", {1: port(gid=OWN_PREFIX, rate="200 Gb/sec (4X HDR)")})
    hca(tmp_path, "mlx5_an0", {1: port(layer="Ethernet", gid="fe80::1")})
    attached, hcas, _ = read(tmp_path, {})
    assert attached == (attachment("ib-fec0000000000007", *(f"mlx5_ib{n}" for n in range(8))),)
    assert len(hcas or ()) == 9


def test_the_first_fabric_that_names_an_adapter_has_it(tmp_path: Path) -> None:
    for number in range(3):
        hca(tmp_path, f"mlx5_{number}", {1: port(gid=OWN_PREFIX)})
    attached, _, problems = read(tmp_path, {"storage": ("mlx5_2",), "ib0": ("mlx5_*", "hfi1_0")})
    assert attached == (attachment("ib0", "mlx5_0", "mlx5_1"), attachment("storage", "mlx5_2"))
    assert problems == ["fabric ib0 names hfi1_0, which this machine does not have"]


def test_a_machine_without_adapters_is_on_no_fabric_and_one_without_sys_is_not_known(
    tmp_path: Path,
) -> None:
    assert read(tmp_path / "nothing", {})[:2] == (None, None)
    (tmp_path / "sys/class").mkdir(parents=True)
    assert read(tmp_path, {}) == ((), (), [])
    assert read(tmp_path, {"ib0": ("mlx5_0",)})[2] == [
        "fabric ib0 names mlx5_0, which this machine does not have"
    ]


def test_an_adapter_without_ports_and_one_with_unreadable_ones_are_listed(tmp_path: Path) -> None:
    hca(tmp_path, "mlx5_0", {})
    hca(tmp_path, "mlx5_1", {1: {"rate": "nonsense"}})
    attached, hcas, _ = read(tmp_path, {"ib0": ("*",)})
    assert attached == ()
    assert [len(one.ports) for one in hcas or ()] == [0, 1]
    assert (hcas or ())[1].ports[0].state is None


def test_an_adapters_address_is_where_its_link_leads(tmp_path: Path) -> None:
    hca(tmp_path, "mlx5_0", {1: port()})
    device = tmp_path / "sys/devices/pci0000:00/0000:41:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(device)
    one = (read(tmp_path, {})[1] or ())[0]
    assert (one.pci_address, one.numa_node) == ("0000:41:00.0", 1)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        (DEFAULT, None),
        (OWN_PREFIX, "fec0000000000007"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", None),
        ("", None),
        ("fe80::1", None),
        ("zzzz:0:0:0:0:0:0:0", None),
    ],
)
def test_a_prefix_is_a_name_only_where_somebody_set_one(text: str, prefix: str | None) -> None:
    assert parse_gid_prefix(text) == prefix


# -- one value of a file each, of machines whose trees were not kept -------------------------------

VALUES = {
    "procfs__mlx4_0_ports_1_state": ("state", "ACTIVE"),
    "procfs__mlx4_0_ports_1_phys_state": ("state", "LinkUp"),
    "procfs__mlx4_0_ports_1_rate": ("rate", 40.0),
    "procfs__mlx4_0_ports_2_state": ("state", "ACTIVE"),
    "procfs__mlx4_0_ports_2_phys_state": ("state", "LinkUp"),
    "procfs__mlx4_0_ports_2_rate": ("rate", 40.0),
    "gpud__1_state": ("state", "ACTIVE"),
    "gpud__1_phys_state": ("state", "LinkUp"),
    "gpud__1_rate": ("rate", 400.0),
    **{f"{n}_gpud__1_state": ("state", "ACTIVE") for n in (2, 3, 4, 5, 7, 8)},
    **{f"{n}_gpud__1_phys_state": ("state", "LinkUp") for n in (2, 3, 4, 5, 7, 8)},
    **{f"{n}_gpud__1_rate": ("rate", 400.0) for n in (2, 3, 4, 5, 7, 8)},
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_sys_class_infiniband_is_what_it_is(name: str) -> None:
    kind, value = VALUES[name]
    text = capture(name).read_text()
    assert (parse_state(text) if kind == "state" else parse_rate(text)) == value


def test_every_other_rdma_capture_is_no_state_and_no_prefix() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no captures in {SHARED}: set ROOST_CAPTURES")
    for path in sorted((SHARED / "rdma").iterdir()):
        text = path.read_text(errors="replace")
        if path.name not in VALUES:
            assert parse_state(text) is None, path.name
            assert parse_rate(text) is None, path.name
        assert parse_gid_prefix(text) is None
