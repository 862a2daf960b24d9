"""Calls that are answered in the turn in which their message came, and those that then are not."""

import asyncio

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import echo, head_of, listening, raw_client

from dynamo_router.transport.http2 import AtOnce, ServerCall, ServerLimits

pytestmark = pytest.mark.usefixtures("leaves_nothing")
PATH = "/a.B/echo"
HEAD = head_of(PATH)


def call_of(stream: int, text: bytes) -> bytes:
    return raw.headers(stream, HEAD) + raw.data(stream, raw.message(text), end=True)


class Short:
    """Answers a message by itself; one that says `wait` is left to whoever waits, `fail` fails."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def __call__(self, call: ServerCall, message: bytes) -> bool:
        self.asked.append(message)
        if message == b"wait":
            return False
        if message == b"fail":
            raise LookupError(message)
        if message == b"refuse":
            call.end(5, "there is no such thing")
        else:
            call.answer(message.upper())
        return True


async def test_answers_of_one_turn_are_sent_together() -> None:
    short = Short()
    async with (
        listening(at_once={PATH: AtOnce(short)}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet()
        client.send(b"".join(call_of(1 + 2 * n, b"call %d" % n) for n in range(8)))
        while len(client.kinds(15)) < 3:
            await client.read()
        assert short.asked == [b"call %d" % n for n in range(8)]
        assert client.got.count(b"CALL ") == 8
        for n in range(8):
            assert client.kinds(1 + 2 * n) == [raw.HEADERS, raw.DATA, raw.HEADERS]
        assert client.status(15) == (b"0", b"")
        assert server.calls_open == 0


@pytest.mark.parametrize(
    ("text", "status"),
    [(b"wait", b"0"), (b"fail", b"2"), (b"refuse", b"5"), (b"else", b"0")],
)
async def test_a_call_ends_whatever_becomes_of_the_short_way(text: bytes, status: bytes) -> None:
    short = Short()
    async with (
        listening(at_once={PATH: AtOnce(short)}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet()
        client.send(call_of(1, text))
        while b"grpc-status" not in client.answer(1):
            await client.read()
        assert client.status(1)[0] == status
        assert short.asked == [text]
        assert (b"wait" in client.got) == (text == b"wait")
        await until(lambda: not server.calls_open)


async def test_a_message_that_comes_later_has_a_task() -> None:
    short = Short()
    async with (
        listening(at_once={PATH: AtOnce(short)}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet()
        client.send(raw.headers(1, HEAD))
        await until(lambda: server.calls_open == 1)
        client.send(raw.data(1, raw.message(b"late"), end=True))
        await client.until(raw.DATA, stream=1)
        assert b"late" in client.got and short.asked == []
        await until(lambda: not server.calls_open)


async def test_a_call_that_was_given_up_already_is_not_answered() -> None:
    short = Short()
    async with (
        listening(at_once={PATH: AtOnce(short)}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet()
        client.send(
            call_of(1, b"gone")
            + raw.frame(raw.RST_STREAM, 1, bytes((0, 0, 0, 8)))
            + call_of(3, b"here")
        )
        await client.until(raw.DATA, stream=3)
        assert short.asked == [b"here"]
        assert client.kinds(1) == []
        await until(lambda: not server.calls_open)


async def test_a_broken_call_is_refused_and_not_answered() -> None:
    short = Short()
    async with (
        listening(at_once={PATH: AtOnce(short)}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet()
        messages = raw.message(b"good") + raw.message(b"bad", compressed=True)
        client.send(raw.headers(1, HEAD) + raw.data(1, messages, end=True))
        await client.until(raw.HEADERS, stream=1)
        assert client.status(1)[0] == b"12"
        assert short.asked == []
        await until(lambda: not server.calls_open)


async def test_an_answer_that_is_not_read_does_not_linger_for_ever() -> None:
    hits: list[str] = []
    limits = ServerLimits(linger_s=0.05)
    methods, at_once = {PATH: echo}, {PATH: AtOnce(Short())}
    async with listening(methods, limits, at_once, on_limit=hits.append) as (server, port):
        async with raw_client(port) as client:
            client.greet((raw.INITIAL_WINDOW_SIZE, 2))
            client.send(call_of(1, b"too long for the window"))
            await client.until(raw.RST_STREAM, stream=1)
            await until(lambda: not server.calls_open)
            assert hits == ["message_timeout_s"]  # so it did linger


async def test_a_stop_waits_for_an_answer_that_has_not_left() -> None:
    async with (
        listening(at_once={PATH: AtOnce(Short())}) as (server, port),
        raw_client(port) as client,
    ):
        client.greet((raw.INITIAL_WINDOW_SIZE, 2))
        client.send(call_of(1, b"words"))
        await until(lambda: server.calls_open == 1)
        stopping = asyncio.create_task(server.stop(15.0))
        await client.until(raw.GOAWAY)
        client.send(raw.window_update(1, 100))
        await stopping
        assert b"DS" in await client.until_closed()
        assert client.status(1)[0] == b"0"


async def test_a_client_may_ping_after_each_answer() -> None:
    """gRPC's clients do, to measure how fast answers come."""
    hits: list[str] = []
    at_once = {PATH: AtOnce(Short())}
    async with listening(at_once=at_once, on_limit=hits.append) as (_, port):
        async with raw_client(port) as client:
            client.greet()
            for stream in range(1, 21, 2):
                client.send(raw.frame(raw.PING, 0, bytes(8)) + call_of(stream, b"words"))
                await client.until(raw.DATA, stream=stream)
            assert client.goaways() == [] and hits == []
