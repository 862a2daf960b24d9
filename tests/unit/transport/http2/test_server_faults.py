"""What a client that keeps to no rule sees, and what is counted: one line for each fault."""

import asyncio
from typing import NamedTuple

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import RawClient, head_of, listening, raw_client

from dynamo_router.transport.http2 import ServerLimits

CALM, PROTOCOL, COMPRESSION, FLOW, SIZE = 11, 1, 9, 3, 6
pytestmark = pytest.mark.usefixtures("leaves_nothing")
LIMITS = ServerLimits(max_header_bytes=4000, max_message_bytes=1000, max_streams=4)
ECHO, HANG = head_of("/a.B/echo"), head_of("/a.B/hang")
CALL = raw.headers(1, ECHO)
BIG = tuple((b"x-%d" % n, b"y" * 1000) for n in range(5))


class Fault(NamedTuple):
    """What is sent behind the greeting. What is seen: a status, the code of a RST_STREAM of stream
    1 (`reset`) or of a GOAWAY, after which the connection closes; what is counted.
    """

    sent: bytes
    status: bytes = b""
    reset: int | None = None
    goaway: int | None = None
    counted: tuple[str, ...] = ()


def frames(kind: int, payload: bytes, stream: int = 0, flags: int = 0, *, times: int = 1) -> bytes:
    return raw.frame(kind, stream, payload, flags) * times


def calls(first: int, count: int, head: tuple[tuple[bytes, bytes], ...] = HANG) -> bytes:
    return b"".join(raw.headers(n, head) for n in range(first, first + 2 * count, 2))


def long(*pairs: tuple[bytes, bytes]) -> bytes:
    """Headers of stream 1 that do not fit into a frame."""
    half = len(pairs) // 2
    rest = raw.frame(raw.CONTINUATION, 1, raw.block(pairs[half:]), raw.END_HEADERS)
    return raw.headers(1, pairs[:half], ends_headers=False) + rest


def timeout(value: bytes) -> bytes:
    return raw.headers(1, head_of("/a.B/echo", (b"grpc-timeout", value)), end=True)


FLOODED = {"goaway": CALM, "counted": ("client_floods",)}
VIOLATED = ("client_violations",)

FAULTS = {
    # Messages
    "compressed": Fault(CALL + raw.data(1, raw.message(b"x", compressed=True)), status=b"12"),
    "4 GB": Fault(
        CALL + raw.data(1, b"\0\xff\xff\xff\xff"), status=b"8", counted=("max_message_bytes",)
    ),
    "longer than the limit": Fault(
        CALL + raw.data(1, raw.message(bytes(1001))), status=b"8", counted=("max_message_bytes",)
    ),
    "cut": Fault(CALL + raw.data(1, b"\0\0\0\0\5x", end=True), status=b"0"),
    "none": Fault(raw.headers(1, ECHO, end=True), status=b"0"),
    # Headers
    "no method": Fault(raw.headers(1, ECHO[1:]), reset=PROTOCOL),
    "upper case": Fault(raw.headers(1, (*ECHO, (b"X-Y", b"z"))), reset=PROTOCOL),
    "connection": Fault(raw.headers(1, (*ECHO, (b"connection", b"close"))), reset=PROTOCOL),
    "pseudo header behind others": Fault(raw.headers(1, (*ECHO[2:], *ECHO[:2])), reset=PROTOCOL),
    "no such method": Fault(raw.headers(1, head_of("/no/where"), end=True), status=b"12"),
    "metadata": Fault(raw.headers(1, (*ECHO, *BIG)), status=b"8", counted=("max_metadata_bytes",)),
    "far too much metadata": Fault(
        long(*ECHO, *(5 * BIG)), reset=2, counted=("max_metadata_bytes",)
    ),
    "metadata behind the messages": Fault(
        CALL + raw.headers(1, BIG, end=True), status=b"8", counted=("max_metadata_bytes",)
    ),
    "far too much metadata behind the messages": Fault(
        CALL + long(*(5 * BIG)), reset=2, counted=("max_metadata_bytes",)
    ),
    "metadata behind the messages that do not end them": Fault(
        CALL + raw.headers(1, ((b"x", b"y"),)), reset=PROTOCOL
    ),
    "an empty name": Fault(raw.headers(1, (*ECHO, (b"", b"x")), end=True), status=b"0"),
    "timeout of nothing": Fault(timeout(b""), status=b"13", counted=VIOLATED),
    "timeout in weeks": Fault(timeout(b"1W"), status=b"13", counted=VIOLATED),
    "timeout of nine digits": Fault(timeout(b"123456789S"), status=b"13", counted=VIOLATED),
    "negative timeout": Fault(timeout(b"-1S"), status=b"13", counted=VIOLATED),
    # Frames
    "window update of 0 for a call": Fault(
        CALL + frames(raw.WINDOW_UPDATE, bytes(4), 1), goaway=PROTOCOL, counted=VIOLATED
    ),
    "window update of 0": Fault(
        frames(raw.WINDOW_UPDATE, bytes(4)), goaway=PROTOCOL, counted=VIOLATED
    ),
    "window beyond 2 GiB": Fault(
        frames(raw.WINDOW_UPDATE, b"\x7f\xff\xff\xff", times=2), goaway=FLOW, counted=VIOLATED
    ),
    "initial window beyond 2 GiB": Fault(
        raw.settings((raw.INITIAL_WINDOW_SIZE, 1 << 31)), goaway=FLOW, counted=VIOLATED
    ),
    "settings of no length": Fault(frames(raw.SETTINGS, bytes(5)), goaway=SIZE, counted=VIOLATED),
    "ping of no length": Fault(frames(raw.PING, bytes(7)), goaway=SIZE, counted=VIOLATED),
    "a frame too long": Fault(
        CALL + frames(raw.DATA, bytes(16385), 1), goaway=SIZE, counted=VIOLATED
    ),
    "data of no stream": Fault(raw.data(0, b"x"), goaway=PROTOCOL, counted=VIOLATED),
    "data of a stream that never was": Fault(raw.data(7, b"x"), goaway=PROTOCOL, counted=VIOLATED),
    "a stream of the server's": Fault(raw.headers(2, ECHO), goaway=PROTOCOL, counted=VIOLATED),
    "a push": Fault(frames(5, bytes(4) + raw.block(ECHO), 1), goaway=PROTOCOL, counted=VIOLATED),
    "headers that are no HPACK": Fault(
        frames(raw.HEADERS, b"\xff" * 20, 1, 4), goaway=COMPRESSION, counted=VIOLATED
    ),
    "a continuation of nothing": Fault(
        frames(raw.CONTINUATION, b"", 1), goaway=PROTOCOL, counted=VIOLATED
    ),
    "another frame within headers": Fault(
        raw.headers(1, ECHO, ends_headers=False) + frames(raw.PING, bytes(8)),
        goaway=PROTOCOL,
        counted=VIOLATED,
    ),
    "goaway": Fault(frames(raw.GOAWAY, bytes(8)) + raw.headers(1, ECHO, end=True), status=b"0"),
    "unknown frames": Fault(
        frames(99, b"x", times=50) + raw.headers(1, ECHO, end=True), status=b"0"
    ),
    # Too many
    "streams beyond the limit": Fault(
        calls(3, 4) + raw.headers(11, HANG), goaway=None, counted=("max_streams",)
    ),
    "many unknown frames": Fault(frames(99, b"x", times=5000), **FLOODED),
    "pings": Fault(frames(raw.PING, bytes(8), times=1000), **FLOODED),
    "settings": Fault(raw.settings((raw.MAX_CONCURRENT_STREAMS, 7)) * 1000, **FLOODED),
    "continuations": Fault(
        raw.headers(1, ECHO, ends_headers=False)
        + frames(raw.CONTINUATION, raw.block(BIG[:1]), 1, times=1000),
        **FLOODED,
    ),
    "calls given up": Fault(
        b"".join(
            raw.headers(n, HANG) + raw.frame(raw.RST_STREAM, n, bytes(3) + b"\x08")
            for n in range(1, 6001, 2)
        ),
        **FLOODED,
    ),
    "data without a byte": Fault(CALL + raw.data(1, b"") * 5000, **FLOODED),
    "priorities": Fault(frames(2, bytes(5), 1, times=5000), **FLOODED),
    "windows": Fault(frames(raw.WINDOW_UPDATE, bytes(3) + b"\1", times=5000), **FLOODED),
    "goaways": Fault(CALL + frames(raw.GOAWAY, bytes(8), times=5000), **FLOODED),
}


async def ends(client: RawClient, fault: Fault) -> None:
    """The stream or connection ends as it should."""
    if fault.goaway is not None:
        await client.until_closed()
        assert client.goaways() == [fault.goaway]
    elif fault.reset is not None:
        reset = await client.until(raw.RST_STREAM, stream=1)
        assert reset.payload == fault.reset.to_bytes(4, "big")
    elif fault.status:
        async with asyncio.timeout(60):
            while not any(f.flags & raw.END_STREAM for f in client.frames if f.stream == 1):
                await client.read()
        assert client.status(1)[0] == fault.status


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_seen_and_what_is_counted(name: str) -> None:
    fault, hits = FAULTS[name], list[str]()
    async with listening(limits=LIMITS, on_limit=hits.append) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            client.send(fault.sent)
            await ends(client, fault)
            await until(lambda: len(hits) == len(fault.counted))
        async with raw_client(port) as client:  # others go on
            client.greet()
            client.send(CALL + raw.data(1, raw.message(b"fine"), end=True))
            await ends(client, Fault(b"", status=b"0"))
        await until(lambda: not server.calls_open)
    assert tuple(hits) == fault.counted
