"""Envoy as a proxy that only copies gRPC's bytes: what one costs that is written in C++."""

import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from .child import pid_of, start_child
from .dynamo_peer import HOST, free_port

_NAME = "engines"
_READY = "starting main dispatch loop"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ROUTER = "envoy.extensions.filters.http.router.v3.Router"


async def start_envoy(
    program: str, addresses: Sequence[str], timeout_s: float, stack: AsyncExitStack
) -> tuple[int, str]:
    """Start it in front of these engines, in turn, until the stack ends; its pid and address.

    It has one thread that works, no access log and no tracing. RouterError if it does not start.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port = free_port()
    file = folder / "envoy.json"
    file.write_text(json.dumps(_config(port, addresses)))
    command = [program, "--config-path", str(file), "--concurrency", "1", "--disable-hot-restart"]
    child = await start_child(
        "Envoy", command, stack, lambda line: _READY in line, timeout_s=timeout_s
    )
    return pid_of(child), f"{HOST}:{port}"


def _config(port: int, addresses: Sequence[str]) -> dict[str, Any]:
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": _NAME, "timeout": "0s"}}]
    manager = {
        "@type": f"type.googleapis.com/{_MANAGER}",
        "stat_prefix": "grpc",
        "codec_type": "HTTP2",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"type.googleapis.com/{_ROUTER}",
                    "suppress_envoy_headers": True,
                },
            }
        ],
    }
    listener = {
        "address": _address(HOST, port),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    ends = [address.rpartition(":") for address in addresses]
    cluster = {
        "name": _NAME,
        "type": "STATIC",
        "typed_extension_protocol_options": {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": _NAME,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": _address(host, int(number))}}
                        for host, _, number in ends
                    ]
                }
            ],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
