"""What is found of this machine is what free, df and findmnt say of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roost.agent.facts import Asked, read
from roost.agent.facts.host import Reader
from roost.agent.facts.mounts import read_mounts
from roost.agent.facts.tree import Tree
from roost.domain.gpu import Gpu, GpuClass, GpuDetail, GpuUuid
from roost.domain.node import Facts, Filesystem
from roost.formats import agent_wire as wire


def said_by(program: str, *words: str) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    return subprocess.run(
        [program, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    ).stdout


def test_memory_is_what_free_says_or_a_control_group_allows() -> None:
    words = said_by("free", "-b").splitlines()[1].split()
    found = Reader(Path("/"), []).read()
    assert found.memory_bytes is not None
    assert found.memory_bytes <= int(words[1])
    if not any("memory" in name.name for name in Path("/sys/fs/cgroup").rglob("memory.max")):
        assert found.memory_bytes == int(words[1])


def test_a_directorys_filesystem_is_what_df_says(tmp_path: Path) -> None:
    for _ in range(20):
        lines = said_by(
            "df", "-B1", "--output=source,size,avail,target", str(tmp_path)
        ).splitlines()
        source, size, free, target = lines[1].split()
        found = Reader(Path("/"), [tmp_path]).read().storage
        assert found is not None
        (one,) = found
        if one.free_bytes == int(free):
            break
        # Somebody wrote to the disk between the two.
    assert one.total_bytes == int(size)
    assert one.free_bytes == int(free)
    assert one.mounts == (target,)
    assert one.filesystem == source or one.filesystem == f"{source}:{target}"
    assert one.shared is False


def test_mounts_are_what_findmnt_lists() -> None:
    said = json.loads(said_by("findmnt", "--json", "--list", "-o", "TARGET,SOURCE,FSTYPE,OPTIONS"))
    listed = {(one["target"], one["fstype"]) for one in said["filesystems"]}
    table = read_mounts(Tree()).table
    assert table is not None
    assert {(mount.point, mount.kind) for mount in table} == listed
    read_only = {one["target"] for one in said["filesystems"] if "ro" in one["options"].split(",")}
    assert {mount.point for mount in table if mount.read_only} == read_only


def test_the_commands_json_is_a_node_of_a_fleet(tmp_path: Path) -> None:
    from roost.formats.fleet import parse_fleet

    done = subprocess.run(
        [
            *(sys.executable, "-c", "from roost.run.agent import agent; agent()", "facts"),
            *("--model-dir", str(tmp_path), "--model-dir", str(tmp_path / "absent"), "-o", "json"),
        ],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    shown = json.loads(done.stdout)
    problems = shown.pop("problems")
    assert f"storage: the model directory {tmp_path}/absent: no such file or directory" in problems
    shown.pop("gpu_details")
    shown.pop("hcas")
    parsed = parse_fleet(json.dumps({"nodes": [shown]}), filename="facts")
    assert parsed.warnings == ()
    assert parsed.fleet.nodes[0].facts.storage


def test_the_command_reads_another_machine_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1048576 kB\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("elsewhere\n")
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from roost.run.agent import agent; agent()", "facts"),
            *("--root", str(tmp_path), "--model-dir", "/models", "-o", "json"),
        ],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    shown = json.loads(done.stdout)
    assert (shown["name"], shown["memory_bytes"], shown["storage"]) == ("elsewhere", 1 << 30, None)
    assert shown["problems"]


def test_facts_need_no_privileges(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("has none anyway")
    code = """
import os
from pathlib import Path
from roost.agent.facts.host import Reader
os.setgid(65534)
os.setuid(65534)
found = Reader(Path("/"), [Path("/")]).read()
print(found.memory_bytes, len(found.storage), found.problems)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    memory, filesystems, problems = done.stdout.split(maxsplit=2)
    assert int(memory) > 0
    assert (filesystems, problems.strip()) == ("1", "()")


def test_a_report_of_this_machine_is_small(tmp_path: Path) -> None:
    facts, problems = read(Asked(model_directories=(tmp_path,)))
    report = wire.Report(
        identity="0" * 32, sequence=1, started_at=0, facts=facts, problems=problems
    )
    assert len(wire.encode(report)) < 16_000


def test_a_report_of_a_machine_full_of_hardware_is_small_too() -> None:
    gpus = tuple(
        Gpu(
            index=at,
            gpu_class=GpuClass("h100-80gb-hbm3"),
            uuid=GpuUuid(f"GPU-01234567-89ab-cdef-0123-45678901234{at}"),
            memory_bytes=85_520_809_984,
            nvlink_domain=0,
            healthy=False,
            unhealthy_reason="3 uncorrectable ECC errors; row remapping failed",
            foreign_processes=2,
        )
        for at in range(8)
    )
    details = tuple(
        GpuDetail(index=at, product="NVIDIA H100 80GB HBM3", pci_address=f"00000000:{at}B:00.0")
        for at in range(8)
    )
    storage = tuple(
        Filesystem(
            filesystem=f"/dev/disk/by-id/nvme-SAMSUNG_MZQL23T8HCLS-00A07_S64HNE0{at}",
            mounts=(f"/mnt/local-volume/models-{at}", f"/srv/models-{at}"),
            free_bytes=3_000_000_000_000,
            total_bytes=3_840_000_000_000,
            read_only=False,
        )
        for at in range(10)
    )
    report = wire.Report(
        identity="0" * 32,
        sequence=1,
        started_at=1e9,
        facts=Facts(
            labels={f"label-{at}": "some-value" for at in range(30)},
            memory_bytes=2_164_000_000_000,
            engines=frozenset({"vllm", "sglang", "llama.cpp"}),
            gpus=gpus,
            gpu_details=details,
            storage=storage,
        ),
        problems=tuple(f"storage: the model directory /mnt/m-{at}: not there" for at in range(10)),
    )
    assert len(wire.encode(report)) < 16_000
