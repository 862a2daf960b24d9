"""What is loaded by a program that embeds the router, and by a command that only prints its help."""

import subprocess
import sys

import pytest

SERVERS = {
    "aetcd",
    "aiohttp",
    "google.protobuf",
    "grpc",
    "kubernetes_asyncio",
    "nats",
    "prometheus_client",
    "pycurl",
    "uvloop",
    "zmq",
}
LIBRARY_MODULES = 320
"""numpy and the interpreter alone are 183 of them."""
EMBEDDED = """
router = KvRouter(KvRouterConfig(block_size=4, use_kv_events={events}))
with router:
    for worker_id in range(3):
        router.add_worker(worker_id)
    router.decide(list(range(8)), "a")
    router.mark_prefill_complete("a")
    router.free("a")
    router.remove_worker(1)
"""


def loaded_by(code: str) -> set[str]:
    """The modules of a fresh interpreter that has run this."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    return set(ran.stdout.decode().split())


@pytest.mark.parametrize("package", ["dynamo_router", "dynamo_router.router"])
def test_the_library_imports_no_server(package: str) -> None:
    loaded = loaded_by(f"from {package} import KvRouter")
    assert loaded & (SERVERS | {"asyncio", "structlog", "ssl", "importlib.metadata"}) == set()
    assert "dynamo_router.router.kv_router" in loaded
    assert len(loaded) <= LIBRARY_MODULES, sorted(loaded)


@pytest.mark.parametrize("events", [True, False])
def test_an_embedded_router_imports_no_server(events: bool) -> None:
    code = "from dynamo_router import KvRouter, KvRouterConfig" + EMBEDDED.format(events=events)
    assert loaded_by(code) & (SERVERS | {"asyncio", "structlog", "ssl"}) == set()
