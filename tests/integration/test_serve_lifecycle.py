"""A server comes and goes in one loop, and nothing of it stays behind."""

import asyncio
import gc
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
import structlog
from grpc import aio
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.processes import own_children
from support.serving import BLOCK, Ports, ServedRouter, serving

from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.mock_process import MockEnginesConfig
from dynamo_router.workers.failures import Origin, judge
from dynamo_router.workers.registry import WorkerState

EVENTS = KvRouterConfig(block_size=BLOCK)
QUIET = KvRouterConfig(block_size=BLOCK, use_kv_events=False)
MOCKED = {"router": EVENTS, "mock_engines": MockEnginesConfig(mockers=1)}
"""Mock engines publish to a NATS server of the router's own."""


def own_tasks() -> list[str]:
    """What runs on the loop, but for this test."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [repr(task) for task in others if not task.done()]


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def nats_servers() -> list[int]:
    """The children that are one."""
    return [pid for pid in own_children() if b"nats-server" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


async def mock_engine_ready(ports: Ports) -> None:
    await until(lambda: len(ports.server.monitor.ready_clients()) == 1)


@pytest.fixture
def taken_port() -> "object":
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


async def test_it_leaves_nothing_behind() -> None:
    files: list[int] = []
    for _ in range(3):
        async with serving(**MOCKED) as ports:
            await mock_engine_ready(ports)
            await ports.answers(prompt())
            assert (await ports.http("GET", "/health"))[0] == 200
            assert len(own_children()) == 2 and len(nats_servers()) == 1
        assert own_children() == []
        await until(lambda: not own_tasks())
        files.append(open_files())
    # gRPC opens some once, for the life of the process.
    await until(lambda: open_files() <= files[0])
    assert not [t.name for t in threading.enumerate() if "index" in t.name]


async def test_engines_that_are_given_need_no_nats_server_of_ours() -> None:
    async with serving(FakeEngine(), router=EVENTS) as ports:
        await ports.answers(prompt())
        assert own_children() == []


async def test_its_own_nats_server_is_started_again() -> None:
    async with serving(**MOCKED) as ports:
        await mock_engine_ready(ports)
        (server,) = nats_servers()
        os.kill(server, signal.SIGKILL)
        await until(lambda: nats_servers() not in ([server], []))

        async def connected() -> bool:
            health = (await ports.http("GET", "/health"))[1]
            return bool(health["event_plane"]["state"] == "connected")

        await until(connected, 60.0)
        await ports.answers(prompt())
    assert own_children() == []


async def test_mock_engines_are_one_child_that_goes_with_it() -> None:
    server = ServedRouter(
        ServeConfig(port=0, http_port=0, mock_engines=MockEnginesConfig(mockers=2), router=QUIET)
    )
    try:
        await server.start()
        assert len(own_children()) == 1
        assert "workers 2 events off" in server.ready_line
        await until(lambda: len(server.monitor.ready_clients()) == 2)
        (child,) = own_children()
        assert os.getpgid(child) != os.getpgid(0)  # Ctrl-C in our terminal does not end it
        # If it dies, we say so and go on.
        os.kill(child, 9)
        for entry in server.router.registry.entries():
            # As a request would; else probes tell.
            lost = judge(Origin.TRANSPORT, StatusCode.UNAVAILABLE, started=False)
            server.monitor.reports.failed(entry.worker_id, lost, 0.0)
        await until(lambda: not server.monitor.ready_clients())
        states = {entry.state for entry in server.router.registry.entries()}
        assert states == {WorkerState.UNHEALTHY}
    finally:
        await server.close()
    assert own_children() == []
    await until(lambda: not own_tasks())


@pytest.mark.parametrize("setting", ["port", "http_port"])
async def test_a_taken_port_is_named_and_nothing_is_left(setting: str, taken_port: int) -> None:
    ports = {"port": 0, "http_port": 0, setting: taken_port}
    server = ServedRouter(
        ServeConfig(**ports, mock_engines=MockEnginesConfig(mockers=1), router=EVENTS)
    )
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken_port}") as caught:
        await server.start()
    await server.close()
    assert caught.value.key == setting
    assert own_children() == []
    await until(lambda: not own_tasks())
    assert not [t.name for t in threading.enumerate() if "index" in t.name]


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="grpc://nowhere"):
        ServeConfig(port=0, http_port=0, workers=("grpc://nowhere",), router=QUIET)


async def test_a_nats_address_where_nobody_answers_does_not_stop_requests() -> None:
    async with serving(FakeEngine(), router=EVENTS, nats="nats://127.0.0.1:1") as ports:
        status, body = await ports.http("GET", "/health")
        assert status == 200
        assert body["event_plane"] == {"state": "connecting", "server": "nats://127.0.0.1:1"}
        assert body["data_path"] == "nghttp2"
        assert len(await ports.answers(prompt())) == 3
        assert (await ports.metrics())["dynamo_router_event_plane_connected"] == 0


async def test_a_server_without_workers_says_how_to_give_it_some() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(router=QUIET):
            pass
    (warning,) = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warning == "no workers are configured: give --worker URL or --discovery, or add some"


async def test_closing_what_never_started_and_closing_twice() -> None:
    server = ServedRouter(ServeConfig(router=QUIET))
    await server.close()
    await server.close()
    async with serving() as ports:
        await ports.server.close()


async def test_draining_takes_no_more_and_lets_the_rest_end() -> None:
    engine = FakeEngine(stall)
    async with serving(engine) as ports:
        last = asyncio.create_task(ports.answers(prompt("last")))
        await until(lambda: ports.server.dispatcher.in_flight == 1)
        draining = asyncio.create_task(ports.server.drain(30.0))
        await until(lambda: ports.server.parts.draining)
        status, body = await ports.http("GET", "/health")
        assert (status, body["draining"], body["in_flight"]) == (503, True, 1)
        engine.go.set()
        assert len(await last) == 2
        await draining
        with pytest.raises(aio.AioRpcError):
            await ports.answers(prompt("late"))
