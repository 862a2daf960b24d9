"""What calls come to whose server keeps to no rule: one line for each fault."""

import asyncio
import contextlib

import pytest
from support.polling import closed_after
from support.servers import http2_frames as raw
from support.servers.http2_peer import answer_to, peer

from dynamo_router.transport.http2 import CallError, ChannelLimits, ClientChannel, Fault

CALL = 1
HEADERS = raw.headers(CALL)
LATE = raw.data(CALL, raw.message(b"yes")) + raw.headers(CALL, ((b"grpc-status", b"0"),), end=True)
CONTINUE = raw.headers(CALL, ((b":status", b"100"),))
PADDED = 8
PROMISE = raw.frame(5, CALL, (2).to_bytes(4, "big") + raw.block(((b":method", b"GET"),)), 4)

# What the server sends, and the fault that the call ends with; None: it goes well.
FAULTS = {
    "a few 1xx": (CONTINUE * 20 + HEADERS + LATE, None),
    "1xx without an end": (CONTINUE * 10_000, Fault.BROKEN),
    "pings without an end": (HEADERS + raw.frame(raw.PING, 0, bytes(8)) * 10_000, Fault.BROKEN),
    "settings without an end": (HEADERS + raw.settings() * 10_000, Fault.BROKEN),
    "acknowledgements of pings without an end": (
        HEADERS + raw.frame(raw.PING, 0, bytes(8), raw.ACK) * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "acknowledgements of settings without an end": (
        HEADERS + raw.frame(raw.SETTINGS, 0, b"", raw.ACK) * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "priorities without an end": (
        HEADERS + raw.frame(2, CALL, bytes(5)) * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "windows that grow without an end": (
        HEADERS + raw.window_update(0, 1) * 5000 + raw.window_update(CALL, 1) * 5000 + LATE,
        Fault.BROKEN,
    ),
    "data that is padding": (
        HEADERS + raw.frame(raw.DATA, CALL, b"\x03" + bytes(3), PADDED) * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "resets of no call": (
        HEADERS + raw.frame(raw.RST_STREAM, 3, bytes(3) + b"\x08") * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "goaways without an end": (
        HEADERS + raw.frame(raw.GOAWAY, 0, (1).to_bytes(4, "big") + bytes(4)) * 10_000,
        Fault.BROKEN,
    ),
    "data without a byte": (HEADERS + raw.data(CALL, b"") * 10_000, Fault.BROKEN),
    "one goaway": (
        raw.frame(raw.GOAWAY, 0, (1).to_bytes(4, "big") + bytes(4)) + HEADERS + LATE,
        None,
    ),
    "a push": (HEADERS + PROMISE, Fault.BROKEN),
    "a push and the answer": (PROMISE + HEADERS + LATE, Fault.BROKEN),
    "frames of unknown kinds without an end": (
        HEADERS + raw.frame(99, 0, b"x") * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "frames of extensions without an end": (
        HEADERS + raw.frame(10, CALL, bytes(2)) * 10_000 + LATE,
        Fault.BROKEN,
    ),
    "a few frames of unknown kinds": (raw.frame(99, 0, b"x") * 20 + HEADERS + LATE, None),
    "a window update of 0": (HEADERS + raw.window_update(0, 0) + LATE, Fault.BROKEN),
    "headers that end nothing behind messages": (
        HEADERS + raw.data(CALL, raw.message(b"yes")) + HEADERS + LATE,
        Fault.STATUS,
    ),
    "settings that shrink": (
        raw.settings((raw.INITIAL_WINDOW_SIZE, 1)) + HEADERS + LATE,
        None,
    ),
    "a compressed message": (
        HEADERS + raw.data(CALL, raw.message(b"x", compressed=True)),
        Fault.STATUS,
    ),
    "each byte in a frame": (
        HEADERS
        + b"".join(raw.data(CALL, bytes((byte,))) for byte in raw.message(b"yes"))
        + raw.headers(CALL, ((b"grpc-status", b"0"),), end=True),
        None,
    ),
    "HTTP/1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", Fault.BROKEN),
}

# No ping is to be needed to see any of them.
UNPINGED = ChannelLimits(keepalive_s=3600.0)


@pytest.mark.parametrize("name", FAULTS)
async def test_the_call_ends_and_the_next_one_goes_well(name: str) -> None:
    sent, wanted = FAULTS[name]
    hostile = True

    def answer(_: int, data: bytes) -> bytes:
        nonlocal hostile
        asked = [frame.stream for frame in raw.parse(data) if frame.kind == raw.HEADERS]
        if not asked:
            return b""
        if hostile:
            hostile = False
            return sent
        return b"".join(map(answer_to, asked))

    async with peer() as (script, address):
        script.on_data = answer
        async with closed_after(ClientChannel(address, UNPINGED)) as channel:
            fault = None
            try:
                said = [message async for message in channel.call("/a.B/C", b"", timeout=15.0)]
                assert said == [b"yes"]
            except CallError as error:
                fault = error.outcome.fault
            assert fault is wanted
            assert [each async for each in channel.call("/a.B/C", b"", timeout=15.0)] == [b"yes"]


BEHIND_THE_END = {
    "headers": raw.headers(CALL, ((b"x", b"y"),)),
    "resets": raw.frame(raw.RST_STREAM, CALL, bytes(3) + b"\x08"),
    "windows": raw.window_update(CALL, 1),
}


@pytest.mark.parametrize("kind", BEHIND_THE_END)
async def test_a_server_that_goes_on_about_a_call_that_ended_is_left(kind: str) -> None:
    """Without a call under way: in masses, a few at a time."""
    async with peer() as (script, address):
        script.on_data = lambda _, data: b"".join(
            answer_to(frame.stream) for frame in raw.parse(data) if frame.kind == raw.HEADERS
        )
        async with closed_after(ClientChannel(address, UNPINGED)) as channel:
            assert [each async for each in channel.call("/a.B/C", b"", timeout=15.0)] == [b"yes"]
            writer, sent = script.connections[0], 0
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    assert sent < 50_000, "it takes them without an end"
                    writer.write(BEHIND_THE_END[kind] * 100)
                    await writer.drain()
                    sent += 100
                    await asyncio.sleep(0)
            assert [each async for each in channel.call("/a.B/C", b"", timeout=15.0)] == [b"yes"]
