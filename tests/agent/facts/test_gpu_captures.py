"""Other people's GPUs, with what each is worked out by hand; sources in tests/data/facts/gpu."""

import json
from pathlib import Path

import pytest

from agent.facts.gpu_captures import MIB, capture, everywhere, look, shared
from roost.agent.facts.card import Card, Evidence
from roost.agent.facts.gpu_class import UNKNOWN, gpu_class
from roost.agent.facts.topology import domains, parse_matrix
from roost.agent.facts.xml_tree import parse

# Class, MiB, NVLink domain, healthy, reason, foreign processes, PCI address; driver first.
Row = tuple[str, int | None, int | None, bool | None, str | None, int | None, str]
ECC = "5 uncorrectable ECC errors; row remapping failed"
LOST = "lost: it has fallen off the bus"
XML: dict[str, tuple[str | None, list[Row]]] = {
    "telegraf__gtx-1070-ti.xml": (
        None, [("gtx-1070-ti", 4096, None, True, None, None, "0000:01:00.0")]),
    "telegraf__quadro-p400.xml": (
        "418.43", [("quadro-p400", 1998, None, True, None, 0, "0000:43:00.0")]),
    "telegraf__a10g.xml": (
        "515.105.01", [("a10g", 23028, None, True, None, 0, "0000:00:1e.0")]),
    "telegraf__tesla-t4.xml": (
        "515.105.01", [("t4", 15360, None, True, None, 1, "0000:00:1e.0")]),
    "telegraf__quadro-p2000-v12.xml": (
        "525.125.06", [("quadro-p2000", 5120, None, True, None, 0, "0000:17:00.0")]),
    "telegraf__rtx-3060-v12.xml": (
        "570.124.04", [("rtx-3060", 12288, None, True, None, 0, "0000:2d:00.0")]),
    "telegraf__rtx-3080-v12.xml": (
        "536.40", [("rtx-3080", 10240, None, True, None, 0, "0000:04:00.0")]),
    "telegraf__rtx-3080-v13.xml": (
        "595.58.03", [("rtx-3080", 10240, None, True, None, 0, "0000:0c:00.0")]),
    "telegraf__rtx-4000-sff-ada-v13.xml": (
        "595.84", [("rtx-4000-sff-ada-generation", 20475, None, True, None, 2, "0000:06:00.0")]),
    "k8s-test-infra__qx-a100.xml": (
        "570.148.08", [("a100-sxm4-40gb", 40960, None, True, None, 0, "0000:06:00.0")]),
    "k8s-test-infra__qx-a100-healthy.xml": ("550.163.01", [
        ("a100-sxm4-40gb", 40960, None, True, None, 0, "0000:07:00.0"),
        ("a100-sxm4-40gb", 40960, None, True, None, 0, "0000:0f:00.0")]),
    "k8s-test-infra__qx-l40s.xml": (
        "595.91.07", [("l40s", 46068, None, True, None, 0, "0000:30:00.0")]),
    "k8s-test-infra__qx-t4.xml": (
        "595.91.07", [("t4", 15360, None, True, None, 0, "0000:00:1e.0")]),
    "k8s-test-infra__qx-gb200-ecc-injected.xml": ("580.65.06", [
        ("gb200", 196608, 0, False, ECC, 0, "0000:0a:00.0"),
        ("gb200", 196608, 0, True, None, 0, "0000:0b:00.0")]),
    "k8s-test-infra__qx-gb200-lost.xml": ("580.65.06", [
        ("gb200", 196608, 0, False, ECC, 0, "0000:0a:00.0"),
        ("gb200", None, None, False, LOST, None, "0000:0b:00.0")]),
    "k8s-test-infra__testdata_qx-gb200-fabric-degraded.xml": ("580.65.06", [
        ("gb200", 196608, 0, True, None, 0, "0000:0a:00.0"),
        ("gb200", 196608, 0, False, "NVSwitch fabric is unhealthy: route unhealthy", 0,
         "0000:0b:00.0")]),
    "k8s-test-infra__testdata_qx-gb200-throttle-counters.xml": ("580.65.06", [
        ("gb200", 196608, 0, True, None, 0, "0000:0a:00.0"),
        ("gb200", 196608, 0, True, None, 0, "0000:0b:00.0")]),
    "telegraf__a100-sxm4-v12.xml": ("535.54.03", [
        ("a100-sxm4-80gb", 81920, None, False, "split into 4 MIG instances", 0, "0000:01:00.0"),
        *[("a100-sxm4-80gb-mig-1g.20gb", 19968, part, True, None, 0, "0000:01:00.0")
          for part in range(4)]]),
}  # fmt: skip


@pytest.mark.parametrize("name", XML)
def test_the_cards_of_an_xml_are_what_they_are(name: str, tmp_path: Path) -> None:
    driver, rows = XML[name]
    found = look(tmp_path, nvidia_smi_xml=capture(name))
    assert found.gpus is not None
    assert found.details is not None
    seen = [
        (
            gpu.gpu_class,
            None if gpu.memory_bytes is None else gpu.memory_bytes // MIB,
            gpu.nvlink_domain,
            gpu.healthy,
            gpu.unhealthy_reason,
            gpu.foreign_processes,
            detail.pci_address,
        )
        for gpu, detail in zip(found.gpus, found.details, strict=True)
    ]
    assert seen == rows
    assert {detail.driver for detail in found.details} == {driver}
    assert [gpu.index for gpu in found.gpus] == list(range(len(rows)))
    assert all(gpu.uuid for gpu in found.gpus)


def test_a_list_that_is_shorter_than_its_own_count_is_a_problem(tmp_path: Path) -> None:
    found = look(tmp_path, nvidia_smi_xml=capture("telegraf__a100-sxm4-v12.xml"))
    assert found.problems == ("nvidia-smi counts 4 GPUs and does not describe 3 of 4",)


def test_mig_instances_without_a_uuid_are_named_as_cuda_names_them(tmp_path: Path) -> None:
    found = look(tmp_path, nvidia_smi_xml=capture("telegraf__a100-sxm4-v12.xml"))
    assert [gpu.uuid for gpu in found.gpus or ()][1:] == [
        f"MIG-GPU-ebde24da-2759-3333-e3cf-6e15e939c5fb/{instance}/0" for instance in (3, 4, 5, 6)
    ]


# The elements that are read, as real machines of NVIDIA/k8s-test-infra's hardware captures have them
# (B200, GB300, Vera Rubin NVL72 and an H100 in MIG mode), uuids made up.
def card_xml(
    name: str,
    *,
    uuid: str = "GPU-1",
    pci: str = "00000000:8F:00.0",
    device: str = "290110DE",
    memory: str = "183359 MiB",
    cluster: str = "00000000-0000-0000-0000-000000000000",
    clique: str = "0",
    state: str = "Completed",
    processes: str = "",
    more: str = "",
) -> str:
    return f"""<gpu id="{pci}"><product_name>{name}</product_name><uuid>{uuid}</uuid>
    <pci><pci_device_id>{device}</pci_device_id><pci_bus_id>{pci}</pci_bus_id></pci>
    <gpu_recovery_action>None</gpu_recovery_action><performance_state>P0</performance_state>
    <fb_memory_usage><total>{memory}</total><used>0 MiB</used></fb_memory_usage>
    <ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
    <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
    <dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
    <remapped_rows><remapped_row_pending>No</remapped_row_pending>
    <remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <fabric><state>{state}</state><status>Success</status><cliqueId>{clique}</cliqueId>
    <clusterUuid>{cluster}</clusterUuid><health><summary>Healthy</summary></health></fabric>
    <processes>{processes}</processes>{more}</gpu>"""


def xml_file(tmp_path: Path, *cards: str, driver: str = "580.105.08") -> Path:
    path = tmp_path / "smi.xml"
    path.write_text(
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">'
        f"<nvidia_smi_log><driver_version>{driver}</driver_version>"
        f"<attached_gpus>{len(cards)}</attached_gpus>{''.join(cards)}</nvidia_smi_log>"
    )
    return path


def test_b200s_of_one_box_have_no_fabric_uuid_so_their_nvlink_is_not_known(tmp_path: Path) -> None:
    cards = [
        card_xml("NVIDIA B200", uuid=f"GPU-{n}", pci=f"00000000:{n + 16:02X}:00.0")
        for n in range(8)
    ]
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, *cards))
    assert [gpu.gpu_class for gpu in found.gpus or ()] == ["b200"] * 8
    assert {gpu.memory_bytes for gpu in found.gpus or ()} == {183359 * MIB}
    assert {gpu.nvlink_domain for gpu in found.gpus or ()} == {None}
    assert all(gpu.healthy for gpu in found.gpus or ())


def test_gb300s_registered_in_one_fabric_are_one_domain(tmp_path: Path) -> None:
    cards = [
        card_xml(
            "NVIDIA GB300", uuid=f"GPU-{n}", pci=f"{n + 8:08X}:06:00.0", memory="284208 MiB",
            device="31C210DE", cluster="00000001-0000-0000-0000-000000000001", clique="32766",
        )
        for n in range(4)
    ]  # fmt: skip
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, *cards))
    assert [(gpu.gpu_class, gpu.nvlink_domain) for gpu in found.gpus or ()] == [("gb300", 0)] * 4
    assert next(detail.pci_address for detail in found.details or ()) == "0008:06:00.0"


def test_two_partitions_of_one_fabric_are_two_domains(tmp_path: Path) -> None:
    cluster = "00000001-0000-0000-0000-000000000001"
    cards = [
        card_xml("NVIDIA GB300", uuid=f"GPU-{n}", cluster=cluster, clique=str(n // 2))
        for n in range(4)
    ]
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, *cards))
    assert [gpu.nvlink_domain for gpu in found.gpus or ()] == [0, 0, 1, 1]


def test_a_chip_that_its_driver_has_no_name_for_is_a_class_of_its_own(tmp_path: Path) -> None:
    card = card_xml("NVIDIA Graphics Device", device="307F10DE", memory="286524 MiB")
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card))
    assert [gpu.gpu_class for gpu in found.gpus or ()] == ["graphics-device-10de-307f"]


@pytest.mark.parametrize("memory", ["N/A", "[N/A]", "Not Supported", "0 MiB", "Unknown"])
def test_memory_shared_with_the_cpu_is_unknown_and_never_0(memory: str, tmp_path: Path) -> None:
    # B005, node 1: GB10, GH200, Jetson.
    text = card_xml("NVIDIA GB10", memory=memory, state="N/A", processes="""<process_info>
        <pid>2553</pid><type>G</type><process_name>/usr/lib/xorg/Xorg</process_name></process_info>
        <process_info><pid>415592</pid><type>C</type><process_name>VLLM::EngineCore</process_name>
        </process_info>""")  # fmt: skip
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, text))
    (gpu,) = found.gpus or ()
    assert (gpu.gpu_class, gpu.memory_bytes, gpu.healthy, gpu.foreign_processes) == (
        "gb10", None, True, 1,
    )  # fmt: skip


def test_an_h100_in_mig_mode_without_instances_is_not_to_be_had(tmp_path: Path) -> None:
    card = card_xml(
        "NVIDIA H100 80GB HBM3",
        more="<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
        "<mig_devices>None</mig_devices>",
    )
    (gpu,) = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card)).gpus or ()
    assert gpu.unhealthy_reason == "MIG mode is on, and it has no instances"
    assert gpu.healthy is False


def test_processes_of_a_mig_card_count_on_their_instance_alone(tmp_path: Path) -> None:
    part = (
        "<mig_device><index>{n}</index><gpu_instance_id>{gi}</gpu_instance_id>"
        "<compute_instance_id>0</compute_instance_id><device_attributes><shared>"
        "<multiprocessor_count>{sm}</multiprocessor_count>"
        "<copy_engine_count>{ce}</copy_engine_count></shared></device_attributes>"
        "<fb_memory_usage><total>{mib} MiB</total></fb_memory_usage></mig_device>"
    )
    parts = [
        part.format(n=0, gi=2, sm=60, ce=3, mib=40448),
        part.format(n=1, gi=3, sm=32, ce=2, mib=20096),
        part.format(n=2, gi=9, sm=16, ce=1, mib=9984),
        part.format(n=3, gi=10, sm=16, ce=1, mib=9984),
    ]
    running = "".join(
        f"<process_info><gpu_instance_id>2</gpu_instance_id><pid>{pid}</pid><type>C</type>"
        "<process_name>/root/tools/memhog</process_name></process_info>"
        for pid in (21180, 21181)
    )
    card = card_xml(
        "NVIDIA H100 80GB HBM3",
        memory="81559 MiB",
        processes=running,
        more="<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
        f"<mig_devices>{''.join(parts)}</mig_devices>",
    )
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card)).gpus or ()
    assert [(gpu.gpu_class, gpu.foreign_processes) for gpu in found[1:]] == [
        ("h100-80gb-hbm3-mig-3g.40gb", 2),
        ("h100-80gb-hbm3-mig-2g.20gb", 0),
        ("h100-80gb-hbm3-mig-1g.10gb", 0),
        ("h100-80gb-hbm3-mig-1g.10gb", 0),
    ]


def test_command_lines_that_break_the_xml_cost_the_processes_and_no_card(tmp_path: Path) -> None:
    broken = "<process_info><pid>1</pid><type>C</type><process_name>a && b <x</process_name>"
    card = card_xml("NVIDIA H200", processes=broken)
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card))
    (gpu,) = found.gpus or ()
    assert (gpu.gpu_class, gpu.foreign_processes) == ("h200", None)
    assert found.problems == ("nvidia-smi's list of processes cannot be read: they are not known",)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("<retired_pages><pending_blacklist>Yes</pending_blacklist></retired_pages>",
         "page retirement pending"),
        ("<retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>",
         "page retirement pending"),
    ],
)  # fmt: skip
def test_pending_retirement_speaks_against_a_card_in_old_and_new_words(
    more: str, reason: str, tmp_path: Path
) -> None:
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card_xml("Tesla V100", more=more)))
    assert [gpu.unhealthy_reason for gpu in found.gpus or ()] == [reason]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("In Progress", "NVSwitch fabric is not ready: in progress"),
        ("Not Started", "NVSwitch fabric is not ready: not started"),
        ("N/A", None),
        ("Not Supported", None),
    ],
)
def test_a_card_waits_for_its_nvswitch_fabric(
    state: str, reason: str | None, tmp_path: Path
) -> None:
    found = look(tmp_path, nvidia_smi_xml=xml_file(tmp_path, card_xml("NVIDIA H200", state=state)))
    assert [gpu.unhealthy_reason for gpu in found.gpus or ()] == [reason]


# -- AMD -----------------------------------------------------------------------------------------

AMD: dict[str, tuple[str, str, int, int | None, int, str | None]] = {
    # class, driver, cards, NVLink domain of the last, bytes, uuid of the first
    "telegraf__rx6700xt_rocm430.json": ("pci-1002-73df", "6.3.6", 1, None, 12868124672, None),
    "telegraf__rx6700xt_rocm571.json": (
        "rx-6700-6700-xt-6800m", "6.3.6", 1, None, 12868124672, None),
    "telegraf__rx6700xt_rocm612.json": (
        "rx-6700-6700-xt-6800m", "6.3.6", 1, None, 12868124672, None),
    "telegraf__mi100_rocm571.json": ("mi100", "6.2.4", 6, 5, 34342961152, None),
    "telegraf__vega-20-WKS-GL-XE.json": (
        "mi50-32gb", "5.9.17", 1, None, 34342961152, "GPU-02f048617326b1ea"),
}  # fmt: skip


@pytest.mark.parametrize("name", AMD)
def test_the_cards_of_rocm_smi_are_what_they_are(name: str, tmp_path: Path) -> None:
    kind, driver, count, last, memory, uuid = AMD[name]
    found = look(tmp_path, amd_smi_json=capture(name))
    gpus, details = found.gpus or (), found.details or ()
    assert [gpu.gpu_class for gpu in gpus] == [kind] * count
    assert gpus[-1].nvlink_domain == last
    assert {gpu.memory_bytes for gpu in gpus} == {memory}
    assert gpus[0].uuid == uuid
    assert {detail.driver for detail in details} == {driver}
    assert all(gpu.healthy for gpu in gpus)
    assert {gpu.foreign_processes for gpu in gpus} == {None}


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_says_the_same_in_its_own_words(wrapped: bool, tmp_path: Path) -> None:
    cards = [
        {
            "gpu": number,
            "asic": {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1",
                     "asic_serial": f"0x{number + 1:016X}"},
            "bus": {"bdf": f"0000:{number + 5:02x}:00.0"},
            "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
            "mem_usage": {"used_vram": {"value": 283, "unit": "MB"}},
            "ecc": {"total_uncorrectable_count": 2 * number},
        }
        for number in range(2)
    ]  # fmt: skip
    path = tmp_path / "amd.json"
    path.write_text(json.dumps({"gpu_data": cards} if wrapped else cards))
    found = look(tmp_path, amd_smi_json=path)
    one, other = found.gpus or ()
    assert (one.gpu_class, one.memory_bytes, one.uuid, one.healthy) == (
        "mi300x", 196592 * MIB, "GPU-0000000000000001", True,
    )  # fmt: skip
    assert (other.healthy, other.unhealthy_reason) == (False, "2 uncorrectable ECC errors")


def test_cards_that_xgmi_connects_are_one_domain(tmp_path: Path) -> None:
    document = json.loads(capture("telegraf__mi100_rocm571.json").read_text())
    for pair in ((0, 1), (1, 2), (4, 5)):
        document["system"][f"(Topology) Link type between DRM devices {pair[0]} and {pair[1]}"] = (
            "XGMI"
        )
    path = tmp_path / "rocm.json"
    path.write_text(json.dumps(document))
    found = look(tmp_path, amd_smi_json=path).gpus or ()
    assert [gpu.nvlink_domain for gpu in found] == [0, 0, 0, 1, 2, 2]


# -- worker records of another control plane: names of cards as people's drivers spell them --------

GPUSTACK = {
    "gpustack__linux_nvidia_11_V100_32gx2.json": ["v100"] * 2,
    "gpustack__linux_nvidia_12_A40_48gx2.json": ["a40"] * 2,
    "gpustack__linux_nvidia_13_A100_80gx8.json": ["a100-sxm4"] * 8,
    "gpustack__linux_nvidia_22_H100_80gx8.json": ["h100-sxm5"] * 8,
    "gpustack__linux_nvidia_26_H200_141gx8.json": ["h200-sxm5"] * 8,
    "gpustack__linux_nvidia_6_A100_80gx2.json": ["a100-80gb-pcie"] * 2,
    "gpustack__linux_nvidia_8_3090_24gx8.json": ["rtx-3090"] * 8,
    "gpustack__linux_nvidia_20_3080_12gx8.json": ["rtx-3080-ti"] * 8,
    "gpustack__linux_nvidia_21_4090_24gx4_3060_12gx4.json": ["rtx-4090"] * 4 + ["rtx-3060"] * 4,
    "gpustack__linux_rocm_2_7800_16gx2.json": ["rx-7800-xt"] * 2,
    "gpustack__linux_ascend_1_910b_64gx8.json": ["910b1"] * 8,
    "gpustack__linux_cpu_1.json": [],
}


@pytest.mark.parametrize("name", GPUSTACK)
def test_cards_of_whole_fleets_are_of_the_class_their_name_says(name: str) -> None:
    devices = json.loads(capture(name).read_text())["status"].get("gpu_devices") or []
    assert [gpu_class(device["name"]) for device in devices] == GPUSTACK[name]


# -- topologies that other tools wrote -------------------------------------------------------------


def test_the_sixteen_gpus_of_a_dgx_2_are_one_domain_behind_its_switches() -> None:
    root = parse(capture("hwloc__nvidiaDGX2.xml").read_text())
    names = {
        info.attributes["value"]
        for info in everywhere(root, "info")
        if info.attributes["name"] == "GPUModel"
    }
    assert {gpu_class(name) for name in names} == {"v100-sxm3-32gb-h"}
    (table,) = everywhere(root, "distances2hetero")
    things = " ".join(line.text for line in table.all("indexes")).split()
    values = [int(v) for line in table.all("u64values") for v in line.text.split()]
    assert len(values) == 28 * 28
    gpus = [place for place, thing in enumerate(things) if thing.startswith("OSDev")]
    switches = set(range(28)) - set(gpus)
    cards = [
        Card(
            index=number,
            pci_address=f"0000:{number:02x}:00.0",
            nvlinks=frozenset({"switch"} if any(values[place * 28 + s] for s in switches) else ()),
        )
        for number, place in enumerate(gpus)
    ]
    assert domains(cards) == (0,) * 16


@pytest.mark.parametrize(
    ("name", "gpus", "adapters", "adapter_class", "domain"),
    [
        ("azhpc-images__ndv4-topo.xml", 8, 8, "0x020700", None),
        ("azhpc-images__ndv5-topo.xml", 8, 8, "0x020700", None),
        ("azhpc-images__ndv2-topo.xml", 8, 1, "0x020700", None),
        ("aws-ofi-nccl__p4d-24xl-topo.xml", 8, 4, "0x020000", None),
        ("aws-ofi-nccl__p4de-24xl-topo.xml", 8, 4, "0x020000", None),
        ("oci-hpc__H100-topology.xml", 8, 8, "0x020000", 0),
        ("oci-hpc__H100-topology-kubernetes.xml", 8, 8, "0x020000", 0),
        ("oci-hpc__topo-flattened.xml", 8, 8, "0x020000", None),
    ],
)
def test_what_nccl_was_told_of_cloud_machines_gives_their_domains(
    name: str, gpus: int, adapters: int, adapter_class: str, domain: int | None
) -> None:
    devices = everywhere(parse(capture(name).read_text()), "pci")
    cards: list[Card] = []
    for device in devices:
        if device.attributes["class"] not in {"0x030200", "0x030000"}:
            continue
        links = everywhere(device, "nvlink")
        cards.append(
            Card(
                index=len(cards),
                pci_address=device.attributes["busid"],
                nvlinks=frozenset(
                    "switch"
                    if link.attributes["tclass"] == "0x068000"
                    else link.attributes["target"]
                    for link in links
                )
                or None,
            )
        )
    assert len(cards) == gpus
    assert sum(one.attributes["class"] == adapter_class for one in devices) == adapters
    assert domains(cards) == (domain,) * gpus


TOPO = {
    "nvidia_gpu_exporter__captures_linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05.txt",
    "nvidia_gpu_exporter__captures_linux-x86_64__nvidia-geforce-rtx-2080-super__610.57.04.txt",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-mig__590.48.01.txt",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-h200__590.48.01.txt",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-l40s__595.80.txt",
}


@pytest.mark.parametrize("name", sorted(TOPO))
def test_a_machine_with_one_gpu_has_one_domain_in_its_matrix(name: str) -> None:
    matrix = parse_matrix(capture(name).read_text())
    assert matrix is not None
    assert matrix.gpus == {0}
    assert domains([Card(index=0, evidence=Evidence(answers=True))], matrix) == (0,)


# -- all the others: they are read, and nothing is made up -------------------------------------------

KNOWN = {
    *XML, *AMD, *GPUSTACK, *TOPO,
}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    shared("smi") + shared("amd") + shared("topo") + shared("placement"),
    ids=lambda p: p.name if p else "-",
)
def test_every_capture_is_read_and_what_is_no_description_gives_no_card(
    path: Path | None, tmp_path: Path
) -> None:
    if path is None:
        pytest.skip("no captures beside the checkout: set ROOST_CAPTURES")
    for kind in ("nvidia_smi_xml", "amd_smi_json"):
        found = look(tmp_path, **{kind: path})
        described = (kind == "nvidia_smi_xml" and path.name in XML) or (
            kind == "amd_smi_json" and path.name in AMD
        )
        assert (found.gpus is not None) is described
        assert described or found.problems
        for gpu in found.gpus or ():
            assert gpu.gpu_class != UNKNOWN
            assert gpu.memory_bytes is None or gpu.memory_bytes > 0
    matrix = parse_matrix(path.read_text(errors="replace"))
    assert (matrix is not None) is (path.name in TOPO)
