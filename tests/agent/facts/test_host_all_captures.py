"""Every capture of the shared folder, where there is one: no exception, and nothing invented."""

import os
from pathlib import Path

import pytest

from roost.agent.facts.cgroup import Groups, limit_files, parse_cgroup, parse_limit
from roost.agent.facts.cpuinfo import count_processors, parse_model, parse_online
from roost.agent.facts.filesystems import Place, pools
from roost.agent.facts.fstab import parse_fstab, parse_unit
from roost.agent.facts.meminfo import parse_mem_total
from roost.agent.facts.mountinfo import mount_of, parse_mountinfo, parse_mounts

CHECKOUT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("ROOST_CAPTURES") or CHECKOUT.parent / "shared/captures")
CAPTURES = sorted((SHARED / "hostfs").glob("*")) if (SHARED / "hostfs").is_dir() else []
ABSENT = pytest.param(
    None, marks=pytest.mark.skip(reason=f"no captures in {SHARED}: set ROOST_CAPTURES")
)


@pytest.mark.parametrize("path", CAPTURES or [ABSENT], ids=lambda path: path and path.name)
def test_a_capture_of_whatever_kind_gives_only_what_it_says(path: Path) -> None:
    data = path.read_bytes()
    text = data.decode("utf-8", "surrogateescape")

    total, problems = parse_mem_total(data)
    if "meminfo" in path.name or "memory" in path.name:
        assert (total is None) == ("MemTotal:" not in text)
    assert total is None or str(total // 1024) in text
    assert (total is None) == bool(problems)

    limit, problems = parse_limit(data)
    assert limit is None or str(limit) == text.strip()
    assert limit is None or not problems

    for parse in (parse_mountinfo, parse_mounts):
        mounts, _ = parse(data)
        if "mountinfo" not in path.name and "test_mount" not in path.name:
            # `df`, `mount`, JSON and the like are no kernel's tables: no device is made up.
            assert all(mount.device is None for mount in mounts)
        for mount in mounts:
            assert mount.device is None or f" {mount.device} " in text
            assert mount.kind in text
            point = mount.point.replace("\\", "\\134")
            for character, escape in ((" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
                point = point.replace(character, escape)
            assert point in text
        places = [Place(directory=m.point, mount=m) for m in mounts]
        assert sum(len(pool.mounts) for pool in pools(places)) <= len(mounts)
        assert len(limit_files(mounts, Groups(unified="/a", memory="/b"))) <= 2 * len(mounts)
        mount_of(mounts, "/models")

    groups, _ = parse_cgroup(data)
    assert groups == Groups()
    points, _ = parse_fstab(data)
    assert all(point.startswith("/") for point in points)
    assert parse_unit(data) is None
    assert parse_model(data) is None
    assert count_processors(data) is None
    cpus = parse_online(data)
    assert cpus is None or text.strip()[0].isdigit()
