"""A client's channel over real sockets, to gRPC's own server and to peers written by hand."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest
import uvloop
from grpc import aio
from support.polling import closed_after, until
from support.servers import http2_frames as raw
from support.servers.http2_peer import answer_to, answers_well, peer

from dynamo_router.base.errors import StatusCode
from dynamo_router.transport.http2 import CallError, ChannelLimits, ClientCall, ClientChannel, Fault
from dynamo_router.transport.http2._session import SessionError
from dynamo_router.transport.http2.client_channel import (
    MOST_FRAMES,
    MOST_TOGETHER,
    ClientConnection,
)
from dynamo_router.transport.http2.outcome import Outcome

LIMITS = ChannelLimits()
Serve = Callable[[bytes, Any], Awaitable[None]]


@asynccontextmanager
async def grpc_server(
    serve: Serve, options: tuple[tuple[str, Any], ...] = ()
) -> AsyncIterator[tuple[aio.Server, str]]:
    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_stream_rpc_method_handler(serve)

    server = aio.server(options=options)
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def channel_to(
    address: str, limits: ChannelLimits = LIMITS, **more: Any
) -> AsyncIterator[ClientChannel]:
    async with closed_after(ClientChannel(address, replace(limits, **more))) as channel:
        yield channel


async def outcome(call: Any) -> Outcome:
    with pytest.raises(CallError) as caught:
        async for _ in call:
            pass
    return caught.value.outcome


async def echo_thrice(body: bytes, context: Any) -> None:
    for _ in range(3):
        await context.write(body)


async def hang(body: bytes, context: Any) -> None:
    await context.write(b"first")
    await asyncio.Event().wait()


async def test_a_call_to_grpcs_server() -> None:
    seen = []

    async def serve(body: bytes, context: Any) -> None:
        seen.append((dict(context.invocation_metadata()), context.time_remaining()))
        await context.send_initial_metadata((("x-a", "1"), ("y-bin", b"\0\1")))
        await echo_thrice(body, context)

    async with grpc_server(serve) as (_, address), channel_to(address) as channel:
        metadata = (("traceparent", "t"), ("z-bin", b"\xff"))
        call = channel.call("/a.B/C", b"hello", timeout=60.0, metadata=metadata)
        assert [message async for message in call] == [b"hello"] * 3
        assert call.outcome == Outcome(None, 0)
        assert dict(call.initial_metadata) == {"x-a": "1", "y-bin": b"\0\1"}
        assert [m async for m in channel.call("/a.B/C", bytes(3 << 20))] == [bytes(3 << 20)] * 3
    (told, left), (_, forever) = seen
    assert told["traceparent"] == "t" and told["z-bin"] == b"\xff"
    assert 50 < left <= 60.1 and forever is None


async def test_a_status_of_grpcs_server() -> None:
    async def serve(body: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nö 50%", (("a", "b"),))

    async with grpc_server(serve) as (_, address), channel_to(address) as channel:
        said = await outcome(channel.call("/a/B", b""))
    assert said == Outcome(Fault.STATUS, StatusCode.FAILED_PRECONDITION, "nö 50%", (("a", "b"),))


async def test_the_deadline_is_kept_on_this_side() -> None:
    async with peer() as (_, address), channel_to(address) as channel:
        said = await outcome(channel.call("/a/B", b"", timeout=0.05))
        assert (said.fault, said.code) == (Fault.DEADLINE, StatusCode.DEADLINE_EXCEEDED)


async def test_a_call_that_is_cancelled_ends_at_the_peer() -> None:
    ended = asyncio.Event()

    async def serve(body: bytes, context: Any) -> None:
        try:
            await hang(body, context)
        finally:
            ended.set()

    async with grpc_server(serve) as (_, address), channel_to(address) as channel:
        call = channel.call("/a/B", b"")
        assert await anext(call) == b"first"
        assert call.cancel() and not call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(call)
        await asyncio.wait_for(ended.wait(), 60)
        assert call.outcome is not None and call.outcome.code == StatusCode.CANCELLED


async def test_a_reader_that_is_cancelled_loses_no_message() -> None:
    go = asyncio.Event()

    async def serve(body: bytes, context: Any) -> None:
        await go.wait()
        await echo_thrice(body, context)

    async with grpc_server(serve) as (_, address), channel_to(address) as channel:
        call = channel.call("/a/B", b"m")
        reading = asyncio.ensure_future(anext(call))
        await asyncio.sleep(0)
        reading.cancel()
        go.set()
        assert [message async for message in call] == [b"m"] * 3


async def test_a_slow_reader_stops_the_peer_and_gets_everything() -> None:
    written = 0

    async def serve(body: bytes, context: Any) -> None:
        nonlocal written
        for _ in range(400):
            await context.write(bytes(20_000))
            written += 1

    async with (
        grpc_server(serve) as (_, address),
        channel_to(address, window_bytes=1 << 16) as channel,
    ):
        call = channel.call("/a/B", b"")
        await anext(call)
        quick = channel.call("/a/B", b"")  # on the same connection, and not held up
        assert sum([len(message) async for message in quick]) == 8_000_000
        assert written < 700
        assert sum([len(message) async for message in call]) == 399 * 20_000


async def test_nobody_listens() -> None:
    async with grpc_server(echo_thrice) as (server, address), channel_to(address) as channel:
        await server.stop(None)
        said = await outcome(channel.call("/a/B", b""))
        assert (said.fault, said.code) == (Fault.CONNECT, StatusCode.UNAVAILABLE)
        assert "failed to connect to all addresses" in said.details


async def test_while_none_can_be_made_calls_fail_at_once_and_then_it_is_tried_again() -> None:
    async with (
        peer() as (script, address),
        channel_to(address, connect_timeout_s=0.5, first_backoff_s=1.5) as channel,
    ):
        script.is_silent = True  # it accepts, and never says a word
        first = await outcome(channel.call("/a/B", b""))
        assert first.fault is Fault.CONNECT
        assert await outcome(channel.call("/a/B", b"")) == first
        assert len(script.connections) == 1
        script.is_silent, script.on_data = False, answers_well
        answers: list[bytes] = []
        for _ in range(1000):
            try:
                answers = [message async for message in channel.call("/a/B", b"")]
                break
            except CallError:
                await asyncio.sleep(0.005)
        assert answers == [b"yes"] and len(script.connections) == 2


async def test_a_refused_call_is_sent_again_at_once() -> None:
    async with peer() as (script, address), channel_to(address) as channel:

        def refuses_thrice(n: int, data: bytes) -> bytes:
            out = b""
            for frame in raw.parse(data):
                if frame.kind == raw.HEADERS:
                    refused = raw.frame(raw.RST_STREAM, frame.stream, b"\0\0\0\7")
                    out += refused if frame.stream < 7 else answer_to(frame.stream)
            return out

        script.on_data = refuses_thrice
        assert [m async for m in channel.call("/a/B", b"")] == [b"yes"]
        assert script.streams(0) == [1, 3, 5, 7]


async def test_one_that_is_always_refused_fails_in_the_end() -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        script.on_data = lambda n, data: b"".join(
            raw.frame(raw.RST_STREAM, frame.stream, b"\0\0\0\7")
            for frame in raw.parse(data)
            if frame.kind == raw.HEADERS
        )
        said = await outcome(channel.call("/a/B", b""))
        assert (said.fault, said.code) == (Fault.STATUS, StatusCode.UNAVAILABLE)
        assert len(script.streams(0)) == 11


async def test_a_server_with_few_streams_serves_many_calls() -> None:
    options = (("grpc.max_concurrent_streams", 2),)
    async with (
        grpc_server(echo_thrice, options) as (_, address),
        channel_to(address) as channel,
    ):

        async def one() -> int:
            return len([message async for message in channel.call("/a/B", bytes(3000))])

        assert await asyncio.gather(*(one() for _ in range(60))) == [3] * 60


async def test_a_server_that_ends_its_connections_now_and_then_loses_no_call() -> None:
    options = (("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 10_000))
    seen: set[ClientConnection | None] = {None}
    async with (
        grpc_server(echo_thrice, options) as (_, address),
        channel_to(address) as channel,
    ):
        async with asyncio.timeout(60):
            while len(seen) < 5:
                assert [message async for message in channel.call("/a/B", b"x")] == [b"x"] * 3
                seen.add(channel._connection)


@pytest.mark.parametrize("left", [1, 2, 3])
async def test_a_connection_that_is_left_before_its_first_call_is_made_anew(left: int) -> None:
    """A peer that leaves all of them has no service: it is not asked for ever."""
    greeted: set[int] = set()

    def answers(n: int, data: bytes) -> bytes:
        if n in greeted:
            return answers_well(n, data)
        greeted.add(n)
        goaway = raw.frame(raw.GOAWAY, 0, bytes(8)) if n < left else b""
        return raw.settings() + goaway

    async with peer() as (script, address), channel_to(address) as channel:
        script.is_silent, script.on_data = True, answers
        call = channel.call("/a/B", b"")
        if left < 3:
            assert [message async for message in call] == [b"yes"]
        else:
            said = await outcome(call)
            assert said.fault is Fault.CONNECT and "GOAWAY" in said.details
        assert len(script.connections) == min(left + 1, 3)


async def test_calls_go_on_over_a_connection_that_is_left() -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        first = channel.call("/a/B", b"")
        await until(lambda: script.got and script.streams(0) == [1])
        script.connections[0].write(raw.frame(raw.GOAWAY, 0, b"\0\0\0\1" + bytes(4)))
        await until(lambda: not channel.is_connected)
        second = channel.call("/a/B", b"")
        await until(lambda: len(script.got) > 1 and script.streams(1) == [1])
        script.connections[1].write(answer_to(1))
        assert [message async for message in second] == [b"yes"]
        script.connections[0].write(answer_to(1))
        assert [message async for message in first] == [b"yes"]


@pytest.mark.parametrize("how", ["cut", b"\xff" * 64, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_connection_that_breaks_under_a_call(how: str | bytes) -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        call = channel.call("/a/B", b"")
        await until(lambda: script.got and script.streams(0) == [1])
        writer = script.connections[0]
        if isinstance(how, bytes):
            writer.write(how)
        else:
            writer.transport.abort()
        said = await outcome(call)
        assert (said.fault, said.code) == (Fault.BROKEN, StatusCode.UNAVAILABLE)
        assert not channel.is_connected


async def test_a_peer_that_falls_silent_is_pinged_and_given_up() -> None:
    async with (
        peer() as (script, address),
        channel_to(address, keepalive_s=0.05, keepalive_timeout_s=0.05) as channel,
    ):
        said = await outcome(channel.call("/a/B", b""))
        assert said.fault is Fault.BROKEN and said.details == "ping timeout"
        await until(lambda: raw.PING in [frame.kind for frame in script.frames(0)])


async def test_what_is_too_large_is_not_sent() -> None:
    async with (
        peer() as (script, address),
        channel_to(address, max_message_bytes=1000) as channel,
    ):
        said = await outcome(channel.call("/a/B", bytes(1001)))
        assert (said.fault, said.code) == (Fault.REQUEST_SIZE, StatusCode.RESOURCE_EXHAUSTED)
        said = await outcome(channel.call("/a/B", b"", metadata=(("a b", "c"),)))
        assert said.fault is Fault.OURS and not script.connections


async def test_closing_cancels_what_is_under_way_and_what_comes_later() -> None:
    async with grpc_server(hang) as (_, address), channel_to(address) as channel:
        call = channel.call("/a/B", b"")
        assert await anext(call) == b"first"
        waiting = asyncio.ensure_future(anext(call))
        await asyncio.sleep(0)
        await channel.close()
        for reading in (waiting, anext(channel.call("/a/B", b""))):
            with pytest.raises(asyncio.CancelledError):
                await reading
        await channel.close()


async def test_a_channel_that_is_renewed_serves_over_another_connection() -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        first = channel.call("/a/B", b"")
        await until(lambda: script.got and script.streams(0) == [1])
        channel.renew()
        script.on_data = answers_well
        assert [message async for message in channel.call("/a/B", b"")] == [b"yes"]
        assert len(script.connections) == 2
        script.connections[0].write(answer_to(1))
        assert [message async for message in first] == [b"yes"]


async def test_a_call_that_is_refused_before_it_could_be_sent_is_sent_elsewhere() -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        script.on_data = answers_well
        assert [m async for m in channel.call("/a/B", b"")] == [b"yes"]
        goaway = raw.frame(raw.GOAWAY, 0, b"\0\0\0\1" + bytes(4))
        first = channel.call("/a/B", b"")
        script.connections[0].write(goaway)
        second = channel.call("/a/B", b"")
        for call in (first, second):
            assert [message async for message in call] == [b"yes"]


async def test_a_connection_without_numbers_for_streams_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with peer() as (script, address), channel_to(address) as channel:
        script.on_data = answers_well
        assert [m async for m in channel.call("/a/B", b"")] == [b"yes"]
        request, used_up = ClientConnection.request, []

        def no_number_left(connection: ClientConnection, call: ClientCall) -> None:
            if not used_up or connection in used_up:
                used_up.append(connection)
                raise SessionError("Stream ID is not available")
            request(connection, call)

        monkeypatch.setattr(ClientConnection, "request", no_number_left)
        assert [m async for m in channel.call("/a/B", b"")] == [b"yes"]
        assert len(used_up) == 1 and len(script.connections) == 2


@pytest.mark.parametrize("closes", [False, True])
async def test_answers_that_come_together_are_told_a_few_in_a_turn(closes: bool) -> None:
    """All of them, also where the peer closes the connection behind them."""
    count, turn, told = 500, 0, Counter[int]()

    def take(_: bytes) -> None:
        told[turn] += 1

    async def never(_: bytes) -> None:
        raise AssertionError

    async with peer() as (script, address), channel_to(address) as channel:
        calls = [channel.call("/a/B", b"") for _ in range(count)]
        reading = [asyncio.create_task(call.deliver(take, never)) for call in calls]
        await until(lambda: script.got and len(script.streams(0)) == count)
        script.connections[0].write(b"".join(map(answer_to, script.streams(0))))
        if closes:
            script.connections[0].close()
        while not all(task.done() for task in reading):
            turn += 1
            await asyncio.sleep(0)
        assert [await task for task in reading] == [None] * count
    assert told.total() == count and max(told.values()) <= 2 * MOST_FRAMES


def test_of_what_a_peer_sends_a_buffer_is_taken_in_a_turn() -> None:
    """uvloop reads 32 of them in one, as long as there is more."""
    uvloop.run(_read_much())


async def _read_much() -> None:
    count, size, turn, told = 60, 16_000, 0, Counter[int]()

    def take(message: bytes) -> None:
        told[turn] += len(message)

    async def never(_: bytes) -> None:
        raise AssertionError

    async with peer() as (script, address), channel_to(address) as channel:
        calls = [channel.call("/a/B", b"") for _ in range(count)]
        reading = [asyncio.create_task(call.deliver(take, never)) for call in calls]
        await until(lambda: script.got and len(script.streams(0)) == count)
        connection = channel._connection
        assert connection is not None and connection._transport is not None
        connection._transport.pause_reading()
        writer = script.connections[0]
        for stream in script.streams(0):
            writer.write(raw.headers(stream) + raw.data(stream, raw.message(bytes(size))))
            writer.write(raw.headers(stream, ((b"grpc-status", b"0"),), end=True))
        await until(lambda: writer.transport.get_write_buffer_size() == 0)
        connection._transport.resume_reading()
        while not all(task.done() for task in reading):
            turn += 1
            await asyncio.sleep(0)
    assert told.total() == count * size
    assert max(told.values()) <= 2 * len(connection._buffer)


@pytest.mark.parametrize("stands", [True, False], ids=["uvloop", "asyncio"])
async def test_calls_that_begin_in_one_turn_leave_together(
    stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, calls, writes = asyncio.get_running_loop(), 2 * MOST_TOGETHER + 2, 0
    times = itertools.repeat(loop.time()) if stands else itertools.count(loop.time())
    async with grpc_server(echo_thrice) as (_, address), channel_to(address) as channel:
        assert [message async for message in channel.call("/a/B", b"x")] == [b"x"] * 3
        connection = channel._connection
        assert connection is not None
        transport = cast(Any, connection)._transport

        class Written:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            def write(self, data: bytes) -> None:
                nonlocal writes
                writes += 1
                transport.write(data)

        connection._transport = cast(Any, Written())
        with monkeypatch.context() as patched:
            patched.setattr(connection, "loop", Clocked(loop, times))
            begun = [channel.call("/a/B", b"x") for _ in range(calls)]
        at_once = writes
        for call in begun:
            assert [message async for message in call] == [b"x"] * 3
    assert at_once == (3 if stands else calls)


async def test_a_call_that_was_not_sent_when_its_connection_was_aborted_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it would have left at the end of that turn of the loop, with others."""
    loop = asyncio.get_running_loop()
    async with peer() as (script, address), channel_to(address) as channel:
        script.on_data = answers_well
        assert [message async for message in channel.call("/a/B", b"")] == [b"yes"]
        connection = channel._connection
        assert connection is not None
        script.on_data = lambda n, data: answers_well(n, data) if n else b""
        with monkeypatch.context() as patched:
            patched.setattr(connection, "loop", Clocked(loop, itertools.repeat(loop.time())))
            sent, deferred = channel.call("/a/B", b""), channel.call("/a/B", b"")
            connection.abort("for a test")
        assert (await outcome(sent)).fault is Fault.BROKEN
        assert [message async for message in deferred] == [b"yes"]
        assert len(script.connections) == 2


class Clocked:
    """A loop whose time is given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: Iterator[float]) -> None:
        self._loop, self._times = loop, times

    def time(self) -> float:
        return next(self._times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)
