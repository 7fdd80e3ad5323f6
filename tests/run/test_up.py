"""The directories that `roost up` is given."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from roost.errors import Unusable
from roost.run.up import present, up

BESIDE_A_DEAD_MOUNT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from agent.facts.hanging_mount import HangingMount, own_namespace
from roost.run.up import present
own_namespace()
mount = HangingMount(Path(sys.argv[2]))
mount.answering.clear()
print(*present([Path(sys.argv[2]) / "models"]))
mount.close()
"""


def test_a_directory_that_is_there_is_taken(tmp_path: Path) -> None:
    assert present([tmp_path]) == (tmp_path,)


def test_one_that_is_not_there_is_named_with_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="there is no such directory") as refused:
        present([tmp_path, tmp_path / "a b"])
    assert f"mkdir -p '{tmp_path}/a b'" in str(refused.value.hint)


def test_a_file_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(Unusable, match="is a file") as refused:
        present([tmp_path / "model.gguf"])
    assert f"--model-dir {tmp_path}" in str(refused.value.hint)


def test_a_home_that_the_shell_left_alone_is_found(tmp_path: Path) -> None:
    asked = ["--dir", str(tmp_path / "state"), "--model-dir=~/nowhere"]
    told = CliRunner().invoke(up, asked, env={"HOME": str(tmp_path)}).exception
    assert isinstance(told, Unusable)
    assert f"{tmp_path}/nowhere: there is no such directory" in told.message


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse")
def test_a_mount_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        BESIDE_A_DEAD_MOUNT,
        str(Path(__file__).parents[1]),
        str(tmp_path),
    ]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=90)
    if "PermissionError" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("may not mount here")
    assert done.stdout == f"{tmp_path}/models\n", done.stderr


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem on which files can be made and nothing be written."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small filesystem")
    disk = tmp_path / "full disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount here: {made.stderr.strip()}")
    with pytest.raises(OSError, match="space"):
        fill(disk / "ballast")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_on_a_full_disk_the_file_and_what_to_look_at_are_named(full_disk: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "roost.cli.main", "up", "--dir", str(full_disk / "roost")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1
    assert f"error: {full_disk}/roost/up.lock: no space left on device" in ran.stderr
    assert f"hint: free some room: df -h '{full_disk}/roost'" in ran.stderr
    assert not (full_disk / "roost" / "up.lock").exists()
