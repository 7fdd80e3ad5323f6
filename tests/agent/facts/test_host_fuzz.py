"""Each parser of the host's files against truncated, reordered, huge, hostile and binary input."""

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.facts import cgroup, cpuinfo, filesystems, fstab, kinds, meminfo, mountinfo, text

HOST = Path(__file__).parents[2] / "data/facts/host"

MOUNTINFO = (HOST / "node_exporter__fixtures_proc_1_mountinfo").read_bytes()
MEMINFO = (HOST / "facter__meminfo").read_bytes()
MOUNTS = (HOST / "insights-core__test_mount_5.txt").read_bytes()
CGROUP = b"4:memory:/docker/1f\n1:name=systemd:/a\n0::/system.slice/roost.service\n"
FSTAB = b"UUID=1 / ext4 defaults 0 1\nfiler:/m\t/mnt/my\\040models nfs hard 0 0\n/swap none swap sw 0 0\n"
CPUINFO = b"processor\t: 0\nmodel name\t: A CPU\n\nprocessor\t: 1\nmodel name\t: A CPU\n"
UNIT = b"[Mount]\nWhat=filer:/models\nWhere=/mnt/models\nType=nfs\n"

PARSERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "mountinfo": (mountinfo.parse_mountinfo, MOUNTINFO),
    "mounts": (mountinfo.parse_mounts, MOUNTS),
    "meminfo": (meminfo.parse_mem_total, MEMINFO),
    "cgroup": (cgroup.parse_cgroup, CGROUP),
    "limit": (cgroup.parse_limit, b"103079215104\n"),
    "fstab": (fstab.parse_fstab, FSTAB),
    "unit": (fstab.parse_unit, UNIT),
    "cpu model": (cpuinfo.parse_model, CPUINFO),
    "cpus online": (cpuinfo.parse_online, b"0-3,8-11\n"),
    "cpus allowed": (cpuinfo.parse_quota, b"250000 100000\n"),
    "cpus listed": (cpuinfo.count_processors, CPUINFO),
}
parsers = pytest.mark.parametrize("name", PARSERS)

WORDS = [
    b"", b" ", b"\n", b"\0", b"\r", b"-", b"\\040", b"\\777", b"\\", b"\\0", b"\xff\xfe", b"\xe2\x80\xae",
    b"-1", b"0", b"18446744073709551615", b"9" * 400, b"1e9", b"0x10", b"max", b"kB", b"../..", b"//",
    b"/" * 300, b"rw,ro", b"0:0", b"4294967296:1", b":", b"NaN", b"\xd9\xa1", b"\x1b[2J",
]  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn, good: bytes) -> bytes:
    lines = good.split(b"\n")
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        fields = lines[at].split(b" ")
        match draw(
            st.sampled_from(["replace", "cut", "drop", "swap", "double", "insert", "bytes"])
        ):
            case "replace":
                fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(WORDS))
            case "cut":
                fields = fields[: draw(st.integers(0, len(fields)))]
            case "drop":
                fields.pop(draw(st.integers(0, len(fields) - 1)))
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
                continue
            case "double":
                lines.insert(at, lines[at])
                continue
            case "insert":
                fields.insert(draw(st.integers(0, len(fields))), draw(st.sampled_from(WORDS)))
            case _:
                fields.append(draw(st.binary(max_size=40)))
        lines[at] = b" ".join(fields)
    cut = draw(st.integers(0, len(good))) if draw(st.booleans()) else None
    return b"\n".join(lines)[:cut]


def check(name: str, data: bytes) -> None:
    """No exception, and an answer that may be shown and sent."""
    found = PARSERS[name][0](data)
    problems = found[1] if isinstance(found, tuple) else ()
    for problem in problems:
        assert problem == text.shown(problem)
        assert len(problem) < 250
    if name in {"mountinfo", "mounts"}:
        mounts = found[0]
        for mount in mounts:
            assert mount.point.startswith("/")
            text.shown(mount.point).encode()
            kinds.kind_of(mount.kind, mount.source)
            assert mountinfo.is_within(mount.point, "/")
        mountinfo.mount_of(mounts, "/run/user/1000/gvfs/models")
        cgroup.limit_files(mounts, cgroup.Groups(unified="/a/../b", memory="//x"))
        places = [filesystems.Place(directory=mount.point, mount=mount) for mount in mounts]
        for pool in filesystems.pools(places):
            filesystems.filesystem(pool, [None] * len(pool.places)).filesystem.encode()
    if name in {"meminfo", "limit"} and found[0] is not None:
        assert 0 <= found[0] <= text.MAX_NUMBER
    if name.startswith("cpus"):
        assert found is None or found > 0
    if name == "fstab":
        assert all(point.startswith("/") for point in found[0])


@parsers
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_mangled_file_is_an_answer_and_never_an_exception(name: str, data: st.DataObject) -> None:
    check(name, data.draw(mangled(PARSERS[name][1])))


@parsers
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=2000))
def test_any_bytes_are_an_answer_and_never_an_exception(name: str, data: bytes) -> None:
    check(name, data)


@parsers
def test_every_truncation_is_an_answer(name: str) -> None:
    good = PARSERS[name][1]
    for end in range(0, len(good), 1 if len(good) < 1500 else 7):
        check(name, good[:end])


@parsers
def test_the_order_of_lines_changes_nothing_but_order(name: str) -> None:
    lines = PARSERS[name][1].split(b"\n")
    random.Random(7).shuffle(lines)
    check(name, b"\n".join(lines))


@parsers
@pytest.mark.parametrize(
    "filler", [b"a", b" ", b"\n", b"/", b"\\040", b"0", b"\xff", b"- ", b"1 ", b":", b",0-9"]
)
def test_megabytes_take_no_more_memory_than_a_few_times_their_size(
    name: str, filler: bytes
) -> None:
    data = (filler * (1_000_000 // len(filler))) + PARSERS[name][1]
    tracemalloc.start()
    try:
        PARSERS[name][0](data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 * len(data)


@given(
    block=st.integers(-(1 << 64), 1 << 64),
    fragment=st.integers(-(1 << 64), 1 << 64),
    blocks=st.integers(-(1 << 64), 1 << 64),
    available=st.integers(-(1 << 64), 1 << 64),
)
def test_sizes_are_unknown_or_make_sense(
    block: int, fragment: int, blocks: int, available: int
) -> None:
    found = filesystems.sizes(block=block, fragment=fragment, blocks=blocks, available=available)
    if found.total_bytes is None:
        assert found.free_bytes is None
    else:
        assert 0 < found.total_bytes <= text.MAX_NUMBER
        assert found.free_bytes is None or 0 <= found.free_bytes <= found.total_bytes
