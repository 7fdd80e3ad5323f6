"""Cards that were there and are gone stay listed, missing, until they are back."""

from dataclasses import replace
from pathlib import Path

from roost.agent.facts.gpu_class import UNKNOWN
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Reader
from roost.agent.facts.processes import Ours
from roost.agent.facts.remembered import MISSING, Memory, with_missing
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.testing.fake_nvml import FakeMachine, FakeNvml, eight_h100


def gpu(index: int, uuid: str | None, **more: object) -> Gpu:
    known = Gpu(
        index=index, gpu_class=GpuClass("h100"), uuid=GpuUuid(uuid) if uuid else None, healthy=True
    )
    return replace(known, **more)  # type: ignore[arg-type]  # fields of Gpu


def test_a_card_whose_index_was_taken_over_gets_another() -> None:
    known = [gpu(n, f"GPU-{n}") for n in range(4)]
    # The second one fell off the bus: the others moved up.
    seen = [gpu(0, "GPU-0"), gpu(1, "GPU-2"), gpu(2, "GPU-3")]
    found = with_missing(seen, known)
    assert [(one.index, one.uuid, one.healthy) for one in found] == [
        (0, "GPU-0", True), (1, "GPU-2", True), (2, "GPU-3", True), (3, "GPU-1", False),
    ]  # fmt: skip
    assert found[3].unhealthy_reason == MISSING


def test_a_nameless_lost_card_is_the_one_that_had_its_index() -> None:
    lost = Gpu(index=1, gpu_class=UNKNOWN, healthy=False, unhealthy_reason="lost")
    found = with_missing([gpu(0, "GPU-0"), lost], [gpu(0, "GPU-0"), gpu(1, "GPU-1")])
    assert [(one.index, one.uuid, one.gpu_class, one.unhealthy_reason) for one in found] == [
        (0, "GPU-0", "h100", None), (1, "GPU-1", "h100", "lost"),
    ]  # fmt: skip


def test_a_card_that_forgot_its_name_keeps_its_class() -> None:
    (found,) = with_missing([gpu(0, "GPU-0", gpu_class=UNKNOWN)], [gpu(0, "GPU-0")])
    assert found.gpu_class == "h100"


def test_memory_outlives_the_agent_and_a_broken_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    Memory(path).keep([gpu(0, "GPU-0"), gpu(1, None), gpu(2, "GPU-2", gpu_class=UNKNOWN)])
    assert [one.uuid for one in Memory(path).known()] == ["GPU-0"]
    assert path.stat().st_mode & 0o777 == 0o600
    for broken in (b"", b"{", b'[{"index": "x"}]', b"[" * 1000, b"\xff" * 50):
        path.write_bytes(broken)
        assert Memory(path).known() == ()


def test_a_reading_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    memory = Memory(path)
    memory.keep([gpu(0, "GPU-0")])
    before = path.stat().st_mtime_ns, path.stat().st_ino
    memory.keep([gpu(0, "GPU-0", healthy=False, unhealthy_reason="ecc", foreign_processes=3)])
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_node_that_comes_back_with_fewer_cards_lists_the_missing_until_they_return(
    tmp_path: Path,
) -> None:
    machine = eight_h100()

    def look() -> list[tuple[str | None, bool | None]]:
        # A new agent each time, as after a boot.
        reader = Reader(
            Sources(root=tmp_path),
            library=lambda: FakeNvml(lambda: machine),
            memory=Memory(tmp_path / "gpus.json"),
        )
        return sorted((one.uuid, one.healthy) for one in reader.read(Ours()).gpus or ())

    whole = look()
    assert all(healthy for _, healthy in whole)
    machine = FakeMachine(cards=machine.cards[:2] + machine.cards[4:])
    fewer = look()
    gone = {card.uuid for card in eight_h100().cards[2:4]}
    assert {uuid for uuid, healthy in fewer if not healthy} == gone
    assert len(fewer) == 8
    machine = FakeMachine()
    assert all(healthy is False for _, healthy in look())
    machine = eight_h100()
    assert look() == whole


def test_a_card_taken_out_for_good_is_forgotten_when_the_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    memory = Memory(path)
    memory.keep([gpu(0, "GPU-0"), gpu(1, "GPU-1")])
    path.unlink()
    assert memory.known() == ()
    memory.keep([gpu(0, "GPU-0")])
    assert [one.uuid for one in Memory(path).known()] == ["GPU-0"]


def test_memory_that_cannot_be_written_is_kept_while_the_agent_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    memory = Memory(tmp_path / "file" / "gpus.json")
    memory.keep([gpu(0, "GPU-0")])
    assert [one.uuid for one in memory.known()] == ["GPU-0"]
