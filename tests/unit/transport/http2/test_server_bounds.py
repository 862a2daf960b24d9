"""What one connection may hold, and for how long: answers that nobody reads, frames at a time,
headers that do not end, the lines in the log."""

import asyncio
import logging

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import head_of, listening, raw_client

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.limit_hits import LimitLog
from dynamo_router.transport.http2 import ServerCall, ServerLimits

pytestmark = pytest.mark.usefixtures("leaves_nothing")
STREAMS, MESSAGE = 20, 10_000


async def pour(call: ServerCall) -> None:
    """Write for ever."""
    while True:
        await call.write(bytes(MESSAGE))


class Bound:
    """What all clients may have; it remembers the most that they had."""

    def __init__(self, most: int) -> None:
        self.most, self.used, self.peak = most, 0, 0

    def take(self, caller: str, amount: int) -> str | None:
        assert caller == "127.0.0.1"
        if self.used + amount > self.most:
            return "full"
        self.used += amount
        self.peak = max(self.peak, self.used)
        return None

    def give_back(self, caller: str, amount: int) -> None:
        self.used -= amount
        assert self.used >= 0


def pouring(first: int, count: int) -> bytes:
    heads = (raw.headers(n, head_of("/pour"), end=True) for n in range(first, first + 2 * count, 2))
    return b"".join(heads)


async def test_answers_beyond_the_bound_of_a_connection_wait_one_message_each() -> None:
    limits = ServerLimits(send_buffer_bytes=1 << 20, connection_send_bytes=100_000)
    async with listening({"/pour": pour}, limits) as (server, port):
        async with raw_client(port) as client:
            client.greet((raw.INITIAL_WINDOW_SIZE, 0))
            client.send(pouring(1, STREAMS))
            (connection,) = server.connections
            session = connection.session
            await until(lambda: server.calls_open == STREAMS and session.queued > 100_000)
            for _ in range(50):  # whoever may write has
                await asyncio.sleep(0)
            assert session.queued <= 100_000 + STREAMS * (MESSAGE + 5)
            client.send(raw.window_update(1, 3 * MESSAGE) + raw.window_update(0, 1 << 20))
            while sum(len(f.payload) for f in client.frames if f.kind == raw.DATA) < 3 * MESSAGE:
                await client.read()  # who reads goes on


async def test_answers_of_all_connections_are_bounded_and_the_longest_is_cut_short() -> None:
    bound = Bound(1 << 20)
    limits = ServerLimits(send_buffer_bytes=200_000)
    async with listening({"/pour": pour}, limits, output_bound=bound) as (server, port):
        async with raw_client(port) as one, raw_client(port) as two:
            for client in (one, two):
                client.greet((raw.INITIAL_WINDOW_SIZE, 0))
                client.send(pouring(1, STREAMS))
            for client in (one, two):
                reset = await client.until(raw.RST_STREAM)
                assert reset.payload == (11).to_bytes(4, "big")
            await until(lambda: server.calls_open < 2 * STREAMS)
            assert 1 << 19 < bound.peak <= 1 << 20
            assert sum(each.session.queued for each in server.connections) < 1.5 * (1 << 20)
        await until(lambda: not bound.used)


async def test_what_an_ended_call_had_still_to_send_counts_no_more_once_it_is_given_up() -> None:
    async def answer(call: ServerCall) -> None:
        assert call.put(bytes(150_000))

    bound = Bound(1 << 20)
    limits = ServerLimits(send_buffer_bytes=200_000)
    async with listening({"/answer": answer}, limits, output_bound=bound) as (server, port):
        async with raw_client(port) as client:
            client.greet((raw.INITIAL_WINDOW_SIZE, 0))
            client.send(raw.headers(1, head_of("/answer"), end=True))
            await until(lambda: bound.used > 0)
            client.send(raw.frame(raw.RST_STREAM, 1, (8).to_bytes(4, "big")))
            await until(lambda: not bound.used)


async def test_a_heap_of_frames_leaves_others_their_turn() -> None:
    """Each byte of a message in a frame of its own."""
    began = asyncio.Event()
    frames = 4000
    limits = ServerLimits(max_frames=100)

    async def begin(call: ServerCall) -> None:
        began.set()

    got = 0

    async def count(call: ServerCall) -> None:
        nonlocal got
        message = await call.read()
        assert message is not None
        got = len(message)

    methods = {"/count": count, "/begin": begin}
    async with listening(methods, limits) as (server, port):
        async with raw_client(port) as many, raw_client(port) as one:
            for client in (many, one):
                client.greet()
                await client.until(raw.SETTINGS)
            heap = b"".join(raw.data(1, bytes(1)) for _ in range(frames))
            many.send(raw.headers(1, head_of("/count")))
            await until(lambda: server.calls_open == 1)
            many.send(raw.data(1, b"\0" + (frames).to_bytes(4, "big")) + heap)
            one.send(raw.headers(1, head_of("/begin"), end=True))
            await began.wait()
            assert not got
            await until(lambda: got == frames)


async def test_headers_that_do_not_end_end_the_connection() -> None:
    hits: list[str] = []
    limits = ServerLimits(header_s=0.05)
    async with listening(limits=limits, on_limit=hits.append) as (_, port):
        for begun in (
            raw.headers(1, head_of("/a.B/echo"), ends_headers=False),
            raw.headers(1, head_of("/a.B/echo"))[:-1],
            raw.headers(1, head_of("/a.B/hang"))
            + raw.headers(1, ((b"x", b"y"),), end=True, ends_headers=False),
        ):
            async with raw_client(port) as client:
                client.greet()
                client.send(begun)
                await client.until_closed()
                assert client.goaways() == [11]
    assert hits == ["message_timeout_s"] * 3


async def test_headers_that_end_in_time_are_left_alone() -> None:
    hits: list[str] = []
    limits = ServerLimits(header_s=1.0)
    async with listening(limits=limits, on_limit=hits.append) as (_, port):
        async with raw_client(port) as client:
            client.greet()
            head = raw.headers(1, head_of("/a.B/hang", (b"grpc-timeout", b"1200m")))
            client.send(head[:-1])
            await client.until(raw.SETTINGS)
            client.send(head[-1:])
            await client.until(raw.HEADERS, stream=1)
            assert client.status(1)[0] == b"4" and client.goaways() == []
    assert hits == []


async def test_a_client_that_answers_no_ping_is_counted() -> None:
    hits: list[str] = []
    limits = ServerLimits(keepalive_s=0.05, keepalive_timeout_s=0.05)
    async with listening(limits=limits, on_limit=hits.append) as (_, port):
        async with raw_client(port) as client:
            client.greet()
            await client.until_closed()
    assert hits == ["connection_keepalive"]


async def test_an_answer_that_is_never_read_is_counted() -> None:
    async def answer(call: ServerCall) -> None:
        await call.write(bytes(50_000))

    hits: list[str] = []
    limits = ServerLimits(linger_s=0.05)
    async with listening({"/answer": answer}, limits, on_limit=hits.append) as (_, port):
        async with raw_client(port) as client:
            client.greet((raw.INITIAL_WINDOW_SIZE, 1000))
            client.send(raw.headers(1, head_of("/answer"), end=True))
            await client.until(raw.RST_STREAM, stream=1)
    assert hits == ["message_timeout_s"]


async def test_an_idle_connection_ends_whatever_its_client_does() -> None:
    hits: list[str] = []
    limits = ServerLimits(idle_s=0.05)
    async with listening(limits=limits, on_limit=hits.append) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            await until(lambda: not len(server))  # it has answered nothing
    assert hits == ["connection_idle_s"]


def test_a_limit_is_in_the_log_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock, counted = ManualClock(), list[str]()
    log = LimitLog(counted.append, 60.0, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.hit("client_floods", "ipv4:10.0.0.1")
        log.note("max_connection_share", "10.0.0.2")
        clock.advance(61)
        log.hit("client_floods", "ipv4:10.0.0.3")
    assert counted == ["client_floods"] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "limit client_floods was hit by ipv4:10.0.0.1",
        "limit max_connection_share was hit by 10.0.0.2",
        "limit client_floods was hit by ipv4:10.0.0.3 (2 more since the last time)",
    ]
