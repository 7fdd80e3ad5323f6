"""Which cards a shard's processes see, and by which network they find the other ranks."""

import re
from collections.abc import Mapping
from typing import Final

from roost.domain.replica import ShardSpec
from roost.errors import Unavailable

# Canonical classes of AMD's products: `mi300x`, `rx-7900-xtx`, `radeon-pro-w7900`.
_AMD: Final = re.compile(r"mi\d|rx-|radeon|firepro")


def cards(spec: ShardSpec) -> str:
    """The shard's cards as `CUDA_VISIBLE_DEVICES` wants them; empty: none."""
    return ",".join(spec.gpu_uuids or (str(index) for index in spec.gpus))


def visible(spec: ShardSpec) -> Mapping[str, str]:
    """The variables that show a process exactly the shard's cards.

    NVIDIA's by uuid, and counted as the driver counts them where one asks for a number
    (https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html).
    HIP knows numbers alone, and ROCm's PyTorch wants both variables to say the same.
    """
    if spec.profile.gpu_class is not None and _AMD.match(spec.profile.gpu_class):
        numbers = ",".join(map(str, spec.gpus))
        return {"HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": cards(spec)}


def meeting_of(spec: ShardSpec) -> tuple[str, int] | None:
    """Where the ranks of a replica on several nodes meet: rank 0's address; `None`: it has one."""
    if spec.profile.nodes == 1:
        return None
    if not spec.peers or spec.group_port is None:
        raise Unavailable(
            f"{spec.replica} runs on {spec.profile.nodes} nodes, and the server does not say "
            "where the others are",
            hint="its server is older than this agent: update the server",
        )
    return spec.peers[0], spec.group_port


def network(spec: ShardSpec, interface: str | None) -> Mapping[str, str]:
    """How NCCL and Gloo of a replica on several nodes reach the other ranks.

    A profile's `env` may name other interfaces; the adapters are Roost's to say, and a catalog
    that names some is refused. `NCCL_IB_HCA` with `=` means these adapters, and no others that
    begin alike (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
    """
    if not spec.peers:
        return {}
    found = {}
    if spec.hcas:
        found["NCCL_IB_HCA"] = "=" + ",".join(spec.hcas)
    if interface is not None:
        found["NCCL_SOCKET_IFNAME"] = "=" + interface
        found["GLOO_SOCKET_IFNAME"] = interface
    return found
