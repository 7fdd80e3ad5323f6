"""The agent's settings as a process has them: flags, then variables, then `roost.toml`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose `roost.toml` maps one adapter, and a machine that has two."""
    for name in ("mlx5_0", "mlx5_1"):
        port = tmp_path / "root/sys/class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text("InfiniBand\n")
    settings = tmp_path / "home/roost/roost.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[agent]\nlabels = {pool = "code"}\n[agent.fabrics]\nib0 = "mlx5_0"\n')
    return tmp_path


def agent(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROOST_")}
    return subprocess.run(
        [sys.executable, "-m", "roost.cli.main", "agent", *words],
        env={**own, "XDG_CONFIG_HOME": str(home / "home"), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def facts(home: Path, *words: str, **env: str) -> dict[str, Any]:
    shown = agent(home, *words, "facts", "--root", str(home / "root"), "-o", "json", **env)
    assert shown.returncode == 0, shown.stderr
    said: dict[str, Any] = json.loads(shown.stdout)
    return said


def test_the_file_maps_adapters_to_fabrics_and_sets_labels(home: Path) -> None:
    said = facts(home)
    assert said["fabrics"] == [{"name": "ib0", "hcas": ["mlx5_0"]}]
    assert said["labels"]["pool"] == "code"
    assert any("name it" in problem for problem in said["problems"])


def test_a_flag_wins_over_the_file(home: Path) -> None:
    said = facts(home, "--fabric", "ib1=mlx5_*", "--label", "pool=chat")
    assert said["fabrics"] == [{"name": "ib1", "hcas": ["mlx5_0", "mlx5_1"]}]
    assert said["labels"]["pool"] == "chat"


def test_a_named_file_is_read_instead(home: Path) -> None:
    other = home / "other.toml"
    other.write_text('[agent.fabrics]\nroce = ["mlx5_1"]\n')
    roce = [{"name": "roce", "hcas": ["mlx5_1"]}]
    assert facts(home, "--config", str(other))["fabrics"] == roce
    said = facts(home, ROOST_CONFIG=str(other))
    assert said["fabrics"] == roce
    assert "pool" not in said["labels"]
    missing = agent(home, "--config", str(home / "none.toml"), "facts")
    assert missing.returncode == 2
    assert "none.toml does not exist" in missing.stderr


def test_a_variable_and_a_flag_win_over_the_servers_url_and_the_token_file(home: Path) -> None:
    settings = home / "home/roost/roost.toml"
    settings.write_text('[agent]\nserver = "nowhere"\ntoken_file = "none"\n')
    words = ("--dir", str(home / "state"))
    assert "--server nowhere is no URL" in agent(home, *words).stderr
    assert "--server there is no URL" in agent(home, *words, ROOST_SERVER="there").stderr
    refused = agent(
        home, *words, "--server", "http://127.0.0.1:1", "--token-file", "/a", "--join=b"
    )
    assert "two tokens" in refused.stderr


def test_a_wrong_file_starts_nothing_and_help_works_all_the_same(home: Path) -> None:
    settings = home / "home/roost/roost.toml"
    settings.write_text("[agent]\nfabrcs = {}\n")
    refused = agent(home, "facts")
    assert refused.returncode == 2
    assert f"{settings}: [agent]: unknown key fabrcs; did you mean fabrics?" in refused.stderr
    assert agent(home, "--help").returncode == 0


@pytest.mark.parametrize("engine", ["llama_server", "vllm", "sglang"])
def test_a_program_in_the_file_that_is_none_is_said_with_what_to_change(
    home: Path, engine: str
) -> None:
    settings = home / "home/roost/roost.toml"
    settings.write_text(f'[agent]\n{engine} = "bin/none"\n')
    (said,) = [one for one in facts(home)["problems"] if "is not a program" in one]
    flag = f"--{engine.replace('_', '-')}"
    assert said.startswith(f"{flag} {settings.parent / 'bin/none'} is not a program")
    assert said.endswith(f"change {flag} or, in roost.toml, {engine} of [agent]")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("0.0.0.0", "no address that gateways can reach engines at"),  # noqa: S104 - it is refused
        ("::", "no address that gateways can reach engines at"),
        ("224.0.0.1", "no address that gateways can reach engines at"),
        ("node-7", "is no IP address"),
    ],
)
def test_an_address_that_nobody_reaches_engines_at_is_refused_at_the_start(
    home: Path, host: str, why: str
) -> None:
    asked = ("--dir", str(home / "state"), "--server", "http://127.0.0.1:9", "--host", host)
    refused = agent(home, *asked)
    assert refused.returncode == 2
    assert f"--host {host}" in refused.stderr
    assert why in refused.stderr
    assert "hint: give the node's own" in refused.stderr
