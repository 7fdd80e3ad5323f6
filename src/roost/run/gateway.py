"""`roost gateway`: the OpenAI endpoint, which goes on without the server."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import click
import uvloop

from roost.cli.client import default_directory
from roost.errors import Unusable
from roost.gateway.certificate import Certificate
from roost.gateway.cors import ANY
from roost.gateway.limits import Limits
from roost.gateway.options import Options, alone
from roost.gateway.service import serve
from roost.gateway.workers import service as workers_service

_PATH = click.Path(path_type=Path)
_PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--dir", "directory", type=_PATH, envvar="ROOST_DIR", help="Where state is kept.")
@click.option(
    "--server",
    envvar="ROOST_SERVER",
    help="The server's URL. Default: what DIR/server/endpoint.json says.",
)
@click.option(
    "--credential-file",
    type=_PATH,
    help="What the server knows a gateway by. Default: DIR/server/gateway_credential.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where clients are served.")
@click.option("--port", type=_PORT, default=7480, show_default=True, help="0: any free one.")
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Where the metrics port is."
)
@click.option(
    "--metrics-port",
    type=_PORT,
    default=7490,
    show_default=True,
    help="/metrics, /healthz and /readyz.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve, one a core is plenty. SIGHUP replaces them one after another.",
)
@click.option("--tls-cert", type=_PATH, help="Serve HTTPS: the certificate's chain, PEM.")
@click.option("--tls-key", type=_PATH, help="Its key, PEM. SIGHUP reads both again.")
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="A web page that may use it: https://HOST, or * for all. May be repeated.",
)
@click.option(
    "--max-body-mb",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="A larger request is refused.",
)
@click.option(
    "--first-byte-timeout",
    "first_byte_s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds an engine may be silent before its answer. Nothing bounds a live stream.",
)
@click.option(
    "--drain-timeout",
    "drain_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that requests in flight have to finish after SIGTERM.",
)
def gateway(
    directory: Path | None,
    server: str | None,
    credential_file: Path | None,
    host: str,
    port: int,
    metrics_host: str,
    metrics_port: int,
    workers: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    cors_origins: tuple[str, ...],
    max_body_mb: int,
    first_byte_s: float,
    drain_s: float,
) -> None:
    """Serve the OpenAI API from the replicas that are ready.

    Routes and keys come from the server and are kept in DIR/gateway/snapshot.json, so that
    requests go on while the server is away. SIGTERM lets what is in flight finish.

    \b
    Example:
      roost gateway --dir /var/lib/roost --host 0.0.0.0
    """
    directory = directory or default_directory()
    options = Options(
        directory=directory,
        credential_file=credential_file or directory / "server" / "gateway_credential",
        server=server,
        host=host,
        port=port,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        tls=_certificate(tls_cert, tls_key),
        cors_origins=tuple(map(_origin, cors_origins)),
        limits=Limits(
            body_bytes=max_body_mb * 1_000_000, first_byte_s=first_byte_s, drain_s=drain_s
        ),
    )
    with alone(directory), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options) if workers == 1 else workers_service.serve(options, workers))


def _certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Unusable("--tls-cert and --tls-key go together", hint="give both, or neither")
    return Certificate(certificate, key)


def _origin(given: str) -> str:
    parts = urlsplit(given)
    plain = parts.scheme in ("http", "https") and parts.netloc and parts.path in ("", "/")
    if given != ANY and not (plain and "@" not in given and not parts.query + parts.fragment):
        raise Unusable(
            f"--cors-origin {given} is no origin", hint="https://HOST or https://HOST:PORT, or *"
        )
    return given
