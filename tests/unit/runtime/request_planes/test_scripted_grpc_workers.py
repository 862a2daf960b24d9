"""gRPC workers that send what they must not, or nothing, and callers that do."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from support.polling import until

from dynamo_router.runtime.request_planes import (
    Fault,
    GrpcCarrier,
    GrpcListener,
    RequestClient,
    RequestContext,
    RequestError,
    RequestServer,
    answer,
    grpc_carrier,
)
from dynamo_router.runtime.request_planes.faults import fault_of_status
from dynamo_router.runtime.request_planes.frames import encode_two_part
from dynamo_router.runtime.request_planes.grpc_carrier import METHOD, PATH_KEY
from dynamo_router.runtime.request_planes.messages import (
    SENTINEL,
    data_frame,
    final_frame,
    prologue,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")
Script = Callable[[Any], Awaitable[None]]


async def scripted(script: Script) -> tuple[grpc.aio.Server, str]:
    """A worker that does as the script says with each call."""

    async def call(payload: bytes, context: Any) -> None:
        await script(context)

    handler: Any = grpc.unary_stream_rpc_method_handler(call)
    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}/x"


@pytest.fixture
async def client() -> AsyncIterator[RequestClient]:
    running = RequestClient()
    await running.start()
    yield running
    await running.close()


async def ask(client: RequestClient, address: str) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in client.stream(address, {}, transport="grpc")]


def sends(*messages: bytes) -> Script:
    async def script(context: Any) -> None:
        for message in messages:
            await context.write(message)

    return script


def then_waits(*messages: bytes) -> Script:
    async def script(context: Any) -> None:
        await sends(*messages)(context)
        await asyncio.Event().wait()

    return script


PART = data_frame(1, "msgpack")


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (then_waits(), Fault.SILENT),
        (then_waits(b""), Fault.SILENT),
        (sends(), Fault.BROKEN),
        (sends(b""), Fault.BROKEN),
        (sends(b"", prologue(), PART), Fault.BROKEN),
        (sends(b"", prologue(), PART, SENTINEL), Fault.BROKEN),
        (sends(b"", prologue("no"), PART), Fault.REFUSED),
        (sends(b"Server overloaded: full"), Fault.OVERLOADED),
        (sends(b"in words of its own"), Fault.REFUSED),
        (sends(b"", b"\xff" * 24), Fault.PROTOCOL),
        (sends(b"", prologue() + PART), Fault.PROTOCOL),
        (sends(b"", prologue(), PART[:-1]), Fault.PROTOCOL),
        (sends(b"", PART), Fault.PROTOCOL),
        (sends(b"", prologue(), encode_two_part(b'"strange"')), Fault.PROTOCOL),
        (sends(b"", prologue(), encode_two_part(b"", b"\xc1")), Fault.PROTOCOL),
    ],
)
async def test_a_worker_that_misbehaves_is_told_from_the_others(
    client: RequestClient, monkeypatch: pytest.MonkeyPatch, script: Script, fault: Fault
) -> None:
    monkeypatch.setattr(grpc_carrier, "ACK_TIMEOUT_S", 0.3)
    monkeypatch.setattr(answer, "CALL_HOME_TIMEOUT_S", 0.3)
    worker, address = await scripted(script)
    with pytest.raises(RequestError) as caught:
        await ask(client, address)
    assert caught.value.fault is fault
    await worker.stop(None)


async def test_what_comes_after_the_end_is_not_looked_at(client: RequestClient) -> None:
    end = final_frame("msgpack")
    worker, address = await scripted(sends(b"", prologue(), PART, end, SENTINEL, PART, b"\xff"))
    assert await ask(client, address) == [1]
    await worker.stop(None)


async def test_strangers_where_a_worker_should_be(client: RequestClient) -> None:
    stranger = grpc.aio.server()
    port = stranger.add_insecure_port("127.0.0.1:0")
    await stranger.start()
    with pytest.raises(RequestError) as caught:
        await ask(client, f"127.0.0.1:{port}/x")
    assert caught.value.fault is Fault.PROTOCOL  # it does not know the method
    await stranger.stop(None)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        writer.close()
        await writer.wait_closed()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    with pytest.raises(RequestError) as caught:
        await ask(client, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}/x")
    assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)
    listener.close()
    with pytest.raises(RequestError) as caught:
        await ask(client, "nowhere.invalid:1/x")
    assert caught.value.fault is Fault.UNREACHABLE


@pytest.mark.parametrize("payload", [b"", b"\xff" * 24, encode_two_part(b"{}", b"x")])
async def test_requests_that_cannot_be_read_are_refused(payload: bytes) -> None:
    async def never(body: Any, context: RequestContext) -> AsyncIterator[object]:
        raise AssertionError("it was begun")
        yield

    server = RequestServer()
    server.add("x", never)
    listener = GrpcListener(server)
    await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        call: Any = channel.unary_stream(METHOD)
        answers = [each async for each in call(payload, metadata=((PATH_KEY, "x"),))]
        assert len(answers) == 1 and answers[0].startswith(b"Server unavailable: ")
    await listener.close()
    await server.close()


async def test_a_port_that_is_taken_is_named() -> None:
    first, second = GrpcListener(RequestServer()), GrpcListener(RequestServer())
    await first.start()
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{first.port}"):
        await second.start(port=first.port)
    await first.close()


async def test_dead_workers_leave_no_connection_behind(client: RequestClient) -> None:
    carrier = client._carriers["grpc"]
    assert isinstance(carrier, GrpcCarrier)
    for _ in range(3):
        worker, address = await scripted(sends(b"", prologue(), PART, final_frame("msgpack")))
        assert await ask(client, address) == [1]
        await worker.stop(None)
        with pytest.raises(RequestError):
            await ask(client, address)
    await until(lambda: carrier.connections == 0)


PAUSED = """
import asyncio
from dynamo_router.runtime.request_planes import GrpcListener, RequestServer

async def main():
    server = RequestServer()
    listener = GrpcListener(server)

    async def answer(body, context):
        yield 1
        await asyncio.Event().wait()

    server.add("x", answer)
    await listener.start()
    print(listener.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_worker_that_stands_still_is_noticed_by_pings() -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", PAUSED, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    client = RequestClient({"grpc": GrpcCarrier(ping_ms=200, ping_timeout_ms=200)})
    await client.start()
    try:
        async with asyncio.timeout(60):
            port = int(await worker.stdout.readline())
        parts = client.stream(f"127.0.0.1:{port}/x", {}, transport="grpc")
        assert await anext(parts) == 1
        os.kill(worker.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            with pytest.raises(RequestError) as caught:
                await anext(parts)
        assert caught.value.fault is Fault.BROKEN
    finally:
        await client.close()
        worker.kill()
        await worker.wait()


@pytest.mark.parametrize(
    ("code", "details", "fault"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", Fault.UNREACHABLE),
        ("UNAVAILABLE", "DNS resolution failed", Fault.UNREACHABLE),
        ("UNAVAILABLE", "Socket closed", Fault.BROKEN),
        ("DEADLINE_EXCEEDED", "", Fault.SILENT),
        ("RESOURCE_EXHAUSTED", "", Fault.OVERLOADED),
        ("CANCELLED", "", Fault.BROKEN),
        ("UNIMPLEMENTED", "", Fault.PROTOCOL),
    ],
)
def test_what_a_status_means(code: str, details: str, fault: Fault) -> None:
    assert fault_of_status(code, details) is fault
