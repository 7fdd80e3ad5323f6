"""Other people's machines, with what is on them worked out by hand; sources in tests/data."""

# ruff: noqa: S108 - these are paths on other people's machines

from pathlib import Path

import pytest

from roost.agent.facts.cgroup import parse_limit
from roost.agent.facts.filesystems import Place, pools
from roost.agent.facts.kinds import Kind, kind_of
from roost.agent.facts.meminfo import parse_mem_total
from roost.agent.facts.mountinfo import Mount, mount_of, parse_mountinfo, parse_mounts

CAPTURES = Path(__file__).parents[2] / "data/facts/host"


def capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes()


# -- memory --------------------------------------------------------------------------------------

MEMORY = {
    "facter__meminfo": 4_036_680 * 1024,
    "facter__meminfo2": 4_037_608 * 1024,
    "facter__rhel5_memory": 4_036_680 * 1024,
    "insights-core__test_meminfo_2.txt": 8_009_912 * 1024,
    "jc__meminfo": 3_997_272 * 1024,
    "node_exporter__collector_fixtures_proc_meminfo": 3_742_148 * 1024,
    "telegraf__testdata_missing_fields_proc_meminfo": 16_201_888 * 1024,
    "telegraf__testdata_normal_proc_meminfo": 16_201_888 * 1024,
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_mem_total_whatever_is_free_or_cached(name: str) -> None:
    assert parse_mem_total(capture(name)) == (MEMORY[name], ())


def test_prose_about_memory_is_no_memory() -> None:
    assert parse_mem_total(capture("insights-core__test_meminfo_1.txt")) == (
        None,
        ("meminfo: has no MemTotal",),
    )


# -- control groups ------------------------------------------------------------------------------

LIMITS = {
    "cadvisor__memory.max": 123_456_789,
    "2_cadvisor__memory.max": None,
    "cadvisor__memory_memory.limit_in_bytes": 123_456_789,
    "telegraf__memory.max": 103_079_215_104,
    "telegraf__memory.high": None,
    # Its author's own number: a 9 less than "none", and a limit like any other.
    "2_telegraf__memory.limit_in_bytes": 223_372_036_854_771_712,
    "telegraf__memory.kmem.limit_in_bytes": None,
    "telegraf__cpu.cfs_quota_us": None,
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_a_number_of_bytes_or_none(name: str) -> None:
    assert parse_limit(capture(name)) == (LIMITS[name], ())


@pytest.mark.parametrize(
    "name",
    [
        "telegraf__memory.max_usage_in_bytes",
        "telegraf__memory.use_hierarchy",
        "telegraf__memory.stat",
        "telegraf__memory.limit_in_bytes",
    ],
)
def test_what_is_no_limit_says_so(name: str) -> None:
    limit, problems = parse_limit(capture(name))
    if name == "telegraf__memory.limit_in_bytes":
        assert (limit, problems) == (1, ())
        return
    assert limit is None
    assert len(problems) == 1
    assert problems[0].startswith("is neither max nor a number of bytes: ")


# -- mounts --------------------------------------------------------------------------------------

# Of each capture: how many mounts, and the mount behind some directories
# (mount point, type, source, device, what it is).
ROOT_SDA1 = ("/", "ext4", "/dev/sda1", "8:1", Kind.LOCAL)
NFS = "192.0.2.1:/srv/test"
MOUNTS: dict[str, tuple[int, dict[str, tuple[str, str, str, str, Kind]]]] = {
    "node_exporter__fixtures_proc_10_mountinfo": (
        7,
        {
            "/models": ROOT_SDA1,
            "/mnt/nfs/test/llama": ("/mnt/nfs/test", "nfs4", NFS, "0:42", Kind.SHARED),
            # Mounted over again from another parent that isn't in this table: the visible one.
            "/mnt/nfs/test-dupe": ("/mnt/nfs/test-dupe", "nfs", NFS, "0:44", Kind.SHARED),
            "/mnt/nfs": ROOT_SDA1,
            "/root": ("/root", "rootfs", "rootfs", "0:5", Kind.LOCAL),
        },
    ),
    "node_exporter__fixtures_proc_1_mountinfo": (
        32,
        {
            "/models": ("/", "ext4", "/dev/dm-2", "259:2", Kind.LOCAL),
            "/boot": ("/boot", "ext2", "/dev/sda3", "260:3", Kind.LOCAL),
            "/run/user/1000/gvfs/x": (
                "/run/user/1000/gvfs",
                "fuse.gvfsd-fuse",
                "gvfsd-fuse",
                "0:81",
                Kind.SHARED,
            ),
            "/dev/shm": ("/dev/shm", "tmpfs", "tmpfs", "0:26", Kind.LOCAL),
            "/var/lib/containers/storage/overlay/x": (
                "/var/lib/containers/storage/overlay",
                "xfs",
                "/dev/mapper/rhel-root",
                "253:0",
                Kind.LOCAL,
            ),
            "/sys/fs/cgroup/freezer": (
                "/sys/fs/cgroup/freezer",
                "cgroup",
                "cgroup",
                "0:29",
                Kind.PSEUDO,
            ),
        },
    ),
    "procfs__fixtures_proc_26231_mountinfo": (
        8,
        {
            "/srv": ROOT_SDA1,
            "/var/lib/containers/storage/overlay": (
                "/var/lib/containers/storage/overlay",
                "xfs",
                "/dev/mapper/rhel-root",
                "253:0",
                Kind.LOCAL,
            ),
            "/proc/1": ("/proc", "proc", "proc", "0:4", Kind.PSEUDO),
        },
    ),
    "telegraf__issue_10297_proc_1_mountinfo": (
        2,
        {
            "/srv/models": ROOT_SDA1,
            "/mnt/storage/models": ("/mnt/storage", "ext4", "/dev/sdb", "8:16", Kind.LOCAL),
            "/mnt/storage-2": ROOT_SDA1,
        },
    ),
    "telegraf__success_proc_1_mountinfo": (
        2,
        {
            "/": ("/", "ext4", "/dev/nvme0n1p4", "259:4", Kind.LOCAL),
            "/tmp/x": ("/tmp", "tmpfs", "tmpfs", "0:32", Kind.LOCAL),
        },
    ),
    "gpud__mountinfo": (
        171,
        {
            "/models": ("/", "ext4", "/dev/mapper/vgroot-lvroot", "253:0", Kind.LOCAL),
            "/root/tmproot/models": (
                "/root/tmproot",
                "ext4",
                "/dev/mapper/vgroot-lvroot",
                "253:0",
                Kind.LOCAL,
            ),
            "/mnt/local-volume/vol-0/hf": (
                "/mnt/local-volume/vol-0",
                "ext4",
                "/dev/nvme2n1p1",
                "259:7",
                Kind.LOCAL,
            ),
            "/mnt/lepton-cache/vol-4": (
                "/mnt/lepton-cache/vol-4",
                "ext4",
                "/dev/nvme7n1p1",
                "259:12",
                Kind.LOCAL,
            ),
            "/mnt/remote-volume/training": (
                "/mnt/remote-volume/training",
                "fuse.testfs",
                "TestFS:test-us-east-training",
                "0:80",
                Kind.SHARED,
            ),
            "/proc/cpuinfo": ("/proc/cpuinfo", "fuse.lxcfs", "lxcfs", "0:44", Kind.PSEUDO),
        },
    ),
    "insights-core__test_mount_10.txt": (
        5,
        {
            "/data/models": ("/data", "ext4", "/dev/mapper/vgdata-lvdata", "253:19", Kind.LOCAL),
            "/opt/hf": ("/opt", "xfs", "/dev/mapper/rootvg-lvlocopt", "253:15", Kind.LOCAL),
            "/srv": ("/", "xfs", "/dev/mapper/rootvg-lvlocroot", "253:0", Kind.LOCAL),
        },
    ),
    "insights-core__test_mount_6.txt": (
        16,
        {
            "/shared/dir1/a": (
                "/shared/dir1",
                "nfs4",
                "hostname1:/shared_dir1",
                "0:20",
                Kind.SHARED,
            ),
            "/shared/dir2": (
                "/shared/dir2",
                "nfs",
                "hostname2:/shared/some/dir2",
                "0:19",
                Kind.SHARED,
            ),
            "/misc/models": ("/misc", "autofs", "/etc/auto.misc", "0:21", Kind.AUTOMOUNT),
            "/var/lib": ("/var", "ext4", "/dev/mapper/vgsys-var", "253:34", Kind.LOCAL),
            "/var/opt/OV/m": (
                "/var/opt/OV",
                "ext4",
                "/dev/mapper/vgcore-var_opt_OV",
                "253:22",
                Kind.LOCAL,
            ),
        },
    ),
}


def described(mount: Mount | None) -> tuple[str, str, str, str | None, Kind] | None:
    if mount is None:
        return None
    kind = kind_of(mount.kind, mount.source)
    return (mount.point, mount.kind, mount.source, mount.device, kind)


@pytest.mark.parametrize("name", MOUNTS)
def test_a_directory_is_on_the_mount_that_the_kernel_would_walk_to(name: str) -> None:
    count, expected = MOUNTS[name]
    mounts, problems = parse_mountinfo(capture(name))
    assert problems == ()
    assert len(mounts) == count
    found = {directory: described(mount_of(mounts, directory)) for directory in expected}
    assert found == expected


def test_names_with_spaces_and_tabs_are_read_as_they_are() -> None:
    mounts, _ = parse_mountinfo(capture("node_exporter__fixtures_proc_1_mountinfo"))
    named = [mount.point for mount in mounts if "vsanDatastore" in mount.point]
    above = "/var/lib/kubelet/plugins/kubernetes.io/vsphere-volume/mounts/[vsanDatastore]"
    below = (
        "bafb9e5a-8856-7e6c-699c-801844e77a4a/"
        "kubernetes-dynamic-pvc-57236de0-35a1-a6f9-84a1-bdfd9f6b892b.vmdk"
    )
    assert named == [f"{above} {below}", f"{above}\t{below}"]


def test_a_line_without_a_dash_is_left_out_and_named() -> None:
    mounts, problems = parse_mountinfo(capture("insights-core__test_mount_7.txt"))
    assert [mount.point for mount in mounts] == ["/dev", "/dev/shm", "/boot"]
    line = "21 1 253:1 / / rw,relatime  ext4 /dev/mapper/vgsys-root rw,b…"
    assert problems == (f"mountinfo: line 3 has no - behind its mount options: {line}",)
    # The root is not known, so nothing is said of what is on it.
    assert mount_of(mounts, "/models") is None


OLDER: dict[str, tuple[int, int, dict[str, tuple[str, str, str, str | None, Kind]]]] = {
    "facter__proc_self_mounts": (
        6,
        0,
        {"/models": ("/", "ext4", "/dev/mapper/localhost--vg-root", None, Kind.LOCAL)},
    ),
    "facter__proc_self_mounts_selinux": (
        6,
        0,
        {"/models": ("/", "ext4", "/dev/mapper/localhost--vg-root", None, Kind.LOCAL)},
    ),
    "insights-core__test_mount_1.txt": (
        5,
        0,
        {"/models": ("/", "ext4", "/dev/mapper/rootvg-rootlv", None, Kind.LOCAL)},
    ),
    "insights-core__test_mount_5.txt": (
        19,
        0,
        {
            "/var/tmp/x": ("/var/tmp", "ext4", "/dev/mapper/rootvg-tmplv", None, Kind.LOCAL),
            "/var/lib/models": ("/var", "ext4", "/dev/mapper/rootvg-varlv", None, Kind.LOCAL),
            "/users/a": ("/users", "nfs", "/vol/vol9/home", None, Kind.SHARED),
            "/misc/a": ("/misc", "autofs", "/etc/auto.misc", None, Kind.AUTOMOUNT),
        },
    ),
    # Its last line has spaces in the mount point, which the kernel would have escaped.
    "insights-core__test_mount_9.txt": (
        3,
        1,
        {"/models": ("/", "ext4", "/dev/mapper/rootvg-rootlv", None, Kind.LOCAL)},
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_the_older_table_says_the_same_without_device_numbers(name: str) -> None:
    count, wrong, expected = OLDER[name]
    mounts, problems = parse_mounts(capture(name))
    assert (len(mounts), len(problems)) == (count, wrong)
    found = {directory: described(mount_of(mounts, directory)) for directory in expected}
    assert found == expected


# -- one pool of bytes ---------------------------------------------------------------------------

POOLS: dict[str, dict[tuple[str, ...], list[tuple[str, Kind, tuple[str, ...]]]]] = {
    "node_exporter__fixtures_proc_10_mountinfo": {
        # nfs and nfs4, two device numbers, one file server.
        ("/srv", "/mnt/nfs/test", "/mnt/nfs/test-dupe"): [
            ("/dev/sda1", Kind.LOCAL, ("/",)),
            (NFS, Kind.SHARED, ("/mnt/nfs/test", "/mnt/nfs/test-dupe")),
        ],
    },
    "gpud__mountinfo": {
        ("/models", "/root/tmproot", "/usr/lib/modules/5.15.0-101-generic"): [
            (
                "/dev/mapper/vgroot-lvroot",
                Kind.LOCAL,
                ("/", "/root/tmproot", "/usr/lib/modules/5.15.0-101-generic"),
            )
        ],
        (
            "/mnt/lepton-cache/vol-0",
            "/mnt/lepton-cache/vol-1",
            "/mnt/remote-volume/dev",
            "/mnt/remote-volume/training",
        ): [
            ("/dev/nvme3n1p1", Kind.LOCAL, ("/mnt/lepton-cache/vol-0",)),
            ("/dev/nvme4n1p1", Kind.LOCAL, ("/mnt/lepton-cache/vol-1",)),
            ("TestFS:test-lepton-ai-us-east-dev", Kind.SHARED, ("/mnt/remote-volume/dev",)),
            ("TestFS:test-us-east-training", Kind.SHARED, ("/mnt/remote-volume/training",)),
        ],
        # Two tmpfs are two pools of bytes, told apart by where they are. /run was mounted over the
        # /run/user that /run/user/1000 is mounted on: nobody gets there any more.
        ("/run/user/0", "/run/user/1000"): [
            ("tmpfs:/run", Kind.LOCAL, ("/run",)),
            ("tmpfs:/run/user/0", Kind.LOCAL, ("/run/user/0",)),
        ],
        # One tmpfs mounted at two places is one.
        (
            "/var/lib/kubelet/pods/21126d42-b739-9d7b-5303-e9c8eb46b2f7/volumes/kubernetes.io~empty-dir/shm",
            "/root/tmproot/var/lib/kubelet/pods/21126d42-b739-9d7b-5303-e9c8eb46b2f7/volumes/kubernetes.io~empty-dir/shm",
        ): [
            (
                "tmpfs:/root/tmproot/var/lib/kubelet/pods/21126d42-b739-9d7b-5303-e9c8eb46b2f7/volumes/kubernetes.io~empty-dir/shm",
                Kind.LOCAL,
                (
                    "/root/tmproot/var/lib/kubelet/pods/21126d42-b739-9d7b-5303-e9c8eb46b2f7/volumes/kubernetes.io~empty-dir/shm",
                    "/var/lib/kubelet/pods/21126d42-b739-9d7b-5303-e9c8eb46b2f7/volumes/kubernetes.io~empty-dir/shm",
                ),
            )
        ],
    },
}


@pytest.mark.parametrize(
    ("name", "directories"), [(name, key) for name, cases in POOLS.items() for key in cases]
)
def test_a_filesystem_is_one_however_often_it_is_mounted(
    name: str, directories: tuple[str, ...]
) -> None:
    mounts, _ = parse_mountinfo(capture(name))
    places = []
    for directory in directories:
        mount = mount_of(mounts, directory)
        assert mount is not None
        places.append(Place(directory=directory, mount=mount))
    found = [(pool.name, pool.kind, pool.mounts) for pool in pools(places)]
    assert found == POOLS[name][directories]
    assert [(p.name, p.kind, p.mounts) for p in pools(reversed(places))] == found
