"""The units under deploy/systemd: what must stand in them, and that their commands exist."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from roost.cli.main import roost_group

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = ("agent", "gateway", "server")
# The state directory alone is writable, and these leave engines of an earlier agent as they were.
HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectControlGroups": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "RestrictSUIDSGID": "yes",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "User": "roost",
    "Restart": "always",
}


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # keys have capitals
    parsed.read_string((UNITS / f"roost-{name}.service").read_text())
    return parsed


def test_there_is_a_unit_for_each_part() -> None:
    assert sorted(file.name for file in UNITS.iterdir()) == [f"roost-{n}.service" for n in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_gives_away_as_little_as_it_can_and_comes_back(name: str) -> None:
    service = unit(name)["Service"]
    assert {key: service[key] for key in HARDENED} == HARDENED
    assert unit(name)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("name", NAMES)
def test_its_command_is_one_that_this_roost_has(name: str) -> None:
    program, command, *words = shlex.split(unit(name)["Service"]["ExecStart"])
    assert (program, command) == ("/opt/roost/bin/roost", name)
    known = roost_group.get_command(click.Context(roost_group), command)
    assert known is not None
    options = {option for parameter in known.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_engines_outlive_their_agent_and_each_others_want_of_memory() -> None:
    service = unit("agent")["Service"]
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    # A /tmp or a /dev of its own would be another one for the next agent than for its engines.
    assert not {"PrivateTmp", "PrivateDevices"} & set(service)


def test_the_gateway_has_the_time_to_finish_what_is_in_flight() -> None:
    gateway = roost_group.get_command(click.Context(roost_group), "gateway")
    assert gateway is not None
    (drain,) = [parameter for parameter in gateway.params if parameter.name == "drain_s"]
    assert float(unit("gateway")["Service"]["TimeoutStopSec"]) > float(str(drain.default))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_every_line(name: str) -> None:
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNITS / f"roost-{name}.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in checked.stderr.splitlines() if "is not executable" not in line]
    assert said == []
