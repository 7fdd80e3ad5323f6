"""`roost ctl node`: cards by product and address, adapters by port."""

from fake_api import FakeApi, Run


def test_a_nodes_cards_and_ports_are_told_one_by_one(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes/gpu-a"] = {
        "name": "gpu-a",
        "allocations": [],
        "fabrics": [{"name": "ib0", "hcas": ["mlx5_0"]}],
        "gpu_details": [
            {"index": 0, "uuid": "GPU-0", "product": "NVIDIA H200", "driver": "590.48.01",
             "pci_address": "0000:83:00.0", "numa_node": 1},
            {"index": 1, "uuid": None, "product": None, "driver": None, "pci_address": None,
             "numa_node": None},
        ],
        "hcas": [
            {"name": "mlx5_0", "pci_address": "0000:41:00.0", "ports": [
                {"number": 1, "active": True, "state": "ACTIVE", "physical_state": "LinkUp",
                 "rate_gbps": 400.0, "link_layer": "InfiniBand"},
                {"number": 2, "active": False, "state": "DOWN", "physical_state": "Disabled",
                 "rate_gbps": None, "link_layer": "Ethernet"}]},
            {"name": "mlx5_1", "pci_address": None, "ports": []},
        ],
    }  # fmt: skip
    shown = run("node", "gpu-a").out
    assert [line.split() for line in shown.split("\n\n")[1].splitlines()] == [
        ["GPU", "PRODUCT", "PCI", "NUMA", "DRIVER", "UUID"],
        ["0", "NVIDIA_H200", "0000:83:00.0", "1", "590.48.01", "GPU-0"],
        ["1", "-", "-", "-", "-", "-"],
    ]
    assert [line.split() for line in shown.split("\n\n")[2].splitlines()] == [
        ["HCA", "FABRIC", "PORT", "STATE", "PHYSICAL", "GBIT/S", "LINK", "PCI"],
        ["mlx5_0", "ib0", "1", "ACTIVE", "LinkUp", "400", "InfiniBand", "0000:41:00.0"],
        ["mlx5_0", "ib0", "2", "DOWN", "Disabled", "-", "Ethernet", "0000:41:00.0"],
        ["mlx5_1", "-", "-", "-", "-", "-", "-", "-"],
    ]
