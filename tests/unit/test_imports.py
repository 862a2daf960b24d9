"""What a program that embeds the router loads, and a command that only prints its help."""

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
LIBRARY_MODULES = 142
"""beside those of numpy and the interpreter, some 185"""
CALLING = {"dispatcher", "fronts", "hostile", "live", "path", "proxy", "restart", "selection"}
CALLING |= {"streams"}
"""Of `bench`: they measure servers and clients, and each is one module with its settings."""
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
    beside = loaded - loaded_by("import numpy")
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
            if context.info_name != "bench" or name not in {calling}:
                found = command.get_command(context, name)
                walk(found, click.Context(found, info_name=name, parent=context))
    command.get_help(context)
    print(context.command_path.replace(" ", "/"), *({servers} & sys.modules.keys()), flush=True)

root = cli._build_root()
walk(root, click.Context(root, info_name="dynamo-router"))
"""


def test_help_of_a_command_imports_no_server() -> None:
    """All in one process: what one loads, those after it have loaded too."""
    servers = SERVERS - {"google.protobuf"}  # what engines are is written in it
    code = HELP.format(calling=CALLING, servers=servers)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    helps = {path: loaded for path, *loaded in map(str.split, ran.stdout.decode().splitlines())}
    assert {path: loaded for path, loaded in helps.items() if loaded} == {}
    assert "dynamo-router/serve" in helps and "dynamo-router/workers/add" in helps
