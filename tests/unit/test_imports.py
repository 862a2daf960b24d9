"""What a program that embeds the router loads, and a command that only prints its help."""

import subprocess
import sys

import pytest

from dynamo_router.cli import BENCHES, COMMANDS, ENGINES, WORKERS

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
LIBRARY_MODULES = 118
"""ours and those of packages beside numpy; how many modules the standard library splits itself into
differs by Python"""
SERVING = {
    f"dynamo_router.{name}"
    for name in ("frontend.frontend", "server.server", "server.pool", "server.dispatch")
}
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
    beside = {
        module
        for module in loaded - loaded_by("import numpy")
        if module.partition(".")[0] not in sys.stdlib_module_names
    }
    assert len(beside) <= LIBRARY_MODULES, sorted(beside)


@pytest.mark.parametrize("events", [True, False])
def test_an_embedded_router_imports_no_server(events: bool) -> None:
    code = "from dynamo_router import KvRouter, KvRouterConfig" + EMBEDDED.format(events=events)
    assert loaded_by(code) & (SERVERS | {"asyncio", "structlog", "ssl"}) == set()


HELP = """
import sys, click
from dynamo_router import cli

def walk(command, context):
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            walk(found, click.Context(found, info_name=name, parent=context))
    command.get_help(context)
    context.meta["help_all"] = True
    command.get_help(context)
    servers = {name for name in sys.modules if name in {servers} or name in {serving}}
    print(context.command_path.replace(" ", "/"), *servers, flush=True)

root = cli._build_root()
walk(root, click.Context(root, info_name="dynamo-router"))
"""


def test_help_of_a_command_imports_no_server() -> None:
    """All in one process: what one loads, those after it have loaded too."""
    code = HELP.replace("{servers}", repr(SERVERS)).replace("{serving}", repr(SERVING))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    helps = {path: loaded for path, *loaded in map(str.split, ran.stdout.decode().splitlines())}
    assert {path: loaded for path, loaded in helps.items() if loaded} == {}
    assert {
        "dynamo-router/serve",
        "dynamo-router/workers/add",
        "dynamo-router/bench/path",
    } <= helps.keys()
    assert len(helps) == 4 + sum(map(len, (COMMANDS, BENCHES, ENGINES, WORKERS)))
