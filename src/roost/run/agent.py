"""`roost agent`: runs the engines of one machine and tells the server what is there."""

import ipaddress
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from roost.agent.facts import Asked, ports, read
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Reader
from roost.agent.facts.host import host_name
from roost.agent.programs import Programs
from roost.domain.node import OWN_LABELS, Facts, Filesystem, Node, NodeName
from roost.domain.units import has_gb
from roost.errors import Unusable
from roost.formats import config
from roost.run import settings
from roost.run.unseen import Unseen
from roost.testing.fake_nvml import stand_in

_PATH = click.Path(path_type=Path)


def _configure(context: click.Context, _option: click.Parameter, named: Path | None) -> None:
    """What roost.toml says goes below flags and the environment."""
    if context.resilient_parsing:
        return
    context.default_map = config.read_agent(*settings.files(named))


def _machine_options(command: Callable[..., None]) -> Callable[..., None]:
    """What both the agent and `facts` want to know of the machine."""
    for option in reversed(
        (
            click.option("--root", type=_PATH, help="Read facts below this directory."),
            click.option(
                "--nvidia-smi-xml",
                type=_PATH,
                metavar="FILE",
                help="What `nvidia-smi -q -x` printed, instead of asking the driver.",
            ),
            click.option(
                "--nvidia-smi-topo",
                type=_PATH,
                metavar="FILE",
                help="What `nvidia-smi topo -m` printed: which GPUs NVLink connects.",
            ),
            click.option(
                "--amd-smi-json",
                type=_PATH,
                metavar="FILE",
                help="What `amd-smi static --json` or `rocm-smi -a --json` printed.",
            ),
            click.option(
                "--graphics-take-cards",
                is_flag=True,
                help="A process that only draws (X, Wayland) makes a card taken.",
            ),
            click.option(
                "--fabric",
                "fabrics",
                multiple=True,
                metavar="NAME=HCA[,HCA]",
                help="The RDMA adapters on a fabric: names or globs, ib0=mlx5_*. May be repeated.",
            ),
        )
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@click.option(
    "--config",
    type=_PATH,
    envvar="ROOST_CONFIG",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_configure,
    help="Settings, instead of /etc/roost/roost.toml and ~/.config/roost/roost.toml.",
)
@click.option("--dir", "directory", type=_PATH, envvar="ROOST_DIR", help="Where state is kept.")
@click.option("--server", envvar="ROOST_SERVER", help="The server's URL, http://server:7400.")
@click.option("--join", "token", envvar="ROOST_JOIN_TOKEN", help="A join token; visible to whoever "
              "lists processes: --token-file is not.")  # fmt: skip
@click.option("--token-file", type=_PATH, help="A file that holds a join token, read when needed.")
@click.option(
    "--name",
    help="What the node would like to be called when it first joins. Default: the host's name.",
)
@click.option("--model-dir", "model_dirs", multiple=True, type=Unseen(), help="May be repeated.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--allow-command", is_flag=True, help="Run engines of the kind `command`.")
@click.option(
    "--llama-server", type=_PATH, help="llama.cpp's server. Default: the one on the PATH."
)
@click.option("--vllm", type=_PATH, help="vLLM's program. Default: the one on the PATH.")
@click.option(
    "--sglang", type=_PATH, help="A Python that has SGLang. Default: the agent's, if it does."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The node's own address, where engines listen.",
)
@click.option("--port-range", metavar="FIRST-LAST", help="Ports that engines may use.")
@_machine_options
@click.option("--stop-engines", is_flag=True, hidden=True)
@click.pass_context
def agent(
    context: click.Context,
    directory: Path | None,
    server: str | None,
    token: str | None,
    token_file: Path | None,
    name: str | None,
    model_dirs: tuple[Path, ...],
    labels: tuple[str, ...],
    allow_command: bool,
    llama_server: Path | None,
    vllm: Path | None,
    sglang: Path | None,
    host: str,
    port_range: str | None,
    root: Path | None,
    nvidia_smi_xml: Path | None,
    nvidia_smi_topo: Path | None,
    amd_smi_json: Path | None,
    graphics_take_cards: bool,
    fabrics: tuple[str, ...],
    stop_engines: bool,
) -> None:
    """Run this machine's engines and report to the server.

    SIGTERM ends the agent; engines go on, and the next agent takes them over. Every option but a
    token can stand in roost.toml, section [agent]; a flag wins over it.

    \b
    Example:
      roost agent --server http://server:7400 --token-file token --model-dir /models
    """
    asked = _on_machine(
        Asked(
            labels=_labels(labels),
            model_directories=tuple(path.absolute() for path in model_dirs),
            programs=Programs(
                llama_server=llama_server,
                vllm=vllm,
                sglang=sglang,
                allow_command=allow_command,
                env=os.environ,
            ),
        ),
        Sources(
            root=root or Path("/"),
            nvidia_smi_xml=nvidia_smi_xml,
            nvidia_smi_topo=nvidia_smi_topo,
            amd_smi_json=amd_smi_json,
            graphics_take_cards=graphics_take_cards,
        ),
        fabrics,
    )
    if context.invoked_subcommand is not None:
        context.obj = asked
        return
    if server is None:
        raise Unusable("no server is named", hint="roost agent --server http://SERVER:7400 …")
    if not server.startswith(("http://", "https://")):
        raise Unusable(f"--server {server} is no URL", hint=f"try --server http://{server}")
    if token is not None and _is_set_by_file(context, "token_file"):
        token_file = None
    if token is not None and token_file is not None:
        raise Unusable("--join and --token-file are two tokens: give one of them")
    # Late, so that `facts` is quick.
    import asyncio

    from roost.agent.agent import Agent, Options
    from roost.agent.membership import Invitation

    _log_to_stderr()
    options = Options(
        directory=(directory or _default_directory()).absolute(),
        server=server,
        invitation=Invitation(
            name=name or socket.gethostname(), token=token, token_file=token_file
        ),
        asked=asked,
        host=_address(host),
        port_range=_range(port_range) if port_range is not None else ports.choose(asked.root),
        stop_engines=stop_engines,
        nvml=stand_in(os.environ),
    )

    async def work() -> None:
        await Agent(options).run()

    asyncio.run(work())


@agent.command("facts")
@click.option("--model-dir", "model_dirs", multiple=True, type=Unseen(), help="May be repeated.")
@_machine_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def facts(
    asked: Asked,
    model_dirs: tuple[Path, ...],
    root: Path | None,
    nvidia_smi_xml: Path | None,
    nvidia_smi_topo: Path | None,
    amd_smi_json: Path | None,
    graphics_take_cards: bool,
    fabrics: tuple[str, ...],
    output: str,
) -> None:
    """Print what this machine is, as the agent would report it.

    With --root it is what the files below that directory say, as of a machine kept there: sizes of
    its filesystems can't be learnt from files, and are left out.

    \b
    Examples:
      roost agent facts --model-dir /models -o json
      roost agent facts --nvidia-smi-xml gpus.xml --nvidia-smi-topo topo.txt
    """
    before = asked.gpus
    sources = Sources(
        root=root or before.root,
        nvidia_smi_xml=nvidia_smi_xml or before.nvidia_smi_xml,
        nvidia_smi_topo=nvidia_smi_topo or before.nvidia_smi_topo,
        amd_smi_json=amd_smi_json or before.amd_smi_json,
        graphics_take_cards=graphics_take_cards or before.graphics_take_cards,
    )
    asked = _on_machine(asked, sources, fabrics)
    more_dirs = tuple(path.absolute() for path in model_dirs)
    asked = replace(asked, model_directories=(*asked.model_directories, *more_dirs))
    found, problems = read(asked, Reader(asked.gpus, library=stand_in(os.environ), within_s=60))
    if output == "json":
        from roost.formats.fleet import node_to_json

        node = Node(name=NodeName(host_name(asked.root)), facts=found)
        more = msgspec.to_builtins({"gpu_details": found.gpu_details, "hcas": found.hcas})
        shown = {**node_to_json(node), **more, "problems": list(problems)}
        click.echo(json.dumps(shown, indent=2))
        return
    for line in _as_text(found, problems):
        click.echo(line)


def _as_text(found: Facts, problems: tuple[str, ...]) -> list[str]:
    lines = []
    for field in fields(found):
        value = getattr(found, field.name)
        if value is None:
            shown = "-"
        elif field.name == "labels":
            shown = ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
        elif field.name == "storage":
            lines += [f"{'storage':14} {_filesystem_line(one)}" for one in value]
            continue
        elif field.name == "memory_bytes":
            shown = f"{value} ({has_gb(value)} GB)"
        elif field.name in {"gpu_details", "hcas"}:
            continue
        elif field.name == "gpus":
            lines += _gpu_lines(found)
            continue
        elif field.name == "fabrics":
            shown = "; ".join(f"{one.name}: {', '.join(one.hcas)}" for one in value)
            lines += [f"{'fabrics':14} {shown or 'none'}", *_hca_lines(found)]
            continue
        elif isinstance(value, (frozenset, tuple)):
            shown = ", ".join(sorted(str(one) for one in value)) or "none"
        else:
            shown = str(value)
        lines.append(f"{field.name:14} {shown or 'none'}")
    return [*lines, *(f"problem        {problem}" for problem in problems)]


def _filesystem_line(one: Filesystem) -> str:
    free = "-" if one.free_bytes is None else f"{has_gb(one.free_bytes)} GB"
    total = "-" if one.total_bytes is None else f"{has_gb(one.total_bytes)} GB"
    said = [f"{free} free of {total}", "shared" if one.shared else "local"]
    if one.read_only:
        said.append("read-only")
    if one.stale_since is not None:
        said.append(f"numbers of {datetime.fromtimestamp(one.stale_since, UTC):%Y-%m-%dT%H:%M:%SZ}")
    return f"{one.filesystem} on {', '.join(one.mounts)}: {', '.join(said)}"


def _gpu_lines(found: Facts) -> list[str]:
    if not found.gpus:
        return [f"{'gpus':14} none"]
    details = {detail.index: detail for detail in found.gpu_details or ()}
    lines = []
    for gpu in found.gpus:
        detail = details.get(gpu.index)
        memory = "-" if gpu.memory_bytes is None else f"{has_gb(gpu.memory_bytes)} GB"
        domain = "-" if gpu.nvlink_domain is None else str(gpu.nvlink_domain)
        health = {True: "healthy", False: f"unhealthy: {gpu.unhealthy_reason}", None: "health -"}
        said = [
            str(gpu.gpu_class),
            memory,
            f"nvlink {domain}",
            health[gpu.healthy],
            f"foreign {'-' if gpu.foreign_processes is None else gpu.foreign_processes}",
            f"at {detail.pci_address if detail and detail.pci_address else '-'}",
        ]
        lines.append(f"{f'gpu {gpu.index}':14} {', '.join(said)}")
    return lines


def _hca_lines(found: Facts) -> list[str]:
    lines = []
    for hca in found.hcas or ():
        ports = [
            f"port {port.number} {port.state or '-'} {port.link_layer or '-'}"
            f" {'-' if port.rate_gbps is None else f'{port.rate_gbps:g}'} Gb/s"
            for port in hca.ports
        ]
        lines.append(f"{hca.name:14} {', '.join(ports) or 'no port'}")
    return lines


def _is_set_by_file(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP


def _address(host: str) -> str:
    """Where engines listen is where gateways reach them: one address, and the node's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise Unusable(f"--host {host} is no IP address", hint="give the node's own") from None
    if address.is_unspecified or address.is_multicast:
        raise Unusable(
            f"--host {host} is no address that gateways can reach engines at",
            hint="give the node's own: --host 10.0.0.7",
        )
    return str(address)


def _default_directory() -> Path:
    from roost.cli.client import default_directory

    return default_directory()


def _on_machine(asked: Asked, sources: Sources, fabrics: tuple[str, ...]) -> Asked:
    named = {**asked.fabrics, **_fabrics(fabrics)}
    return replace(asked, root=sources.root, gpus=sources, fabrics=named)


def _fabrics(given: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for fabric in given:
        name, _, adapters = fabric.partition("=")
        listed = tuple(one.strip() for one in adapters.split(",") if one.strip())
        if not name.strip() or not listed:
            raise Unusable(f"--fabric {fabric} is not NAME=HCA[,HCA]")
        found[name.strip()] = (*found.get(name.strip(), ()), *listed)
    return found


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for label in given:
        key, equals, value = label.partition("=")
        if not equals or not key.strip():
            raise Unusable(f"--label {label} is not KEY=VALUE")
        if key.startswith(OWN_LABELS):
            raise Unusable(f"--label {key}: labels that begin with {OWN_LABELS} are Roost's own")
        found[key.strip()] = value.strip()
    return found


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if dash and first.isdigit() and last.isdigit() and 1024 <= int(first) <= int(last) <= 65535:
        return int(first), int(last)
    raise Unusable(f"--port-range {text} is not FIRST-LAST between 1024 and 65535")


def _log_to_stderr() -> None:
    import structlog

    logging.getLogger("httpx2").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer()
            if sys.stderr.isatty()
            else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
