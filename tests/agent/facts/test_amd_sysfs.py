"""AMD cards in /sys: made trees in the layout of KFD and amdgpu, values of the procfs capture."""

from pathlib import Path

from roost.agent.facts.amd_sysfs import parse_errors, parse_names, parse_properties
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Found, Reader
from roost.agent.facts.processes import Ours

VRAM = 8573157376
UNIQUE = "0123456789abcdef"


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def card(root: Path, node: int, bus: int, *, links: dict[int, int] | None = None) -> str:
    """A card of KFD's topology, and amdgpu's files of it."""
    topology = f"sys/class/kfd/kfd/topology/nodes/{node}"
    location = bus << 8
    put(root, **{
        f"{topology}/gpu_id": str(1000 + node),
        f"{topology}/properties": f"simd_count 256\nvendor_id 4098\nlocation_id {location}\ndomain 0",
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/device": "0x687f",
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/revision": "0xc1",
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/numa_node": "1",
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/mem_info_vram_total": str(VRAM),
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/mem_info_vram_used": "1490378752",
        f"sys/bus/pci/devices/0000:{bus:02x}:00.0/unique_id": UNIQUE[:-2] + f"{bus:02x}",
        **{f"{topology}/io_links/{n}/properties": f"type {kind}\nnode_from {node}\nnode_to {to}"
           for n, (to, kind) in enumerate((links or {}).items())},
    })  # fmt: skip
    return f"sys/bus/pci/devices/0000:{bus:02x}:00.0"


def processor(root: Path) -> None:
    put(root, **{
        "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 64",
    })  # fmt: skip


def look(root: Path) -> Found:
    return Reader(Sources(root=root)).read(Ours())


def test_a_card_of_the_kernels_is_what_rocm_smi_says_of_it(tmp_path: Path) -> None:
    processor(tmp_path)
    device = card(tmp_path, 1, 7)
    put(tmp_path, **{
        "usr/share/libdrm/amdgpu.ids": "# names\n1.0.0\n687F,\tC1,\tRadeon RX Vega",
        f"{device}/ras/umc_err_count": "ue: 0\nce: 12",
    })  # fmt: skip
    found = look(tmp_path)
    (gpu,), (detail,) = found.gpus or (), found.details or ()
    assert (gpu.gpu_class, gpu.memory_bytes, gpu.uuid, gpu.healthy) == (
        "rx-vega", VRAM, "GPU-0123456789abcd07", True,
    )  # fmt: skip
    assert (detail.pci_address, detail.numa_node) == ("0000:07:00.0", 1)
    assert (gpu.nvlink_domain, gpu.foreign_processes) == (None, None)


def test_uncorrectable_errors_of_any_block_speak_against_a_card(tmp_path: Path) -> None:
    device = card(tmp_path, 1, 7)
    put(tmp_path, **{
        f"{device}/ras/umc_err_count": "ue: 1\nce: 0",
        f"{device}/ras/gfx_err_count": "ue: 2\nce: 0",
    })  # fmt: skip
    (gpu,) = look(tmp_path).gpus or ()
    assert (gpu.healthy, gpu.unhealthy_reason) == (False, "3 uncorrectable ECC errors")
    assert gpu.gpu_class == "pci-1002-687f"


def test_xgmi_joins_cards_and_pcie_does_not(tmp_path: Path) -> None:
    processor(tmp_path)
    card(tmp_path, 1, 5, links={0: 2, 2: 11})
    card(tmp_path, 2, 6, links={0: 2, 1: 11})
    card(tmp_path, 3, 7, links={0: 2})
    assert [gpu.nvlink_domain for gpu in look(tmp_path).gpus or ()] == [0, 0, 1]


def test_a_process_is_on_the_card_whose_memory_it_has(tmp_path: Path) -> None:
    card(tmp_path, 1, 5)
    card(tmp_path, 2, 6)
    put(tmp_path, **{
        "sys/class/kfd/kfd/proc/4242/vram_1001": "65536",
        "sys/class/kfd/kfd/proc/4242/vram_1002": "0",
    })  # fmt: skip
    assert [gpu.foreign_processes for gpu in look(tmp_path).gpus or ()] == [1, 0]


def test_a_machine_without_the_compute_driver_has_none(tmp_path: Path) -> None:
    processor(tmp_path)
    assert look(tmp_path) == Found(gpus=(), details=())


def test_files_of_the_kernel_are_taken_apart() -> None:
    assert parse_properties("a 1\nb x\nc -5\nd 18446744073709551616\n\n") == {"a": 1}
    assert parse_errors("ue: 7\nce: 1\n") == 7
    assert parse_errors("ce: 1") is None
    assert parse_names("744C,\tC8,\tAMD Radeon RX 7900 XTX\nx\n,,\n") == {
        ("744c", "c8"): "AMD Radeon RX 7900 XTX"
    }
