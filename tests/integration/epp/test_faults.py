"""Envoy, its clients and the picker misbehave: nothing stays booked, and no answer is another's."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.epp.engine import MODEL, Engine
from support.epp.gateway import Gateway
from support.epp.messages import HEAD, body, request_headers, response_headers, trailers
from support.epp.picking import Picking, picking, served_picker, settings
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.epp.exchange import Exchange
from dynamo_router.frontend.epp.picker import PATH
from dynamo_router.frontend.epp.proto import processing_pb2 as pb
from dynamo_router.frontend.picker_config import PickerConfig
from dynamo_router.server.call_limits import PROCESSOR
from dynamo_router.server.request_limits import RequestLimits

CHAT = "/v1/chat/completions"
MANY = 2000


def chat(text: str = "hello", **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": MODEL, "messages": messages, **more}).encode()


async def leave_after(served: Picking, phase: str) -> None:
    """A client that goes away at a point of its request."""
    (engine,) = served.engines
    reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
    data = chat(phase, stream=True)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    waiting = asyncio.Event()
    engine.step = waiting.wait
    seen = len(engine.prompts)
    if phase == "head":
        writer.write(head[:20])
    elif phase == "before the body":
        writer.write(head)
    elif phase == "in the body":
        writer.write(head + data[:20])
    else:
        writer.write(head + data)
        await until(lambda: len(engine.prompts) > seen)
        assert served.booked
        if phase != "before the answer":
            engine.step = None
            waiting.set()
        if phase in ("in the answer", "at its end"):
            await reader.readuntil(b"w0" if phase == "in the answer" else b"[DONE]")
    await writer.drain()
    writer.transport.abort()
    await served.is_idle()
    waiting.set()
    engine.step = None


PHASES = (
    "head",
    "before the body",
    "in the body",
    "before the answer",
    "as it begins",
    "in the answer",
    "at its end",
)


async def test_clients_that_leave_free_their_bookings(tmp_path: Path) -> None:
    async with picking(tmp_path, 1) as served:
        for phase in PHASES:
            await leave_after(served, phase)
        status, _, answer = await served.post(chat(stream=True))
        assert status == 200
        assert answer == b"".join(served.engines[0].events(chat(stream=True)))
        await served.is_idle()
        assert await served.value("dynamo_router_epp_body_bytes") == 0


KINDS = ("request_headers", "request_body", "response_headers", "response_body")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_picker_ends_one_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whichever message of Envoy's it fails on: before the head of an answer the client gets a
    status, behind it the answer is cut off; nothing stays booked, the next request is served."""
    receive, fails = Exchange.receive, True

    def failing(self: Exchange, data: bytes) -> Any:
        if fails and pb.ProcessingRequest.FromString(data).WhichOneof("request") == kind:
            raise RuntimeError("a bug of the picker")
        return receive(self, data)

    monkeypatch.setattr(Exchange, "receive", failing)
    async with picking(tmp_path, 1) as served:
        data = chat(stream=True)
        try:
            status, _, _ = await served.post(data)
        except aiohttp.ClientPayloadError:  # Envoy has sent its head already, or not yet
            assert kind == "response_body"
        else:
            assert status >= 500
        await served.is_idle()
        assert bool(served.engines[0].prompts) == kind.startswith("response")
        fails = False
        status, _, answer = await served.post(data)
        assert (status, answer) == (200, b"".join(served.engines[0].events(data)))
        await served.is_idle()
        assert await served.value("dynamo_router_epp_body_bytes") == 0


async def test_many_streams_at_once(tmp_path: Path) -> None:
    """All are open at the same time, then all end; each client gets its own answer."""
    async with picking(tmp_path, 2, pick_timeout_s=60.0) as served:
        going = asyncio.Event()
        for engine in served.engines:
            engine.step = going.wait
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            many = served._replace(session=session)

            async def ask(number: int) -> bool:
                wanted = chat(f"number {number}", stream=True)
                status, _, answer = await many.post(wanted)
                return status == 200 and answer == b"".join(many.engines[0].events(wanted))

            asked = [asyncio.create_task(ask(number)) for number in range(MANY)]

            def all_began() -> bool:
                return sum(len(engine.prompts) for engine in served.engines) == MANY

            await until(all_began, 60.0)
            assert served.pool.dispatcher.in_flight == MANY
            going.set()
            assert all(await asyncio.gather(*asked))
        await served.is_idle()
        counts = sorted(len(engine.prompts) for engine in served.engines)
        assert counts[0] > MANY // 4


# The picker as a process: killed, paused, ended


@asynccontextmanager
async def picker_process(folder: Path, port: int, *engines: Engine) -> AsyncIterator[Command]:
    words = ["epp", "--no-secure-serving", "--no-kv-events", "--block-size", "16"]
    words += ["--grpc-port", str(port), "--grpc-health-port", "0", "--http-port", "0"]
    words += ["--lame-duck-s", "0", "--drain-timeout-s", "20", "--probe-interval-s", "0.2"]
    for engine in engines:
        words += ["--endpoint", engine.address]
    async with command(folder, *words) as running:
        await running.says("dynamo-router ready")
        yield running


async def post(session: aiohttp.ClientSession, gateway: Gateway, data: bytes) -> tuple[int, bytes]:
    async with session.post(f"{gateway.url}{CHAT}", data=data) as answer:
        return answer.status, await answer.read()


async def test_a_picker_that_is_killed_or_paused_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    port = free_port()
    gateway = None
    async with Engine() as engine, aiohttp.ClientSession() as session:
        data = chat(stream=True)
        whole = b"".join(engine.events(data))
        gateway = Gateway(tmp_path / "envoy", f"127.0.0.1:{port}", [engine.address])
        try:
            await gateway.come_back()
            async with picker_process(tmp_path / "first", port, engine) as picker:
                assert await post(session, gateway, data) == (200, whole)
                picker.send(signal.SIGSTOP)
                paused = asyncio.create_task(post(session, gateway, data))
                await asyncio.wait([paused], timeout=0.1)
                picker.send(signal.SIGCONT)
                assert await paused == (200, whole)
                # In the middle of an answer.
                going = asyncio.Event()
                engine.step = going.wait
                async with session.post(f"{gateway.url}{CHAT}", data=data) as cut:
                    await picker.stop(signal.SIGKILL)
                    going.set()
                    with pytest.raises(aiohttp.ClientPayloadError):
                        await cut.read()
                status, _ = await post(session, gateway, data)
                assert status >= 500
            async with picker_process(tmp_path / "second", port, engine):

                async def answers() -> bool:
                    return await post(session, gateway, data) == (200, whole)

                await until(answers)
        finally:
            gateway.kill()


async def test_a_picker_that_is_ended_finishes_open_streams(tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    port = free_port()
    async with Engine() as engine, aiohttp.ClientSession() as session:
        data = chat(stream=True)
        gateway = Gateway(tmp_path / "envoy", f"127.0.0.1:{port}", [engine.address])
        try:
            await gateway.come_back()
            async with picker_process(tmp_path / "picker", port, engine) as picker:
                going = asyncio.Event()
                engine.step = going.wait
                asked = asyncio.create_task(post(session, gateway, data))
                await until(lambda: len(engine.prompts) == 1)
                picker.send(signal.SIGTERM)
                await picker.says("draining: running requests have")
                going.set()
                assert await asked == (200, b"".join(engine.events(data)))
                assert await picker.ended() == 0
        finally:
            gateway.kill()


# Without Envoy


@asynccontextmanager
async def called(**config: Any) -> AsyncIterator[tuple[Any, Any, Engine]]:
    """(a stub of the method, the server, the engine)."""
    async with Engine() as engine, served_picker(settings([engine], **config), 1) as server:
        listener: Any = server.listeners[0]
        async with aio.insecure_channel(listener.address) as channel:
            yield channel.stream_stream(PATH), server, engine


async def answer_of(call: Any) -> Any:
    return pb.ProcessingResponse.FromString(await call.read())


@pytest.mark.parametrize(
    "messages, code",
    [
        ([b"\xff"], "INVALID_ARGUMENT"),
        ([body("request_body", b"x")], "INVALID_ARGUMENT"),
        ([request_headers(), request_headers()], "INVALID_ARGUMENT"),
        ([request_headers(modes=(1, 1))], "FAILED_PRECONDITION"),
        ([response_headers(), response_headers()], "INVALID_ARGUMENT"),
        ([request_headers(), trailers("response_trailers")], "INVALID_ARGUMENT"),
    ],
)
async def test_what_envoy_would_not_say_ends_the_call(messages: list[bytes], code: str) -> None:
    async with called() as (stub, server, _):
        call = stub()
        for message in messages:
            await call.write(message)
        with pytest.raises(aio.AioRpcError) as refused:
            while await call.read() is not aio.EOF:
                pass
        assert refused.value.code().name == code
        await until(lambda: server.pools.workers.dispatcher.in_flight == 0)


async def test_an_answer_of_envoys_own_ends_the_pick() -> None:
    """Its head comes before any endpoint was given."""
    async with called(pick_timeout_s=60.0) as (stub, server, engine):
        dispatcher = server.pools.workers.dispatcher
        call = stub()
        await call.write(request_headers(HEAD | {":path": CHAT}))
        await call.write(body("request_body", b"{"))
        await call.write(response_headers(408, ends=True))
        assert (await answer_of(call)).HasField("response_headers")
        await call.done_writing()
        assert await call.read() is aio.EOF
        await until(lambda: dispatcher.in_flight == 0)


async def test_a_call_that_ends_without_an_answer_frees_its_booking() -> None:
    async with called() as (stub, server, _):
        dispatcher = server.pools.workers.dispatcher
        call = stub()
        await call.write(request_headers(HEAD | {":path": CHAT}))
        await call.write(body("request_body", chat(stream=True), ends=True))
        assert (await answer_of(call)).HasField("request_headers")
        assert dispatcher.in_flight == 1
        await call.done_writing()  # as Envoy does when its client leaves
        await until(lambda: dispatcher.in_flight == 0)


async def test_health_follows_the_engines_and_the_drain() -> None:
    serving, not_serving = 1, 2
    async with called() as (_, server, engine):
        health: Any = server.listeners[1]
        async with aio.insecure_channel(health.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def states() -> list[int]:
                names = ("", "readiness", PROCESSOR, "liveness")
                asked = [stub.Check(health_pb2.HealthCheckRequest(service=n)) for n in names]
                return [(await each).status for each in asked]

            await until(lambda: _is(states(), [serving] * 4))
            server.turn_away()
            await until(lambda: _is(states(), [not_serving] * 3 + [serving]))


async def _is(found: Any, wanted: list[int]) -> bool:
    return bool(await found == wanted)


@pytest.mark.parametrize(
    "given, text",
    [
        ({"workers": ("engine.example:80",)}, "engine.example is no IP address"),
        ({"workers": ("grpc://10.0.0.1:80",)}, "grpc: an endpoint is IP:PORT of OpenAI's HTTP"),
        ({"workers": ("10.0.0.1",)}, "is not grpc://HOST:PORT"),
        ({"workers": ("10.0.0.1:80?event=x",)}, "only one each of"),
        ({"workers": ()}, "workers: there is no endpoint to pick"),
        ({"limits": RequestLimits(hedge_after_s=1.0)}, "limits.hedge_after_s: Envoy carries"),
        ({"limits": RequestLimits(migration_limit=1)}, "limits.migration_limit: Envoy carries"),
        ({"grpc_port": 70000}, "grpc_port: must be in 0..65535"),
        ({"grpc_health_port": -1}, "grpc_health_port: must be in 0..65535"),
        ({"endpoint_port": 0}, "endpoint_port: must be in 1..65535"),
        ({"fallbacks": 9}, "fallbacks: must be in 0..8"),
        ({"pick_timeout_s": 0.0}, "pick_timeout_s"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        PickerConfig(**{"workers": ("10.0.0.1:80",), **given})
