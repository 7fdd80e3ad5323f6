"""Real filesystems, mounted in a namespace of the test's own; skipped where mounting is not allowed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MOUNTING = Path(__file__).with_name("mounting.py")
MIB = 1 << 20
Found = Callable[..., tuple[list[dict[str, Any]], list[str], str]]


def why_not() -> str | None:
    if shutil.which("unshare") is None:
        return "needs util-linux"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return None if tried.returncode == 0 else f"mounting is not allowed: {tried.stderr.strip()}"


WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def needs(*programs: str) -> pytest.MarkDecorator:
    absent = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Run a script where $T is the test's directory, look at directories below it."""

    def look(script: str, *directories: str) -> tuple[list[dict[str, Any]], list[str], str]:
        done = subprocess.run(
            [
                *(sys.executable, str(MOUNTING), f"T={tmp_path}\ncd $T\n{script}"),
                *(str(tmp_path / directory) for directory in directories),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        if "not permitted" in done.stderr or "failed to setup loop device" in done.stderr:
            pytest.skip(f"mounting this is not allowed here: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        return shown["storage"], shown["problems"], shown["said"]

    return look


def test_a_tmpfs_and_its_bind_mounts_are_one(found: Found, tmp_path: Path) -> None:
    storage, problems, _ = found(
        "mkdir a b c; mount -t tmpfs -o size=64m tmpfs a; mkdir a/x; mount --bind a/x b;"
        " mount --bind a c",
        "a",
        "b",
        "c",
        "a/x",
    )
    assert problems == []
    (one,) = storage
    assert one["mounts"] == [f"{tmp_path}/{name}" for name in "abc"]
    assert one["shared"] is False
    assert one["total_bytes"] == 64 * MIB
    assert one["free_bytes"] == 64 * MIB


def test_two_tmpfs_are_two(found: Found) -> None:
    storage, _, _ = found(
        "mkdir a b; mount -t tmpfs -o size=64m tmpfs a; mount -t tmpfs -o size=32m tmpfs b",
        "a",
        "b",
    )
    assert [one["total_bytes"] for one in storage] == [64 * MIB, 32 * MIB]
    assert storage[0]["filesystem"] != storage[1]["filesystem"]


def test_a_bind_mount_of_the_root_disk_adds_nothing(found: Found, tmp_path: Path) -> None:
    storage, _, _ = found("mkdir a b c; touch c/x; mount --bind a b", "a", "b", "c")
    (one,) = storage
    assert f"{tmp_path}/b" in one["mounts"]


def test_a_name_with_spaces_and_line_ends_is_found(found: Found, tmp_path: Path) -> None:
    storage, problems, _ = found(
        "mkdir 'a b\\040'; mount -t tmpfs -o size=64m tmpfs 'a b\\040'", "a b\\040"
    )
    assert problems == []
    assert storage[0]["mounts"] == [f"{tmp_path}/a b\\040"]


def test_what_is_mounted_over_a_directory_hides_what_was_below(
    found: Found, tmp_path: Path
) -> None:
    storage, _, _ = found(
        "mkdir -p a/b; mount -t tmpfs -o size=64m tmpfs a/b; mount -t tmpfs -o size=32m tmpfs a;"
        " mkdir a/b",
        "a/b",
    )
    assert [(one["mounts"], one["total_bytes"]) for one in storage] == [
        ([f"{tmp_path}/a"], 32 * MIB)
    ]


EXT4 = "truncate -s 64M disk; mkfs.ext4 -q disk; mkdir a b; mount -o loop disk a;"
DF = "df -B1 --output=source,size,avail a | tail -1"


@needs("mkfs.ext4", "losetup")
def test_an_ext4_on_a_loop_device_is_what_df_says(found: Found) -> None:
    storage, problems, said = found(f"{EXT4} {DF}", "a")
    assert problems == []
    source, size, free = said.split()
    assert storage == [
        {
            "filesystem": source,
            "mounts": [str(Path(storage[0]["mounts"][0]))],
            "shared": False,
            "free_bytes": int(free),
            "total_bytes": int(size),
            "read_only": False,
        }
    ]


@needs("mkfs.ext4", "losetup")
def test_a_read_only_mount_is_noted_and_has_nothing_free(found: Found) -> None:
    storage, problems, said = found(f"{EXT4} mount -o remount,ro a; {DF}", "a")
    assert len(problems) == 1
    assert "is mounted read-only" in problems[0]
    assert (storage[0]["read_only"], storage[0]["free_bytes"]) == (True, 0)
    assert storage[0]["total_bytes"] == int(said.split()[1])


@needs("mkfs.ext4", "losetup")
def test_a_read_only_bind_mount_beside_a_writable_one_is_writable(found: Found) -> None:
    storage, problems, _ = found(f"{EXT4} mount --bind a b; mount -o remount,bind,ro b", "a", "b")
    assert problems == []
    assert [one["read_only"] for one in storage] == [False]
    storage, _, _ = found(
        "umount -l a b 2>/dev/null || :; mount --bind a b; mount -o remount,bind,ro b", "b"
    )
    assert [one["read_only"] for one in storage] == [True]


@needs("mkfs.btrfs", "btrfs", "losetup")
def test_subvolumes_of_a_btrfs_are_one(found: Found, tmp_path: Path) -> None:
    storage, problems, said = found(
        "truncate -s 128M disk; mkfs.btrfs -q disk >/dev/null 2>&1; mkdir a b c; mount -o loop disk a;"
        " btrfs -q subvolume create a/one >/dev/null; btrfs -q subvolume create a/two >/dev/null;"
        " dev=$(findmnt -no SOURCE a); mount -o subvol=one $dev b; mount -o subvol=two $dev c;"
        " df -B1 --output=source,size,avail b | tail -1",
        "b",
        "c",
        "a/one",
    )
    assert problems == []
    (one,) = storage
    assert one["mounts"] == [f"{tmp_path}/{name}" for name in "abc"]
    assert said.split() == [one["filesystem"], str(one["total_bytes"]), str(one["free_bytes"])]


def test_an_overlay_and_the_disk_below_it_are_one(found: Found, tmp_path: Path) -> None:
    storage, _, _ = found(
        "mkdir d o; mount -t tmpfs -o size=64m tmpfs d; mkdir d/up d/low d/work;"
        " mount -t overlay overlay -o lowerdir=d/low,upperdir=d/up,workdir=d/work o",
        "d",
        "o",
    )
    assert storage[0]["mounts"] == [f"{tmp_path}/d", f"{tmp_path}/o"]
    assert storage[0]["total_bytes"] == 64 * MIB


def test_what_fstab_names_and_is_not_mounted_is_no_room(found: Found, tmp_path: Path) -> None:
    storage, problems, _ = found(
        "mkdir filer; touch filer/left-over fstab;"
        ' echo "nas:/m $T/filer nfs noauto 0 0" > fstab; mount --bind fstab /etc/fstab',
        "filer",
    )
    assert storage == []
    assert problems[0].startswith(f"storage: nothing is mounted on {tmp_path}/filer, and")


def test_an_empty_directory_in_mnt_is_no_room(found: Found) -> None:
    storage, problems, _ = found(
        "mount -t tmpfs tmpfs /srv; umount /srv; rm -rf /srv/none", "/mnt/roost-absent"
    )
    assert storage == []
    assert "no such file or directory" in problems[0]


def test_a_link_across_a_mount_counts_where_it_leads(found: Found, tmp_path: Path) -> None:
    storage, _, _ = found(
        "mkdir a; mount -t tmpfs -o size=64m tmpfs a; mkdir a/models; ln -s $T/a/models models",
        "models",
    )
    assert [one["mounts"] for one in storage] == [[f"{tmp_path}/a"]]


# -- a filesystem whose server does not answer ---------------------------------------------------

HANGING = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from agent.facts.hanging_mount import AVAILABLE, BLOCK, BLOCKS, HangingMount, own_namespace
from roost.agent.facts.host import Reader
from roost.agent.facts.probes import Probes

point, local = Path(sys.argv[2]), Path(sys.argv[3])
own_namespace()
mount = HangingMount(point)
probes = Probes(within_s=30)
reader = Reader(Path("/"), [local, point / ".", point], probes=probes)

def look():
    began = time.monotonic()
    found = reader.read()
    shared = [one for one in found.storage if one.shared]
    return {
        "sizes": [(one.free_bytes, one.total_bytes, one.stale_since) for one in shared],
        "local": sum(1 for one in found.storage if not one.shared and one.free_bytes is not None),
        "problems": found.problems,
        "took": time.monotonic() - began,
        "outstanding": probes.outstanding,
    }

looks = [look()]
mount.answering.clear()
probes._within_s = 0.5
looks += [look() for _ in range(4)]
mount.answering.set()
deadline = time.monotonic() + 60
while (last := look())["problems"] and time.monotonic() < deadline:
    time.sleep(0.05)
looks.append(last)
reader.close()
mount.close()
print(json.dumps(looks))
"""


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse")
def test_a_mount_that_hangs_costs_its_own_numbers_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "filer").mkdir()
    (tmp_path / "local").mkdir()
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [
            *(sys.executable, "-c", HANGING, str(tests)),
            *(str(tmp_path / "filer"), str(tmp_path / "local")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("mounting a FUSE filesystem is not allowed here")
    assert done.returncode == 0, done.stderr
    before, *hanging, after = json.loads(done.stdout)
    numbers = [250_000 * 4096, 1_000_000 * 4096]
    assert before["sizes"] == [[*numbers, None]]
    assert before["problems"] == []
    for look in hanging:
        ((*kept, stale_since),) = look["sizes"]
        assert kept == numbers
        assert stale_since is not None
        assert look["outstanding"] == 1
        assert look["local"] == 1
        assert len(look["problems"]) == 1
        assert "filer:/models" in look["problems"][0]
        assert "has not answered since" in look["problems"][0]
    # The same text each time: a report about a mount that hangs changes nothing.
    assert len({look["problems"][0] for look in hanging}) == 1
    assert after["sizes"] == [[*numbers, None]]
    assert after["outstanding"] == 0
