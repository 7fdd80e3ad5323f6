"""NVML by its stand-in: eight GPUs, and each way in which they and the library fail."""

import ctypes
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from roost.agent.facts.card import MIB
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Found, Reader
from roost.agent.facts.nvml import Failed, Session
from roost.agent.facts.processes import Ours
from roost.domain.gpu import Gpu
from roost.testing import fake_nvml
from roost.testing.fake_nvml import (
    FakeCard,
    FakeFabric,
    FakeInstance,
    FakeMachine,
    FakeNvml,
    FakeProcess,
    NVMLError,
    eight_h100,
)

EVERY_CALL = sorted(fake_nvml._ANSWERS)


def look(machine: FakeMachine, root: Path, ours: Ours | None = None) -> Found:
    return Reader(Sources(root=root), library=lambda: FakeNvml(lambda: machine)).read(
        ours or Ours()
    )


def gpus(machine: FakeMachine, root: Path) -> tuple[Gpu, ...]:
    found = look(machine, root).gpus
    assert found is not None
    return found


def test_eight_h100s_are_one_domain_healthy_and_free(tmp_path: Path) -> None:
    found = look(eight_h100(), tmp_path)
    assert found.gpus is not None
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert {
        (g.gpu_class, g.memory_bytes, g.nvlink_domain, g.healthy, g.foreign_processes)
        for g in found.gpus
    } == {("h100-80gb-hbm3", 85520809984, 0, True, 0)}
    assert found.details is not None
    assert found.details[3].pci_address == "0000:13:00.0"
    assert found.details[3].driver == "590.48.01"
    assert found.details[3].product == "NVIDIA H100 80GB HBM3"
    assert found.problems == ()


@pytest.mark.parametrize("name", EVERY_CALL)
@pytest.mark.parametrize("code", [3, 13, 999, 4])
def test_any_call_may_be_unsupported_and_costs_only_its_fact(
    name: str, code: int, tmp_path: Path
) -> None:
    found = gpus(eight_h100().but(2, failing={name: code}), tmp_path)
    assert len(found) == 8
    assert found[2].healthy is not False
    assert [gpu for gpu in found if gpu.index != 2] == [
        gpu for gpu in gpus(eight_h100(), tmp_path) if gpu.index != 2
    ]


def test_a_library_older_than_a_function_costs_only_its_fact(tmp_path: Path) -> None:
    class Older(FakeNvml):
        def __getattr__(self, name: str) -> Callable[..., object]:
            if name in {"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetRemappedRows"}:
                raise AttributeError(name)
            return super().__getattr__(name)

    reader = Reader(Sources(root=tmp_path), library=lambda: Older(eight_h100))
    assert [gpu.healthy for gpu in reader.read(Ours()).gpus or ()] == [True] * 8


def test_memory_that_is_not_supported_is_unknown_and_the_next_card_is_whole(tmp_path: Path) -> None:
    # B005, both nodes.
    machine = eight_h100().but(1, memory=None, name="NVIDIA GB10", links=None, fabric=None)
    found = gpus(machine, tmp_path)
    assert (found[1].memory_bytes, found[1].healthy, found[1].gpu_class) == (None, True, "gb10")
    assert found[0].memory_bytes == 85520809984


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ecc": 1}, "1 uncorrectable ECC error"),
        ({"ecc": 3}, "3 uncorrectable ECC errors"),
        ({"rows": (True, False)}, "row remapping pending"),
        ({"rows": (False, True)}, "row remapping failed"),
        ({"pages_pending": True}, "page retirement pending"),
        ({"fabric": FakeFabric(state=2)}, "NVSwitch fabric is not ready: in progress"),
        ({"fabric": FakeFabric(state=1)}, "NVSwitch fabric is not ready: not started"),
        ({"fabric": FakeFabric(status=999)}, "NVSwitch fabric failed: error 999"),
        (
            {"fabric": FakeFabric(summary=2, mask=1 << 4)},
            "NVSwitch fabric is unhealthy: route unhealthy",
        ),
        ({"lost": True}, "lost: it has fallen off the bus"),
        ({"ecc": 2, "rows": (True, True)},
         "2 uncorrectable ECC errors; row remapping failed; row remapping pending"),
    ],
)  # fmt: skip
def test_evidence_makes_a_card_unhealthy_and_its_end_heals_it(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    machine = eight_h100()
    reader = Reader(Sources(root=tmp_path), library=lambda: FakeNvml(lambda: machine))
    machine = eight_h100().but(3, **change)
    for _ in range(2):
        found = reader.read(Ours()).gpus or ()
        assert [gpu.index for gpu in found if gpu.healthy is False] == [3]
        assert found[3].unhealthy_reason == reason
    machine = eight_h100()
    assert all(gpu.healthy for gpu in reader.read(Ours()).gpus or ())


@pytest.mark.parametrize(
    "fabric", [FakeFabric(state=0), FakeFabric(summary=3), FakeFabric(summary=0), None]
)
def test_no_fabric_and_one_of_less_width_speak_not_against_a_card(
    fabric: FakeFabric | None, tmp_path: Path
) -> None:
    assert gpus(eight_h100().but(0, fabric=fabric), tmp_path)[0].healthy is True


def test_a_card_that_is_not_even_opened_is_listed_lost(tmp_path: Path) -> None:
    machine = eight_h100().but(5, failing={"nvmlDeviceGetHandleByIndex": 15})
    found = look(machine, tmp_path)
    assert found.gpus is not None
    assert (found.gpus[5].healthy, found.gpus[5].unhealthy_reason) == (
        False, "lost: it has fallen off the bus",
    )  # fmt: skip
    assert found.problems == ("GPU 5 cannot be read: lost: it has fallen off the bus",)
    assert found.gpus[5].gpu_class == "unknown"


def test_bridged_pairs_are_pairs_and_a_card_without_links_is_alone(tmp_path: Path) -> None:
    cards = [
        FakeCard(uuid=f"GPU-{n}", pci=f"00000000:{n:02X}:00.0", links=(f"00000000:{n ^ 1:02X}:00.0", ""))
        for n in range(4)
    ] + [
        FakeCard(uuid="GPU-4", pci="00000000:04:00.0", links=None),
        FakeCard(uuid="GPU-5", pci="00000000:05:00.0", links=("", "")),
        FakeCard(uuid="GPU-6", pci="00000000:06:00.0", failing={"nvmlDeviceGetNvLinkState": 999}),
    ]  # fmt: skip
    found = gpus(FakeMachine(cards=tuple(cards)), tmp_path)
    assert [gpu.nvlink_domain for gpu in found] == [0, 0, 1, 1, 2, 3, None]


def test_the_fabric_of_a_rack_joins_cards_whose_links_do_not_say_where_they_end(
    tmp_path: Path,
) -> None:
    fabric = FakeFabric(cluster="11" * 16, clique=32766)
    unknown = {"nvmlDeviceGetNvLinkRemoteDeviceType": 999, "nvmlDeviceGetNvLinkRemotePciInfo": 999}
    cards = tuple(
        FakeCard(uuid=f"GPU-{n}", name="NVIDIA GB300", fabric=fabric, links=("x",), failing=unknown)
        for n in range(4)
    )
    found = gpus(FakeMachine(cards=cards), tmp_path)
    assert [gpu.nvlink_domain for gpu in found] == [0] * 4


def test_mig_instances_are_cards_of_their_own_and_their_parent_is_not_free(tmp_path: Path) -> None:
    parts = (
        FakeInstance(profile="3g.40gb", uuid="MIG-a", gpu_instance=2, memory=40448 * MIB),
        FakeInstance(profile="1g.10gb", uuid="MIG-b", gpu_instance=9, memory=9984 * MIB),
    )
    busy = (FakeProcess(pid=77, gpu_instance=2),)
    machine = FakeMachine(
        cards=(
            FakeCard(uuid="GPU-0", mig=parts, processes=busy),
            FakeCard(uuid="GPU-1", pci="00000000:01:00.0", ecc=1, mig=parts[:0]),
        )
    )
    found = look(machine, tmp_path)
    assert [
        (g.index, g.gpu_class, g.uuid, g.memory_bytes, g.healthy, g.foreign_processes)
        for g in found.gpus or ()
    ] == [
        (0, "h100-80gb-hbm3", "GPU-0", 85520809984, False, 1),
        (1, "h100-80gb-hbm3", "GPU-1", 85520809984, False, 0),
        (2, "h100-80gb-hbm3-mig-3g.40gb", "MIG-a", 40448 * MIB, True, 1),
        (3, "h100-80gb-hbm3-mig-1g.10gb", "MIG-b", 9984 * MIB, True, 0),
    ]
    assert [g.unhealthy_reason for g in (found.gpus or ())[:2]] == [
        "split into 2 MIG instances",
        "1 uncorrectable ECC error; MIG mode is on, and it has no instances",
    ]
    assert len({g.nvlink_domain for g in (found.gpus or ())[2:]}) == 2


def test_a_card_with_errors_makes_its_instances_unhealthy(tmp_path: Path) -> None:
    part = FakeInstance(profile="1g.10gb", uuid="MIG-b", gpu_instance=9, memory=9984 * MIB)
    machine = FakeMachine(cards=(FakeCard(uuid="GPU-0", mig=(part,), ecc=7),))
    found = gpus(machine, tmp_path)
    assert found[1].unhealthy_reason == "7 uncorrectable ECC errors"


def test_two_cards_that_claim_one_uuid_do_not_share_it(tmp_path: Path) -> None:
    machine = FakeMachine(cards=(FakeCard(uuid="GPU-0"), FakeCard(uuid="GPU-0")))
    found = look(machine, tmp_path)
    assert [gpu.uuid for gpu in found.gpus or ()] == ["GPU-0", None]
    assert found.problems == ("two GPUs have the uuid GPU-0",)


# -- the library itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [18, 999, 9])
def test_a_library_that_fails_where_there_is_a_driver_is_no_cpu_node(
    code: int, tmp_path: Path
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    found = look(FakeMachine(init=code), tmp_path)
    assert found.gpus is None
    (problem,) = found.problems
    assert problem.startswith("GPUs are not known: NVML does not work: ")


def test_a_library_without_a_driver_where_there_is_no_card_is_no_gpu(tmp_path: Path) -> None:
    assert look(FakeMachine(init=9), tmp_path) == Found(gpus=(), details=())


def pci(root: Path, vendor: str, kind: str) -> None:
    device = root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


def test_cards_on_the_bus_without_a_driver_are_none_and_the_problem_says_so(tmp_path: Path) -> None:
    pci(tmp_path, "0x10de", "0x030200")
    found = look(FakeMachine(init=12), tmp_path)
    assert found.gpus == ()
    assert found.problems == ("this machine has NVIDIA cards and no driver for them",)


def test_a_driver_whose_library_is_not_there_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert look(FakeMachine(init=12), tmp_path).gpus is None


def test_where_nothing_tells_of_cards_they_are_not_known(tmp_path: Path) -> None:
    found = Reader(Sources(root=tmp_path)).read(Ours())
    assert found.gpus is None
    assert found.problems == ("GPUs are not known: there is no /sys",)


def test_under_a_root_path_a_driver_is_not_asked_and_the_problem_says_what_to_give(
    tmp_path: Path,
) -> None:
    reader = Reader(Sources(root=tmp_path))
    (tmp_path / "sys").mkdir()
    assert reader.read(Ours()) == Found(gpus=(), details=())
    pci(tmp_path, "0x10de", "0x068000")  # an NVSwitch is no card
    assert reader.read(Ours()).gpus == ()
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    found = reader.read(Ours())
    assert found.gpus is None
    assert found.problems[0].endswith("--nvidia-smi-xml FILE")


def test_the_library_stays_open_between_readings_and_is_opened_anew_when_it_breaks() -> None:
    made: list[FakeNvml] = []
    machine = eight_h100()

    def library() -> FakeNvml:
        made.append(FakeNvml(lambda: machine))
        return made[-1]

    session = Session(library)
    session.read()
    session.read()
    assert len(made) == 1
    assert made[0].open
    machine = FakeMachine(init=1)
    with pytest.raises(Failed):
        session.read()
    assert not made[0].open
    machine = eight_h100()
    assert len(session.read().cards or ()) == 8
    session.close()
    assert not any(one.open for one in made)


def test_a_library_that_is_not_installed_is_said_by_name(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)

    def library() -> FakeNvml:
        raise ImportError("No module named 'pynvml'")

    found = Reader(Sources(root=tmp_path), library=library).read(Ours())
    assert found.gpus is None
    assert "nvidia-ml-py" in found.problems[0]


def test_the_stand_in_and_the_vendors_binding_agree_on_names_and_arguments() -> None:
    pynvml = pytest.importorskip("pynvml")
    own = {name for name in dir(FakeNvml) if name.startswith("nvml")}
    for name in {*EVERY_CALL, *own}:
        theirs = inspect.signature(getattr(pynvml, name))
        least = [p for p in theirs.parameters.values() if p.default is inspect.Parameter.empty]
        if name in own:
            count = len(inspect.signature(getattr(FakeNvml, name)).parameters) - 1
        else:
            count = len(inspect.signature(fake_nvml._ANSWERS[name]).parameters)
        assert count == len(least), name
    theirs_info = pynvml.c_nvmlGpuFabricInfo_v3_t
    assert [field[0] for field in fake_nvml.FabricInfo._fields_] == [
        field[0] for field in theirs_info._fields_
    ]
    assert ctypes.sizeof(fake_nvml.FabricInfo) == ctypes.sizeof(theirs_info)
    assert (
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == FakeNvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    )
    assert str(pynvml.NVMLError(15)) == str(NVMLError(15))


def test_it_is_asked_which_processes_compute_on_some_cards_alone() -> None:
    drawing = FakeProcess(pid=6, graphics=True)
    machine = eight_h100().but(1, processes=(FakeProcess(pid=5), drawing))
    machine = machine.but(2, processes=(FakeProcess(pid=7),)).but(3, processes=None)
    part = FakeInstance(profile="1g.10gb", uuid="MIG-1", gpu_instance=3, memory=1)
    machine = machine.but(4, mig=(part,), processes=(FakeProcess(pid=8, gpu_instance=3),))
    uuids = [card.uuid for card in machine.cards]
    session = Session(lambda: FakeNvml(lambda: machine))
    assert session.on_cards(uuids[:1]) == ()
    assert session.on_cards(uuids[:3]) == (5, 7)
    # One that doesn't say, and one that isn't there: what is on them is not known.
    assert session.on_cards(uuids[:4]) is None
    assert session.on_cards([uuids[0], "GPU-none"]) is None


def test_a_machine_is_written_for_an_agent_and_read_by_it(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    machine = eight_h100().but(1, mig=(), processes=(FakeProcess(pid=3),), fabric=None)
    machine.save(path)
    library = fake_nvml.stand_in({"ROOST_FAKE_NVML": str(path)})
    assert library is not None
    assert fake_nvml.stand_in({}) is None
    reader = Reader(Sources(root=tmp_path), library=library)
    assert reader.read(Ours()) == look(machine, tmp_path)
