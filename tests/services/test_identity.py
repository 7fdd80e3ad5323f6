"""Who is which node: two machines never share one, and one machine is never two."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, Filesystem, NodeName
from roost.errors import Conflict, Unavailable
from roost.formats import agent_wire as wire
from services.small_fleet import GB, SmallFleet

pytestmark = pytest.mark.anyio


NOBODY = NodeName("")


@dataclass
class Machine:
    """A machine with an agent's directory; `credential` and `identity` are files in it."""

    fleet: SmallFleet
    hostname: str
    address: str
    boot_id: str
    identity: str
    started_at: float
    facts: Facts = field(default_factory=Facts)
    node: NodeName = NOBODY
    sequence: int = 0

    async def join(self) -> None:
        _, token = await self.fleet.server.joining.create_token(ttl_s=60, uses=1, who="test")
        joined = await self.fleet.server.joining.join(
            wire.Join(token=token, name=self.hostname, identity=self.identity, boot_id=self.boot_id)
        )
        self.node = NodeName(joined.node)

    def report(self, **more: Any) -> None:
        self.sequence += 1
        said = wire.Report(
            identity=self.identity,
            sequence=self.sequence,
            started_at=self.started_at,
            facts=self.facts,
            boot_id=self.boot_id,
            hostname=self.hostname,
            address=self.address,
            agent_version="1",
        )
        sent = {**msgspec.to_builtins(said), **more}
        self.fleet.server.reports.take(
            self.node, wire.decode_report(msgspec.json.encode(sent)), peer=self.address
        )

    def row(self) -> dict[str, Any]:
        return self.fleet.server.views.node(self.node)


def machine(fleet: SmallFleet, name: str = "h-a", **changes: Any) -> Machine:
    words: dict[str, Any] = {
        "hostname": name,
        "address": "10.1.0.11",
        "boot_id": f"boot-{name}",
        "identity": f"identity-of-{name}",
        "started_at": 100.0,
        "facts": Facts(
            memory_bytes=64 * GB,
            gpus=(Gpu(index=0, gpu_class=GpuClass("h100"), uuid=GpuUuid(f"GPU-{name}")),),
        ),
    }
    return Machine(fleet=fleet, **{**words, **changes})


def copy_of(one: Machine, **changes: Any) -> Machine:
    """A cloned disk: the same directory, so the same identity and credential."""
    made = machine(one.fleet, "h-b", identity=one.identity, address="10.1.0.12", started_at=200.0)
    made.node = one.node
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def names(fleet: SmallFleet) -> list[str]:
    return [node["name"] for node in fleet.server.views.nodes()["nodes"]]


async def test_a_cloned_machine_is_refused_for_as_long_as_the_first_reports(
    fleet: SmallFleet,
) -> None:
    first = machine(fleet)
    await first.join()
    first.report()
    clone = copy_of(first)
    for _ in range(12):
        with pytest.raises(Conflict) as refused:
            clone.report()
        assert "node h-a is h-a at 10.1.0.11" in refused.value.message
        assert refused.value.hint is not None
        assert "to start anew here" in refused.value.hint
        fleet.clock.advance(5)
        fleet.server.inventory.tick()
        first.report()
        row = first.row()
        assert (row["hostname"], row["address"], row["status"]) == ("h-a", "10.1.0.11", "ready")
        assert [gpu["uuid"] for gpu in row["gpus"]] == ["GPU-h-a"]
        assert any("h-b at 10.1.0.12" in problem for problem in row["problems"])
    assert names(fleet) == ["h-a"]
    fleet.clock.advance(400)
    first.report()
    assert first.row()["problems"] == []


async def test_a_clone_is_told_nothing_of_what_should_run(fleet: SmallFleet) -> None:
    first = machine(fleet)
    await first.join()
    first.report()
    fleet.server.reports.refuse_copy(first.node, first.boot_id)
    fleet.server.reports.refuse_copy(first.node, None)
    with pytest.raises(Conflict):
        fleet.server.reports.refuse_copy(first.node, "boot-of-another")


async def test_a_clone_that_starts_anew_is_a_node_of_its_own(fleet: SmallFleet) -> None:
    first = machine(fleet)
    await first.join()
    first.report()
    anew = copy_of(first, identity="made-anew-on-h-b")
    await anew.join()
    anew.report()
    first.report()
    assert names(fleet) == ["h-a", "h-b"]
    assert [gpu["uuid"] for gpu in anew.row()["gpus"]] == ["GPU-h-b"]


async def test_a_copy_does_not_take_a_node_from_a_server_that_has_just_started(
    fleet: SmallFleet,
) -> None:
    first = machine(fleet)
    await first.join()
    first.report()
    await fleet.restart()
    with pytest.raises(Unavailable, match="waits for that node to report"):
        await copy_of(first).join()
    first.report()
    with pytest.raises(Conflict, match="this identity is node h-a's"):
        await copy_of(first).join()
    # The machine itself, started again with its credential lost, is let in once the time is over.
    for _ in range(70):
        fleet.clock.advance(1)
        fleet.server.inventory.tick()
    again = machine(fleet, boot_id="boot-2")
    await again.join()
    assert again.node == "h-a"


async def test_a_machine_that_was_started_again_is_the_same_node(fleet: SmallFleet) -> None:
    one = machine(fleet)
    await one.join()
    one.report()
    fleet.clock.advance(15)
    again = machine(fleet, boot_id="boot-2", started_at=300.0)
    again.node = one.node
    again.report()
    assert again.row()["status"] == "ready"
    assert names(fleet) == ["h-a"]


async def test_an_agent_that_is_started_again_goes_on_at_once(fleet: SmallFleet) -> None:
    one = machine(fleet)
    await one.join()
    one.report()
    again = machine(fleet, started_at=101.0, address="10.1.0.13")
    again.node = one.node
    again.report()
    assert again.row()["address"] == "10.1.0.13"


async def test_two_agents_of_one_boot_do_not_take_turns(fleet: SmallFleet) -> None:
    """Two containers on one host with copies of one directory: the one started last is the node."""
    first = machine(fleet)
    await first.join()
    first.report()
    second = machine(fleet, "h-c", identity=first.identity, boot_id=first.boot_id, started_at=200.0)
    second.node = first.node
    second.report()
    first.report()  # may be one that was under way
    assert second.row()["hostname"] == "h-c"
    for _ in range(4):
        fleet.clock.advance(5)
        second.report()
    with pytest.raises(Conflict):
        first.report()
    assert second.row()["hostname"] == "h-c"


async def test_a_clock_that_was_set_back_does_not_silence_a_node(fleet: SmallFleet) -> None:
    one = machine(fleet)
    await one.join()
    one.report()
    for _ in range(30):
        fleet.clock.advance(1)
        fleet.server.inventory.tick()
    assert one.row()["status"] != "ready"
    again = machine(fleet, boot_id="boot-2", started_at=5.0)
    again.node = one.node
    again.report()
    assert again.row()["status"] == "ready"


async def test_a_second_machine_of_one_name_is_refused_and_told_whose_it_is(
    fleet: SmallFleet,
) -> None:
    first = machine(fleet)
    await first.join()
    first.report()
    second = machine(fleet, identity="identity-of-another")
    with pytest.raises(Conflict) as refused:
        await second.join()
    assert "the name h-a is held by another machine" in refused.value.message
    assert refused.value.hint is not None
    assert "--name" in refused.value.hint
    assert names(fleet) == ["h-a"]


async def test_a_rename_and_a_new_address_change_the_node_in_place(fleet: SmallFleet) -> None:
    one = machine(fleet)
    await one.join()
    one.report()
    one.hostname, one.address = "renamed", "10.1.0.99"
    one.report()
    row = one.row()
    assert (row["name"], row["hostname"], row["address"]) == ("h-a", "renamed", "10.1.0.99")
    await one.join()
    assert one.node == "h-a"
    assert names(fleet) == ["h-a"]


async def test_nothing_that_an_agent_sends_clears_a_cordon(fleet: SmallFleet) -> None:
    one = machine(fleet)
    await one.join()
    one.report()
    await fleet.server.operations.cordon(one.node, reason="fan failure", drain=False, who="test")
    for _ in range(2):
        one.report(
            cordoned=False,
            draining=False,
            cordon_reason=None,
            ready=True,
            labels={"cordoned": "no"},
        )
        await one.join()
        one.started_at += 1
        one.report()
        row = one.row()
        assert (row["cordoned"], row["cordon_reason"]) == (True, "fan failure")
        await fleet.restart()
    await fleet.server.operations.uncordon(one.node, who="test")
    assert one.row()["cordoned"] is False


# -- versions that differ (B024) -----------------------------------------------------------------


async def test_a_newer_agents_unknown_keys_are_ignored_and_an_older_ones_absent_keys_are_unknown(
    fleet: SmallFleet,
) -> None:
    newer, older = machine(fleet, "newer"), machine(fleet, "older")
    for one in (newer, older):
        await one.join()
    for _ in range(3):
        fleet.clock.advance(5)
        newer.report(
            agent_version="2",
            protocol=2,
            quantum={"qubits": 3},
            facts={
                "memory_bytes": 64 * GB,
                "new_fact": [1],
                "gpus": [{"index": 0, "gpu_class": "h100", "uuid": "GPU-n", "sparkle": True}],
                "storage": [{"filesystem": "/dev/a", "mounts": ["/"], "free_bytes": 1, "x": None}],
            },
        )
        older.report(agent_version="0", facts={"memory_bytes": 8 * GB})
        fleet.server.inventory.tick()
    new, old = newer.row(), older.row()
    assert (new["status"], old["status"]) == ("ready", "ready")
    assert (new["agent_version"], old["agent_version"]) == ("2", "0")
    assert new["gpus"][0]["uuid"] == "GPU-n"
    assert [old[key] for key in ("gpus", "fabrics", "storage", "engines")] == [None] * 4
    assert old["memory_bytes"] == 8 * GB


async def test_a_card_without_memory_of_its_own_is_listed_and_its_memory_is_unknown(
    fleet: SmallFleet,
) -> None:
    """Unified memory (B005): it counts as the node's memory and not once more as the card's."""
    one = machine(fleet, "spark")
    one.facts = Facts(
        memory_bytes=119 << 30,
        gpus=(Gpu(index=0, gpu_class=GpuClass("gb10"), uuid=GpuUuid("GPU-s"), memory_bytes=None),),
    )
    await one.join()
    one.report()
    row = one.row()
    assert row["memory_bytes"] == 119 << 30
    assert [(gpu["class"], gpu["memory_bytes"]) for gpu in row["gpus"]] == [("gb10", None)]


# -- what is stored ------------------------------------------------------------------------------


async def test_a_report_that_changes_nothing_writes_nothing(fleet: SmallFleet) -> None:
    one = machine(fleet)
    disk = Filesystem(
        filesystem="/dev/a",
        mounts=("/",),
        free_bytes=90 * GB,
        total_bytes=100 * GB,
        read_only=False,
    )
    stale = Filesystem(
        filesystem="nas:/m", mounts=("/m",), shared=True, free_bytes=1, total_bytes=2, stale_since=7
    )
    one.facts = Facts(memory_bytes=64 * GB, storage=(disk, stale))
    await one.join()
    one.report(problems=["storage: nas:/m on /m has not answered since 12:03"])
    await fleet.steps()

    def stored() -> tuple[bytes, ...]:
        files = sorted((fleet.directory / "server").glob("roost.db*"))
        return tuple(file.read_bytes() for file in files)

    before = stored()
    for _ in range(5):
        fleet.clock.advance(5)
        one.report(problems=["storage: nas:/m on /m has not answered since 12:03"])
        fleet.server.inventory.tick()
        await fleet.steps()
    assert stored() == before
