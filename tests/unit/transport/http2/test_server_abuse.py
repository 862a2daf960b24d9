"""Peers of the server that keep to no rule, frame by frame, and what the others notice of them."""

import asyncio

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import RawClient, head_of, listening, raw_client

from dynamo_router.transport.http2 import ServerLimits

CALM = 11
pytestmark = pytest.mark.usefixtures("leaves_nothing")


async def works(client: RawClient, stream: int) -> None:
    """It still answers."""
    client.send(raw.headers(stream, head_of("/a.B/echo")))
    client.send(raw.data(stream, raw.message(b"fine"), end=True))
    await client.until(raw.HEADERS, stream=stream)


async def test_a_message_in_pieces_of_one_byte_is_the_same() -> None:
    async with listening() as (_, port), raw_client(port) as client:
        for byte in raw.PREFACE + raw.settings() + raw.headers(1, head_of("/a.B/echo")):
            client.send(bytes((byte,)))
            await asyncio.sleep(0)
        said = raw.message(b"hello") + raw.message(b"") + raw.message(b"you")
        for n, byte in enumerate(said, 1):
            client.send(raw.data(1, bytes((byte,)), end=n == len(said)))
            await asyncio.sleep(0)
        await until_ended(client, 1)
        assert client.status(1) == (b"0", b"")
        sent = b"".join(f.payload for f in client.frames if f.kind == raw.DATA)
        assert sent == said


async def until_ended(client: RawClient, stream: int) -> None:
    async with asyncio.timeout(60):
        while not any(f.flags & raw.END_STREAM for f in client.frames if f.stream == stream):
            await client.read()


@pytest.mark.parametrize(
    ("timeout", "status"),
    [
        (b"1n", b"4"),
        (b"5u", b"4"),
        (b"50m", b"4"),
        (b"99999999H", b"0"),
        (b"60S", b"0"),
        (b"1M", b"0"),
        (b"1h", b"13"),
        (b"123456789S", b"13"),
        (b"", b"13"),
    ],
)
async def test_a_deadline_in_every_unit(timeout: bytes, status: bytes) -> None:
    path = "/a.B/hang" if status == b"4" else "/a.B/echo"
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head_of(path, (b"grpc-timeout", timeout)), end=True))
        await until_ended(client, 1)
        assert client.status(1)[0] == status


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (((b":method", b"GET"),), b"405"),
        (((b"content-type", b"application/json"),), b"415"),
        (((b"content-type", b"application/grpc-web"),), b"415"),
        (((b"content-type", b"application/grpc+proto"),), b"200"),
    ],
)
async def test_what_is_no_call_is_refused(
    more: tuple[tuple[bytes, bytes], ...], said: bytes
) -> None:
    changed = dict(more)
    head = tuple((name, changed.get(name, value)) for name, value in head_of("/a.B/echo"))
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head, end=True))
        await until_ended(client, 1)
        assert client.answer(1)[b":status"] == said
        await works(client, 3)


async def test_a_stream_that_is_refused_while_its_client_still_sends_is_closed() -> None:
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head_of("/nowhere")))
        reset = await client.until(raw.RST_STREAM, stream=1)
        assert reset.payload == bytes(4)
        assert client.status(1)[0] == b"12"
        client.send(raw.headers(3, head_of("/a.B/echo")) + raw.data(3, b"\1\0\0\0\1x"))
        await client.until(raw.RST_STREAM, stream=3)
        assert client.status(3)[0] == b"12"  # compressed
        client.send(raw.headers(5, head_of("/a.B/echo")) + raw.data(5, b"\0\xff\xff\xff\xff"))
        await client.until(raw.RST_STREAM, stream=5)
        assert client.status(5)[0] == b"8"  # too long
        client.send(raw.headers(7, head_of("/a.B/echo")) + raw.data(7, b"\0\0\0\0\5x", end=True))
        await until_ended(client, 7)  # cut: no message came
        await works(client, 9)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"POST /a.B/C HTTP/1.0\r\n\r\n"]
)
async def test_http1_is_told_so(said: bytes) -> None:
    async with listening() as (_, port), raw_client(port) as client:
        client.send(said)
        told = await client.until_closed()
        assert told.startswith(b"HTTP/1.1 505 ") and told.endswith(b"HTTP/2 alone\n")


@pytest.mark.parametrize(
    "said",
    [b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500), b"\xff" * 100, b"hello\n" * 9],
)
async def test_what_is_nothing_is_closed(said: bytes) -> None:
    async with listening() as (server, port):
        async with raw_client(port) as client:
            client.send(said)
            await client.until_closed()
        async with raw_client(port) as client:
            client.greet()
            await works(client, 1)


async def test_a_client_that_says_nothing_is_closed_and_counted() -> None:
    hits: list[str] = []
    limits = ServerLimits(handshake_s=0.05)
    async with listening(limits=limits, on_limit=hits.append) as (server, port):
        async with raw_client(port) as silent, raw_client(port) as slow:
            slow.send(raw.PREFACE[:10])
            assert await silent.until_closed() == b""
            await slow.until_closed()
        await until(lambda: not len(server))
    assert hits == ["connection_handshake_s"] * 2


PADDED = 8
FLOODS = {
    "pings in one piece": raw.frame(raw.PING, 0, bytes(8)) * 1000,
    "settings in one piece": raw.settings((raw.MAX_CONCURRENT_STREAMS, 7)) * 1000,
    "acknowledgements of pings": raw.frame(raw.PING, 0, bytes(8), raw.ACK) * 5000,
    "priorities": raw.frame(2, 1, bytes(5)) * 5000,
    "priorities of HTTP/3's kind": raw.frame(16, 0, bytes(4)) * 5000,
    "frames of unknown kinds": raw.frame(99, 0, b"x") * 5000,
    "methods that are not there": b"".join(
        raw.headers(n, head_of("/a.B/none"), end=True) for n in range(1, 6001, 2)
    ),
    "heads that are none": b"".join(
        raw.headers(n, head_of("/a.B/echo", (b"grpc-timeout", b"x")), end=True)
        for n in range(1, 6001, 2)
    ),
    "headers without an end": raw.headers(1, head_of("/a.B/echo"), ends_headers=False)
    + raw.frame(raw.CONTINUATION, 1, raw.block(((b"x", b"y" * 1000),))) * 1000,
    "data that is padding": raw.headers(1, head_of("/a.B/hang"))
    + raw.frame(raw.DATA, 1, b"\x03" + bytes(3), PADDED) * 5000,
    "data without any": raw.headers(1, head_of("/a.B/hang"))
    + raw.frame(raw.DATA, 1, b"\0", PADDED) * 5000,
    "trailers again and again": raw.headers(1, head_of("/a.B/hang"))
    + raw.headers(1, ((b"x", b"y"),)) * 5000,
    "windows that grow": raw.headers(1, head_of("/a.B/hang")) + raw.window_update(1, 1) * 5000,
    "data of a call that was given up": raw.headers(1, head_of("/a.B/hang"))
    + raw.frame(raw.RST_STREAM, 1, bytes(3) + b"\x08")
    + raw.data(1, b"x") * 5000,
    "data of a call that was refused": raw.headers(1, head_of("/a.B/none"))
    + raw.data(1, raw.message(b"more")) * 5000,
    "calls given up": b"".join(
        raw.headers(n, head_of("/a.B/hang")) + raw.frame(raw.RST_STREAM, n, bytes(3) + b"\x08")
        for n in range(1, 6001, 2)
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_is_told_to_be_calm(flood: str) -> None:
    hits: list[str] = []
    async with listening(on_limit=hits.append) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            client.send(FLOODS[flood])
            await client.until_closed()
            assert client.goaways() == [CALM]
        async with raw_client(port) as client:
            client.greet()
            await works(client, 1)
        assert hits.count("client_floods") == 1
        refused = flood == "heads that are none"  # each of them counts, too
        assert set(hits) == {"client_floods"} | ({"client_violations"} if refused else set())
        await until(lambda: not server.calls_open)


@pytest.mark.parametrize("kind", ["pings", "settings"])
async def test_a_flood_drop_by_drop_is_one_too(kind: str) -> None:
    frame = raw.frame(raw.PING, 0, bytes(8)) if kind == "pings" else raw.settings()
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        await client.until(raw.SETTINGS)
        sent = 0
        while not client.goaways():
            client.send(frame)
            sent += 1
            await client.read()
        assert client.goaways() == [CALM] and sent < 150


async def test_an_answer_pays_for_a_few_pings_and_not_for_a_flood() -> None:
    ping = raw.frame(raw.PING, 0, bytes(8))
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        for stream in range(1, 101, 2):
            client.send(ping * 2 + raw.headers(stream, head_of("/a.B/echo"), end=True))
            await client.until(raw.HEADERS, stream=stream)
        assert client.goaways() == []
        client.send(ping * 4 + raw.headers(101, head_of("/a.B/echo"), end=True))
        await client.until_closed()
        assert client.goaways() == [CALM]


@pytest.mark.parametrize("beside", ["settings", "methods that are not there"])
async def test_calls_that_are_answered_pay_for_no_flood_beside_them(beside: str) -> None:
    """Legal calls and pings between the frames of a flood."""
    ping, stream, rounds = raw.frame(raw.PING, 0, bytes(8)), 1, 0
    hits: list[str] = []
    async with listening(on_limit=hits.append) as (_, port), raw_client(port) as client:
        client.greet()
        while not client.goaways():
            client.send(ping, raw.headers(stream, head_of("/a.B/echo"), end=True))
            more = [raw.settings()]
            if beside != "settings":
                ids = range(stream + 2, stream + 34, 2)
                more = [raw.headers(n, head_of("/a.B/none"), end=True) for n in ids]
            client.send(*more)
            stream, rounds = stream + 34, rounds + 1
            await client.read()
            assert rounds < 500
        assert client.goaways() == [CALM] and hits == ["client_floods"]


async def test_input_that_nothing_is_sent_for_pays_for_no_pings() -> None:
    ping = raw.frame(raw.PING, 0, bytes(8))
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head_of("/a.B/hang")))
        client.send(raw.data(1, raw.message(bytes(200 << 10))[:5]))
        for n in range(1, 12):
            client.send(raw.data(1, bytes(16 << 10)) + ping)
            while client.kinds(0).count(raw.PING) < n and not client.goaways():
                await client.read()
            if client.goaways():
                break
        assert client.goaways() == [CALM]


async def test_large_pieces_of_calls_that_were_refused_are_no_flood() -> None:
    """They were under way when their calls ended."""
    large = raw.data(1, bytes(16 << 10))[9:]
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        for stream in range(1, 401, 2):
            client.send(raw.headers(stream, head_of("/a.B/none")))
            client.send(*(raw.data(stream, large) for _ in range(14)))
            await client.until(raw.HEADERS, stream=stream)
        await works(client, 401)
        assert client.goaways() == []


async def test_pings_of_a_client_that_is_being_answered_are_no_abuse() -> None:
    async with listening() as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head_of("/a.B/echo")))
        for _ in range(20):
            before = client.kinds(1).count(raw.DATA)
            client.send(raw.frame(raw.PING, 0, bytes(8)) + raw.data(1, raw.message(b"x")))
            while client.kinds(1).count(raw.DATA) == before:
                await client.read()
        assert client.goaways() == []


async def test_connections_beyond_the_limit_are_closed_and_counted() -> None:
    hits: list[str] = []
    limits = ServerLimits(max_connections=2)
    async with listening(limits=limits, on_limit=hits.append) as (server, port):
        async with raw_client(port) as first, raw_client(port) as second:
            for client in (first, second):
                client.greet()
                await works(client, 1)
            async with raw_client(port) as third:
                assert await third.until_closed() == b""
        await until(lambda: not len(server))
        async with raw_client(port) as client:
            client.greet()
            await works(client, 1)
    assert hits == ["max_connections"]


async def test_an_address_has_its_share() -> None:
    class Share:
        def __init__(self) -> None:
            self.open: dict[int, str] = {}

        def add(self, connection: int, peer: str) -> bool:
            if self.open:
                return False
            self.open[connection] = peer
            return True

        def remove(self, connection: int) -> None:
            del self.open[connection]

    share = Share()
    async with listening(share=share) as (_, port):
        async with raw_client(port) as first, raw_client(port) as second:
            assert await second.until_closed() == b""
            first.greet()
            await works(first, 1)
            assert list(share.open.values()) == ["127.0.0.1"]
        await until(lambda: not share.open)
