"""The server as clients of gRPC see it: grpc.aio's, the C core's blocking one, and our own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from support.calls import too_late
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import echo, head_of, listening, raw_client

from dynamo_router.base.errors import StatusCode
from dynamo_router.transport.http2 import (
    CallError,
    ChannelLimits,
    ClientChannel,
    Fault,
    Http2Server,
    ServerCall,
    ServerLimits,
)

Code = grpc.StatusCode
pytestmark = pytest.mark.usefixtures("leaves_nothing")


@asynccontextmanager
async def asked(
    methods: Any = None, limits: ServerLimits | None = None, options: Any = ()
) -> AsyncIterator[tuple[Http2Server, Any]]:
    """A server, and what calls its methods through grpc.aio: ask(name, body, **more)."""
    async with listening(methods, limits) as (server, port):
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:

            def ask(name: str, body: bytes = b"", **more: Any) -> Any:
                return channel.unary_stream(f"/a.B/{name}", None, None)(body, **more)

            yield server, ask


async def answers(call: Any) -> list[bytes]:
    return [message async for message in call]


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with contextlib.suppress(aio.AioRpcError):
        await answers(call)
    return await call.code(), await call.details() or ""


@pytest.mark.parametrize("size", [0, 1, 3000, 5 << 20])
async def test_messages_come_and_go(size: int) -> None:
    async def thrice(call: ServerCall) -> None:
        message = await call.read()
        assert message is not None
        for _ in range(3):
            await call.write(message)

    async with asked({"/a.B/thrice": thrice}, options=(MANY_BYTES,)) as (_, ask):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert await answers(ask("thrice", body)) == [body] * 3


MANY_BYTES = ("grpc.max_receive_message_length", -1)


async def test_metadata_goes_both_ways() -> None:
    heard: list[Any] = []

    async def greet(call: ServerCall) -> None:
        heard.append((dict(call.invocation_metadata()), call.peer(), call.certificate()))
        await call.send_initial_metadata((("x-a", "1"), ("x-b-bin", b"\0\1")))
        await call.write(b"hello")
        call.set_trailing_metadata((("x-c", "3"),))

    async with asked({"/a.B/greet": greet}) as (_, ask):
        call = ask("greet", metadata=(("x-d", "4"), ("x-e-bin", b"\xff")))
        assert await answers(call) == [b"hello"]
        assert dict(await call.initial_metadata()) == {"x-a": "1", "x-b-bin": b"\0\1"}
        assert dict(await call.trailing_metadata()) == {"x-c": "3"}
    ((metadata, peer, shown),) = heard
    assert (metadata["x-d"], metadata["x-e-bin"]) == ("4", b"\xff")
    assert peer.startswith("ipv4:127.0.0.1:") and not shown


async def test_calls_of_one_connection_have_each_its_own_headers() -> None:
    heard: list[Any] = []

    async def greet(call: ServerCall) -> None:
        left = call.time_remaining()
        heard.append((dict(call.invocation_metadata()).get("x-d"), left is not None))
        await call.write(b"hello")

    async with asked({"/a.B/greet": greet, "/a.B/wave": greet}) as (_, ask):
        for name, said, timeout in (
            ("greet", "1", None),
            ("greet", "1", None),
            ("greet", "2", None),
            ("wave", "2", 60.0),
            ("wave", "2", None),
        ):
            assert await answers(ask(name, metadata=(("x-d", said),), timeout=timeout))
    limits = [timed for _, timed in heard]
    assert limits == [False, False, False, True, False]
    assert [said for said, _ in heard] == ["1", "1", "2", "2", "2"]


async def test_a_status_reaches_the_client_as_it_was_said() -> None:
    async def refuse(call: ServerCall) -> None:
        await call.read()
        await call.write(b"one")
        await call.abort(StatusCode.RESOURCE_EXHAUSTED, "zu viel: ä 100%\n", (("x-why", "full"),))

    async def refuse_at_once(call: ServerCall) -> None:
        await call.abort(StatusCode.NOT_FOUND)

    async def fail(call: ServerCall) -> None:
        raise ValueError("a secret")

    methods = {"/a.B/refuse": refuse, "/a.B/at_once": refuse_at_once, "/a.B/fail": fail}
    async with asked(methods) as (_, ask):
        call = ask("refuse")
        assert await failure(call) == (Code.RESOURCE_EXHAUSTED, "zu viel: ä 100%\n")
        assert dict(await call.trailing_metadata()) == {"x-why": "full"}
        assert await failure(ask("at_once")) == (Code.NOT_FOUND, "")
        assert await failure(ask("fail")) == (Code.UNKNOWN, "Unexpected ValueError")
        assert await failure(ask("nowhere")) == (Code.UNIMPLEMENTED, "Method not found!")


async def test_a_call_that_is_given_up_cancels_its_task() -> None:
    cancelled = asyncio.Event()
    began = asyncio.Event()

    async def wait(call: ServerCall) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with listening({"/a.B/wait": wait, "/a.B/echo": echo}) as (_, port):
        channel = ClientChannel(f"127.0.0.1:{port}")
        call = channel.call("/a.B/wait", b"")
        await asyncio.wait_for(began.wait(), 60)
        call.cancel()
        await asyncio.wait_for(cancelled.wait(), 60)
        assert await anext(channel.call("/a.B/echo", b"still here")) == b"still here"
        await channel.close()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_deadline_ends_the_call_on_both_sides(answered: bool) -> None:
    left: list[float | None] = []
    cancelled = asyncio.Event()

    async def wait(call: ServerCall) -> None:
        left.append(call.time_remaining())
        if answered:
            await call.write(b"one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asked({"/a.B/wait": wait}) as (_, ask):
        code, _ = await too_late(
            lambda seconds: failure(ask("wait", timeout=seconds)), lambda: left
        )
        assert code is Code.DEADLINE_EXCEEDED
        await asyncio.wait_for(cancelled.wait(), 60)
        assert left[0] is not None and 0 < left[0] < 21.0  # gRPC rounds up what it sends


async def test_a_client_that_does_not_read_makes_the_method_wait() -> None:
    written, window, buffer, size = 0, 128 << 10, 32 << 10, 10_000

    async def flood(call: ServerCall) -> None:
        nonlocal written
        for _ in range(2000):
            await call.write(bytes(size))
            written += size

    limits = ServerLimits(send_buffer_bytes=buffer)
    async with listening({"/a.B/flood": flood}, limits) as (_, port):
        windows = ChannelLimits(window_bytes=window, first_window_bytes=window)
        channel = ClientChannel(f"127.0.0.1:{port}", windows)
        call = channel.call("/a.B/flood", b"")
        await until(lambda: written > window)
        assert len(await anext(call)) == size
        for _ in range(1000):
            await asyncio.sleep(0)
            assert written < window + buffer + 4 * size
        assert sum([len(message) async for message in call]) == 1999 * size
        await channel.close()


async def test_an_answer_that_nobody_takes_does_not_linger_for_ever() -> None:
    ended = asyncio.Event()

    async def answer(call: ServerCall) -> None:
        await call.write(bytes(50_000))
        await call.finish()
        ended.set()

    limits = ServerLimits(linger_s=0.05)
    async with listening({"/a.B/answer": answer}, limits) as (_, port), raw_client(port) as client:
        client.greet((raw.INITIAL_WINDOW_SIZE, 1000))
        client.send(raw.headers(1, head_of("/a.B/answer"), end=True))
        await client.until(raw.RST_STREAM, stream=1)
        await asyncio.wait_for(ended.wait(), 60)
        assert sum(len(f.payload) for f in client.frames if f.kind == raw.DATA) == 1000


async def test_messages_that_are_too_long_or_compressed_are_refused() -> None:
    limits = ServerLimits(max_message_bytes=1000)
    async with asked({"/a.B/echo": echo}, limits) as (_, ask):
        code, text = await failure(ask("echo", bytes(2000)))
        assert (code, text) == (
            Code.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (2000 vs. 1000)",
        )
        code, _ = await failure(ask("echo", bytes(900), compression=grpc.Compression.Gzip))
        assert code is Code.UNIMPLEMENTED
        assert await answers(ask("echo", bytes(1000))) == [bytes(1000)]


async def test_metadata_that_is_too_long_is_refused() -> None:
    hits: list[str] = []
    limits = ServerLimits(max_header_bytes=4000)
    async with listening(limits=limits, on_limit=hits.append) as (_, port):
        channel = ClientChannel(f"127.0.0.1:{port}")
        with pytest.raises(CallError) as caught:
            await anext(channel.call("/a.B/echo", b"", metadata=(("x", "y" * 5000),)))
        assert caught.value.outcome.code == StatusCode.RESOURCE_EXHAUSTED
        assert await anext(channel.call("/a.B/echo", b"fine")) == b"fine"
        await channel.close()
    assert hits == ["max_metadata_bytes"]


async def test_calls_beyond_the_limit_wait_at_the_client() -> None:
    most = running = 0

    async def serve(call: ServerCall) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await call.write(b"done")
        running -= 1

    async with asked({"/a.B/serve": serve}, ServerLimits(max_streams=3)) as (server, ask):
        told = await asyncio.gather(*(answers(ask("serve")) for _ in range(20)))
        assert told == [[b"done"]] * 20 and 0 < most <= 3


async def test_a_server_that_stops_lets_calls_end_and_takes_no_more() -> None:
    go = asyncio.Event()

    async def wait(call: ServerCall) -> None:
        await call.write(b"one")
        await go.wait()
        await call.write(b"two")

    async with asked({"/a.B/wait": wait}) as (server, ask):
        call = ask("wait")
        assert await call.read() == b"one"
        stopping = asyncio.create_task(server.stop(15.0))
        await asyncio.sleep(0)
        await until(lambda: all(each.leave().done() for each in server.connections))
        late = ask("wait")
        assert (await failure(late))[0] is Code.UNAVAILABLE
        go.set()
        assert await call.read() == b"two"
        assert await call.code() is Code.OK
        await stopping
        assert len(server) == 0


async def test_a_grace_that_is_over_ends_calls_with_a_status() -> None:
    async with asked() as (server, ask):
        call = ask("hang")
        await until(lambda: server.calls_open)
        await server.stop(0.05)
        assert await failure(call) == (Code.UNAVAILABLE, "the server shuts down")


async def test_a_server_that_is_killed_breaks_its_connections() -> None:
    async with listening() as (server, port):
        channel = ClientChannel(f"127.0.0.1:{port}")
        call = channel.call("/a.B/hang", b"")
        await until(lambda: server.calls_open)
        await server.kill()
        with pytest.raises(CallError) as caught:
            await anext(call)
        assert caught.value.outcome.fault is Fault.BROKEN
        await channel.close()


async def test_the_cores_blocking_client_streams_both_ways() -> None:
    """grpc's own client of threads, and a method of streams."""
    async with listening() as (_, port):

        def talk() -> list[bytes]:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_stream("/a.B/echo", None, None)
                said = [b"%d" % n * 1000 for n in range(100)]
                return list(call(iter(said), timeout=15.0))

        told = await asyncio.to_thread(talk)
        assert told == [b"%d" % n * 1000 for n in range(100)]


async def test_old_and_idle_connections_are_left_and_no_call_is_lost() -> None:
    hits: list[str] = []
    limits = ServerLimits(age_s=0.05, age_grace_s=5.0)
    async with listening(limits=limits, on_limit=hits.append) as (server, port):
        channel = ClientChannel(f"127.0.0.1:{port}")
        made = 0
        for n in range(400):
            assert await anext(channel.call("/a.B/echo", b"%d" % n)) == b"%d" % n
            made = max(made, server.connections_made)
            await asyncio.sleep(0.001)
        assert made > 2 and hits == []
        await channel.close()
    async with listening(limits=ServerLimits(idle_s=0.05), on_limit=hits.append) as (server, port):
        channel = ClientChannel(f"127.0.0.1:{port}")
        assert await anext(channel.call("/a.B/echo", b"once")) == b"once"
        await until(lambda: not len(server))
        assert await anext(channel.call("/a.B/echo", b"again")) == b"again"
        await channel.close()
    assert set(hits) == {"connection_idle_s"}


async def test_a_client_that_is_gone_without_a_word_is_noticed() -> None:
    began = asyncio.Event()

    async def hang(call: ServerCall) -> None:
        began.set()
        await asyncio.Event().wait()

    limits = ServerLimits(keepalive_s=0.05, keepalive_timeout_s=0.05)
    async with listening({"/a.B/hang": hang}, limits) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            client.send(raw.headers(1, head_of("/a.B/hang")))
            await asyncio.wait_for(began.wait(), 60)
            await until(lambda: not len(server))  # it answers no ping
            assert not server.calls_open
