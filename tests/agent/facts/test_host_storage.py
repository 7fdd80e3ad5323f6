"""From model directories to filesystems: tables that a test says, directories that are real."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from roost.agent.facts.filesystems import (
    Place,
    Sizes,
    filesystem,
    looks_unmounted,
    merged,
    pools,
    should_be_mounted,
    sizes,
)
from roost.agent.facts.fstab import parse_fstab, parse_unit
from roost.agent.facts.host import Reader
from roost.agent.facts.kinds import Kind, kind_of
from roost.agent.facts.mountinfo import Mount, mount_of, parse_mountinfo
from roost.agent.facts.mounts import Mounts
from roost.agent.facts.probes import Probes
from roost.agent.facts.storage import Storage
from roost.agent.facts.tree import Tree
from roost.domain.node import Filesystem

GB = 10**9
ROOT = Mount(point="/", kind="ext4", source="/dev/sda1", device="8:1", number=1, parent=0)


def mount(point: str, kind: str = "ext4", source: str = "/dev/sdb1", **changes: object) -> Mount:
    made = Mount(point=point, kind=kind, source=source, device="8:17", number=2, parent=1)
    return replace(made, **changes)  # type: ignore[arg-type]  # a test's own words


def of(*mounts: Mount) -> list[tuple[str, tuple[str, ...]]]:
    places = [Place(directory=one.point, mount=one) for one in mounts]
    return [(pool.name, pool.mounts) for pool in pools(places)]


# -- one pool of bytes (B007) --------------------------------------------------------------------


def test_one_device_mounted_four_times_and_one_share_mounted_twice_are_two_filesystems() -> None:
    disk = [mount(point, device="259:2", source="/dev/nvme0n1p2", number=number)
            for number, point in enumerate(("/", "/opt", "/etc/hosts", "/data/models"), start=10)]  # fmt: skip
    share = [
        mount("/mnt/a", "nfs4", "nas:/models", device="0:50"),
        mount("/mnt/b", "nfs4", "nas:/models/", device="0:51"),
    ]
    assert of(*disk, *share) == [
        ("/dev/nvme0n1p2", ("/", "/data/models", "/etc/hosts", "/opt")),
        ("nas:/models", ("/mnt/a", "/mnt/b")),
    ]


def test_subvolumes_of_btrfs_are_one_whatever_device_number_each_has() -> None:
    assert of(
        mount("/", "btrfs", "/dev/sda2", device="0:30", root="/@"),
        mount("/home", "btrfs", "/dev/sda2", device="0:31", root="/@home"),
        mount("/models", "btrfs", "/dev/sdb", device="0:30", root="/@models"),
    ) == [("/dev/sda2", ("/", "/home", "/models"))]


def test_datasets_of_a_zfs_pool_are_one_and_pools_are_not() -> None:
    assert of(
        mount("/tank/a", "zfs", "tank/a", device="0:40"),
        mount("/tank/b", "zfs", "tank/b/c", device="0:41"),
        mount("/tank", "zfs", "tank", device="0:42"),
        mount("/tanker", "zfs", "tanker", device="0:43"),
    ) == [("tank", ("/tank", "/tank/a", "/tank/b")), ("tanker", ("/tanker",))]


def test_a_zfs_pool_is_what_is_free_and_what_its_datasets_have_used() -> None:
    (pool,) = pools(
        Place(directory=point, mount=mount(point, "zfs", source, device=device))
        for point, source, device in (
            ("/a", "t/a", "0:1"),
            ("/b", "t/b", "0:2"),
            ("/a2", "t/a", "0:1"),
        )
    )
    assert len(pool.places) == 2
    # 600 free in the pool; a has used 100, b 300 and is held to 50 more by a quota.
    asked = [
        Sizes(free_bytes=600 * GB, total_bytes=700 * GB),
        Sizes(free_bytes=50 * GB, total_bytes=350 * GB),
    ]
    found = filesystem(pool, asked)
    assert (found.free_bytes, found.total_bytes) == (600 * GB, 1000 * GB)
    half = filesystem(pool, [asked[0], None])
    assert (half.free_bytes, half.total_bytes) == (600 * GB, None)


def test_different_disks_shares_and_tmpfs_stay_apart() -> None:
    assert of(
        mount("/a", "xfs", "/dev/sdb1", device="8:17"),
        mount("/b", "xfs", "/dev/sdc1", device="8:33"),
        mount("/c", "nfs", "nas:/a", device="0:50"),
        mount("/d", "nfs", "nas:/b", device="0:51"),
        mount("/e", "tmpfs", "tmpfs", device="0:52"),
        mount("/f", "tmpfs", "tmpfs", device="0:53"),
        mount("/g", "fuse.s3fs", "s3fs", device="0:54"),
        mount("/h", "fuse.s3fs", "s3fs", device="0:55"),
    ) == [
        ("/dev/sdb1", ("/a",)),
        ("/dev/sdc1", ("/b",)),
        ("nas:/a", ("/c",)),
        ("nas:/b", ("/d",)),
        ("s3fs:/g", ("/g",)),
        ("s3fs:/h", ("/h",)),
        ("tmpfs:/e", ("/e",)),
        ("tmpfs:/f", ("/f",)),
    ]


def test_a_containers_overlay_and_the_disk_it_is_on_are_one() -> None:
    found = pools(
        Place(directory=one.point, mount=one)
        for one in (
            mount("/", "overlay", "overlay", device="0:99"),
            mount("/models", "ext4", "/dev/sda1", device="8:1"),
            mount("/x", "xfs", "/dev/sdb1", device="8:17"),
        )
    )
    same = Sizes(free_bytes=50 * GB, total_bytes=100 * GB)
    # Written between the two questions; and another disk of the same size.
    moved = replace(same, free_bytes=50 * GB - 4096)
    other = replace(same, free_bytes=90 * GB)
    said = {"/": moved, "/models": same, "/x": other}
    one = merged([(pool, [said[pool.mounts[0]]]) for pool in found])
    assert [(pool.name, pool.mounts) for pool in one] == [
        ("/dev/sda1", ("/", "/models")),
        ("/dev/sdb1", ("/x",)),
    ]
    assert merged([(pool, [None]) for pool in found]) == found
    said["/"] = replace(same, free_bytes=70 * GB)
    assert merged([(pool, [said[pool.mounts[0]]]) for pool in found]) == found


@pytest.mark.parametrize(
    ("kind", "source", "is_"),
    [
        ("ext4", "/dev/sda1", Kind.LOCAL),
        ("xfs", "/dev/mapper/vg-lv", Kind.LOCAL),
        ("zfs", "tank/models", Kind.LOCAL),
        ("tmpfs", "tmpfs", Kind.LOCAL),
        ("overlay", "overlay", Kind.LOCAL),
        ("bcachefs", "/dev/sda:/dev/sdb", Kind.LOCAL),
        ("fuseblk", "/dev/sdc1", Kind.OWN),
        ("fuse.mergerfs", "a:b", Kind.OWN),
        ("nfs", "nas:/models", Kind.SHARED),
        ("nfs4", "[fd00::1]:/models", Kind.SHARED),
        ("cifs", "//nas/share", Kind.SHARED),
        ("lustre", "10.0.0.1@o2ib:/scratch", Kind.SHARED),
        ("beegfs", "beegfs_nodev", Kind.SHARED),
        ("gpfs", "gpfs0", Kind.SHARED),
        ("ceph", "10.0.0.1:6789:/", Kind.SHARED),
        ("glusterfs", "server:/vol", Kind.SHARED),
        ("fuse.glusterfs", "server:/vol", Kind.SHARED),
        ("fuse.sshfs", "me@host:/models", Kind.SHARED),
        ("fuse.s3fs", "s3fs", Kind.SHARED),
        ("fuse.juicefs", "JuiceFS:models", Kind.SHARED),
        ("9p", "hostshare", Kind.SHARED),
        ("virtiofs", "models", Kind.SHARED),
        ("afs", "AFS", Kind.SHARED),
        ("ocfs2", "/dev/sdd", Kind.SHARED),
        ("fuse.newthing", "bucket", Kind.SHARED),
        ("fuse", "/dev/fuse", Kind.SHARED),
        ("fuse.newthing", "/dev/sdb1", Kind.OWN),
        ("newnetfs", "server:/export", Kind.SHARED),
        ("newdiskfs", "/dev/sdb1", Kind.OWN),
        ("autofs", "/etc/auto.misc", Kind.AUTOMOUNT),
        ("proc", "proc", Kind.PSEUDO),
    ],
)
def test_local_and_shared_are_told_apart(kind: str, source: str, is_: Kind) -> None:
    assert kind_of(kind, source) is is_


# -- what statvfs says ---------------------------------------------------------------------------


def test_free_is_what_others_than_root_may_write() -> None:
    found = sizes(block=4096, fragment=4096, blocks=1000, available=200)
    assert (found.free_bytes, found.total_bytes) == (200 * 4096, 1000 * 4096)


def test_a_fragment_is_the_unit_and_a_block_only_where_there_is_none() -> None:
    assert sizes(block=1 << 20, fragment=4096, blocks=10, available=1).total_bytes == 40960
    assert sizes(block=4096, fragment=0, blocks=10, available=1).total_bytes == 40960


@pytest.mark.parametrize(
    ("blocks", "available"), [(0, 0), (1 << 64, 1), (10, 1 << 63)], ids=["none", "huge", "negative"]
)
def test_what_makes_no_sense_is_unknown_and_not_zero(blocks: int, available: int) -> None:
    found = sizes(block=4096, fragment=4096, blocks=blocks, available=available)
    assert found.free_bytes is None
    assert found.total_bytes == (40960 if blocks == 10 else None)


def test_nothing_is_free_where_nothing_can_be_written() -> None:
    (pool,) = pools([Place(directory="/m", mount=mount("/m", read_only=True))])
    found = filesystem(pool, [Sizes(free_bytes=5, total_bytes=9)])
    assert (found.free_bytes, found.total_bytes, found.read_only) == (0, 9, True)
    unknown = filesystem(pool, [None])
    assert (unknown.free_bytes, unknown.total_bytes) == (None, None)


def test_one_writable_mount_makes_a_filesystem_writable() -> None:
    (pool,) = pools(
        Place(directory=point, mount=mount(point, read_only=read_only))
        for point, read_only in (("/a", True), ("/b", False))
    )
    assert not pool.read_only


# -- the kernel's walk ---------------------------------------------------------------------------


def test_a_mount_over_a_directory_hides_what_was_mounted_below_it() -> None:
    table = [
        ROOT,
        mount("/mnt/a/b", source="/dev/old", number=2, parent=1),
        mount("/mnt/a", source="/dev/new", number=3, parent=1),
    ]
    for order in (table, table[::-1]):
        found = mount_of(order, "/mnt/a/b/models")
        assert found is not None
        assert found.source == "/dev/new"
    above = [*table, mount("/mnt/a/b", source="/dev/newer", number=4, parent=3)]
    found = mount_of(above, "/mnt/a/b/models")
    assert found is not None
    assert found.source == "/dev/newer"


def test_of_two_mounts_on_one_point_the_last_is_seen() -> None:
    table = [
        ROOT,
        mount("/m", source="/dev/x", number=2),
        mount("/m", source="/dev/y", number=3, parent=2),
    ]
    found = mount_of(table, "/m")
    assert found is not None
    assert found.source == "/dev/y"


def test_escapes_in_names_are_undone_once() -> None:
    line = rb"36 35 98:0 / /mnt/a\040b\011c\134040 rw shared:1 master:2 - nfs nas:/x\040y\043 rw"
    (found,), problems = parse_mountinfo(line)
    assert problems == ()
    assert found.point == "/mnt/a b\tc\\040"
    assert found.source == "nas:/x y#"


# -- the unmounted filer -------------------------------------------------------------------------


def test_fstab_says_what_should_be_mounted() -> None:
    points, problems = parse_fstab(
        b"# comment\n\nUUID=1 / ext4 defaults 0 1\nnas:/m /mnt/my\\040models/ nfs noauto 0 0\n"
        b"/dev/sdb none swap sw\nnonsense\n"
    )
    assert points == ("/", "/mnt/my models")
    assert problems == ("fstab: line 6 does not have source, mount point and type: nonsense",)


def test_a_units_where_is_a_mount_point_and_a_specifier_is_none() -> None:
    assert parse_unit(b"[Mount]\nWhat=nas:/m\nWhere = /mnt/m\n") == "/mnt/m"
    assert parse_unit(b"Where=/mnt/%i\n") is None
    assert parse_unit(b"What=nas:/m\n") is None


def test_a_directory_below_a_mount_point_with_nothing_mounted_is_missing_its_mount() -> None:
    expected = ("/", "/mnt/filer", "/data")
    assert should_be_mounted("/mnt/filer/models", ROOT, expected) == "/mnt/filer"
    assert should_be_mounted("/mnt/filer", mount("/mnt/filer"), expected) is None
    assert should_be_mounted("/mnt/filer/deep", mount("/mnt/filer/deep"), expected) is None
    assert should_be_mounted("/mnt/filer2", ROOT, expected) is None
    assert should_be_mounted("/srv", ROOT, expected) is None


@pytest.mark.parametrize(
    ("directory", "point", "is_empty", "looks"),
    [
        ("/mnt/filer", "/", True, True),
        ("/mnt/filer/models", "/", True, True),
        ("/models", "/", True, True),
        ("/models", "/", False, False),
        ("/var/lib/roost/models", "/", True, False),
        ("/home/me/models", "/", True, False),
        ("/mnt/disk/models", "/mnt/disk", True, False),
        ("/", "/", True, False),
    ],
)
def test_an_empty_directory_where_filers_are_mounted_is_no_room(
    directory: str, point: str, is_empty: bool, looks: bool
) -> None:
    assert looks_unmounted(directory, mount(point), is_empty=is_empty) is looks


# -- real directories, a table of the test's -----------------------------------------------------


def look(
    directories: Sequence[Path | str], table: Sequence[Mount], expected: Sequence[str] = ()
) -> tuple[tuple[Filesystem, ...] | None, tuple[str, ...]]:
    storage = Storage(Tree(), [str(one) for one in directories], Probes(within_s=30))
    return storage.read(Mounts(table=tuple(table), expected=tuple(expected)))


def test_no_model_directories_is_nothing_reported() -> None:
    assert look([], [ROOT]) == (None, ())


def test_an_unread_table_is_nothing_known(tmp_path: Path) -> None:
    storage = Storage(Tree(), [str(tmp_path)], Probes())
    assert storage.read(Mounts(table=None)) == (None, ())


def test_a_missing_directory_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    found, problems = look([tmp_path / "there", tmp_path / "absent"], [ROOT])
    assert found is not None
    assert [one.filesystem for one in found] == ["/dev/sda1"]
    said = os.statvfs(tmp_path)
    assert found[0].total_bytes == said.f_blocks * said.f_frsize
    assert problems == (
        f"storage: the model directory {tmp_path}/absent: no such file or directory",
    )


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, problems = look([tmp_path / "file"], [ROOT])
    assert found == ()
    assert problems == (f"storage: the model directory {tmp_path}/file: not a directory",)


def test_links_are_followed_to_where_the_bytes_are(tmp_path: Path) -> None:
    (tmp_path / "disk/models").mkdir(parents=True)
    (tmp_path / "models").symlink_to("disk/models")
    (tmp_path / "loop").symlink_to("loop")
    table = [ROOT, mount(f"{tmp_path}/disk", source="/dev/sdb1")]
    found, problems = look([tmp_path / "models", tmp_path / "loop"], table)
    assert found is not None
    assert [(one.filesystem, one.mounts) for one in found] == [("/dev/sdb1", (f"{tmp_path}/disk",))]
    assert len(problems) == 1
    assert "too many levels of symbolic links" in problems[0]


def test_what_fstab_names_and_is_not_mounted_is_no_room_of_the_root_disk(tmp_path: Path) -> None:
    (tmp_path / "filer/models").mkdir(parents=True)
    (tmp_path / "filer/models/left-over").touch()
    found, problems = look([tmp_path / "filer/models"], [ROOT], [f"{tmp_path}/filer"])
    assert found == ()
    not_there = f"storage: nothing is mounted on {tmp_path}/filer"
    left_out = f"{tmp_path}/filer/models is not counted as room of /dev/sda1"
    assert problems == (f"{not_there}, and /etc/fstab or a mount unit names it: {left_out}",)
    # Missing altogether, the mount is what is said to be missing.
    _, problems = look([tmp_path / "filer/absent"], [ROOT], [f"{tmp_path}/filer"])
    assert problems[0].startswith(not_there)


def test_what_was_mounted_once_and_is_not_any_more_is_no_room_of_the_root_disk(
    tmp_path: Path,
) -> None:
    (tmp_path / "filer").mkdir()
    (tmp_path / "filer/left-over").touch()
    storage = Storage(Tree(), [f"{tmp_path}/filer"], Probes())
    mounted = (ROOT, mount(f"{tmp_path}/filer"))
    assert storage.read(Mounts(table=mounted))[0]
    found, problems = storage.read(Mounts(table=(ROOT,)))
    assert found == ()
    assert "and it was:" in problems[0]
    assert storage.read(Mounts(table=mounted))[0]


def test_a_shared_mount_is_asked_in_a_process_and_said_to_be_shared(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    table = [
        ROOT,
        mount(f"{tmp_path}/a", "nfs4", "nas:/models", device="0:50", number=5),
        mount(f"{tmp_path}/b", "nfs4", "nas:/models", device="0:50", number=6, read_only=True),
    ]
    found, problems = look([tmp_path / "a", tmp_path / "b", tmp_path / "a/absent"], table)
    assert found is not None
    (one,) = found
    assert (one.filesystem, one.shared, one.read_only) == ("nas:/models", True, False)
    assert one.mounts == (f"{tmp_path}/a", f"{tmp_path}/b")
    assert one.total_bytes is not None
    assert problems == (
        f"storage: the model directory {tmp_path}/a/absent: no such file or directory",
    )


def test_a_link_on_a_share_that_leads_off_it_counts_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "share/models").symlink_to(tmp_path / "disk")
    table = [
        ROOT,
        mount(f"{tmp_path}/share", "nfs", "nas:/m", device="0:50"),
        mount(f"{tmp_path}/disk", source="/dev/sdb1", device="8:17", number=3),
    ]
    found, problems = look([tmp_path / "share/models"], table)
    assert problems == ()
    assert found is not None
    assert [(one.filesystem, one.shared) for one in found] == [("/dev/sdb1", False)]


def test_an_automount_counts_as_what_it_mounts_when_it_is_touched(tmp_path: Path) -> None:
    (tmp_path / "auto/models").mkdir(parents=True)
    table = [ROOT, mount(f"{tmp_path}/auto", "autofs", "/etc/auto.misc", device="0:60")]
    # The table is read again behind the touch: this machine's own, where nothing is automounted.
    found, problems = look([tmp_path / "auto/models"], table)
    assert problems == ()
    assert found is not None
    (one,) = found
    assert one.total_bytes is not None
    _, problems = look([tmp_path / "auto/absent"], table)
    assert problems == (
        f"storage: the model directory {tmp_path}/auto/absent: no such file or directory",
    )


def test_a_directory_of_the_kernels_own_is_no_place_for_models(tmp_path: Path) -> None:
    found, problems = look([tmp_path], [ROOT, mount(str(tmp_path), "proc", "proc")])
    assert found == ()
    assert problems == (f"storage: {tmp_path} is on proc, no place for models: left out",)


def test_a_read_only_disk_is_noted(tmp_path: Path) -> None:
    found, problems = look([tmp_path], [replace(ROOT, read_only=True)])
    assert found is not None
    assert found[0].read_only
    assert found[0].free_bytes == 0
    assert problems == (
        "storage: /dev/sda1 is mounted read-only on /: nothing can be written there",
    )


def test_names_that_are_no_text_are_shown_and_sent_safely(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\x1b[2J") + "\n"
    (tmp_path / name).mkdir()
    table = [ROOT, mount(f"{tmp_path}/{name}", source="/dev/\udcff\n")]
    found, problems = look([tmp_path / name, tmp_path / f"{name}x"], table)
    assert found is not None
    said = [found[0].filesystem, *found[0].mounts, *problems]
    assert all(text.isprintable() and text.encode() for text in said)


# -- another machine's files ---------------------------------------------------------------------


def tree(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


MEMINFO = "MemTotal:       536870912 kB\nMemFree: 1 kB\nCached: 500000000 kB\n"
GIB = 1 << 30


def memory(root: Path) -> int | None:
    return Reader(root, []).read().memory_bytes


def test_a_control_groups_limit_lowers_the_memory(tmp_path: Path) -> None:
    assert memory(tree(tmp_path, proc__meminfo=MEMINFO)) == 512 * GIB
    tree(
        tmp_path,
        proc__self__cgroup="0::/system.slice/roost.service\n",
        proc__self__mountinfo="1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    )
    group = tmp_path / "sys/fs/cgroup/system.slice/roost.service"
    group.mkdir(parents=True)
    assert memory(tmp_path) == 512 * GIB
    (group / "memory.max").write_text("max\n")
    assert memory(tmp_path) == 512 * GIB
    (group / "memory.max").write_text(f"{40 * GIB}\n")
    assert memory(tmp_path) == 40 * GIB
    # Every group above it holds, too, and the least of them counts.
    (group.parent / "memory.max").write_text(f"{30 * GIB}\n")
    assert memory(tmp_path) == 30 * GIB
    (group.parent / "memory.max").write_text(f"{600 * GIB}\n")
    assert memory(tmp_path) == 40 * GIB


def test_version_1_limits_are_read_below_what_is_mounted(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/docker/1f\n0::/\n",
        proc__self__mountinfo="1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:26 /docker/1f /sys/fs/cgroup/cpu,memory ro - cgroup cgroup rw,cpu,memory\n",
        **{"sys__fs__cgroup__cpu,memory__memory.limit_in_bytes": f"{40 * GIB}\n"},
    )
    assert memory(tmp_path) == 40 * GIB
    # A path that is the host's, seen from a container: the container's own group is the top.
    tree(tmp_path, proc__self__cgroup="4:cpu,memory:/elsewhere/2a\n")
    assert memory(tmp_path) == 40 * GIB
    tree(tmp_path, **{"sys__fs__cgroup__cpu,memory__memory.limit_in_bytes": "9223372036854771712"})
    assert memory(tmp_path) == 512 * GIB


def test_a_container_without_a_table_still_has_its_limit(tmp_path: Path) -> None:
    tree(tmp_path, proc__meminfo=MEMINFO, **{"sys__fs__cgroup__memory.max": f"{40 * GIB}"})
    assert memory(tmp_path) == 40 * GIB


def test_a_limit_that_is_no_number_is_a_problem_and_lowers_nothing(tmp_path: Path) -> None:
    tree(tmp_path, proc__meminfo=MEMINFO, **{"sys__fs__cgroup__memory.max": "lots\n"})
    found = Reader(tmp_path, []).read()
    assert found.memory_bytes == 512 * GIB
    assert "cgroup: /sys/fs/cgroup/memory.max is neither max nor a number of bytes: lots" in (
        found.problems
    )


def test_memory_that_is_not_said_is_unknown_and_says_why(tmp_path: Path) -> None:
    found = Reader(tmp_path, []).read()
    assert found.memory_bytes is None
    assert any("meminfo" in problem for problem in found.problems)


def test_another_machines_filesystems_are_known_and_their_sizes_are_not(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__self__mountinfo="1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:42 / /models rw - nfs4 nas:/models rw\n",
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to("/models")
    found = Reader(tmp_path, [Path("/link"), Path("/srv/m")]).read()
    assert found.storage is not None
    assert [
        (one.filesystem, one.shared, one.free_bytes, one.total_bytes) for one in found.storage
    ] == [
        ("/dev/sda1", False, None, None),
        ("nas:/models", True, None, None),
    ]
    assert "storage: /srv/m is not below --root: taken to be what it is called" in found.problems


def test_links_of_another_machine_stay_in_its_tree(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "outside").write_text(MEMINFO)
    root = tmp_path / "root"
    tree(root, proc__real="MemTotal: 1 kB\n")
    (root / "proc/meminfo").symlink_to("../../../../../proc/real")
    assert memory(root) == 1024
    (root / "proc/meminfo").unlink()
    (root / "proc/meminfo").symlink_to("/outside")
    assert memory(root) is None


def test_a_pipe_in_place_of_a_file_does_not_stop_anybody(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/meminfo")
    found = Reader(tmp_path, []).read()
    assert found.memory_bytes is None
    assert "memory is not known: /proc/meminfo: is not a file" in found.problems


def test_an_empty_root_invents_nothing(tmp_path: Path) -> None:
    found = Reader(tmp_path, [Path("/models")]).read()
    assert (found.labels, found.memory_bytes, found.storage) == ({}, None, None)
    assert len(found.problems) == 2


def test_labels_of_another_machine_come_from_its_files(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__sys__kernel__ostype="Linux\n",
        proc__sys__kernel__arch="aarch64\n",
        proc__cpuinfo="processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd85\n\n"
        "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd87\n",
    )
    assert Reader(tmp_path, []).read().labels == {
        "roost/os": "linux",
        "roost/arch": "aarch64",
        "roost/cpus": "2",
        "roost/cpu-model": "Cortex-X925+Cortex-A725",
    }
    tree(tmp_path, sys__devices__system__cpu__online="0-19\n")
    assert Reader(tmp_path, []).read().labels["roost/cpus"] == "20"
