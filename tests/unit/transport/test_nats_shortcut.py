"""Messages read straight from a NATS connection: the same as by its library's parser, once and in
order, wherever the bytes are cut."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser
from structlog.testing import capture_logs
from support.polling import until

from dynamo_router.base.backoff import Backoff
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import PlaneState
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.transport.nats import nats_link
from dynamo_router.transport.nats._frames import count_missing, read_frame, read_run
from dynamo_router.transport.nats.nats_link import _Client, _log_slow_reading
from dynamo_router.transport.nats.nats_shortcut import NatsShortcut

SUBJECTS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


class Heard:
    """What nats-py's parser makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.messages: list[tuple[int, bytes, bytes]] = []
        self.parser = Parser(self)
        asyncio.run(self.parser.parse(data))

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        assert not headers
        self.messages.append((sid, bytes(subject), data))


def message(sid: int, subject: str, payload: bytes, reply: str = "") -> bytes:
    words = ["MSG", subject, str(sid), *([reply] if reply else []), str(len(payload))]
    return b"%b\r\n%b\r\n" % (" ".join(words).encode(), payload)


@given(
    st.lists(
        st.tuples(st.integers(1, 99), SUBJECTS, st.binary(max_size=30), SUBJECTS | st.just(""))
    )
)
def test_messages_are_read_as_by_the_library(
    said: list[tuple[int, str, bytes, str]],
) -> None:
    data = b"".join(message(*each) for each in said)
    found, at = [], 0
    while (frame := read_frame(data, at)) is not None:
        found.append(frame[:3])
        at = frame[3]
    assert at == len(data)
    assert found == Heard(data).messages


@given(SUBJECTS, st.binary(max_size=30), st.data())
def test_a_message_that_has_not_come_whole_is_none(
    subject: str, payload: bytes, data: st.DataObject
) -> None:
    whole = message(7, subject, payload)
    assert read_frame(whole, 0) == (7, subject.encode(), payload, len(whole))
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert read_frame(part, 0) is None
    assert read_run(part, 0, {7: list}) is None
    missing = count_missing(part, 0, {7: list})
    assert (missing > 0) == (len(part) >= len(b"MSG "))
    assert missing <= len(whole) - len(part)
    assert not count_missing(part, 0, {}), "it is for the library"
    assert count_missing(whole, 0, {7: list}) == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=9)), min_size=1))
def test_messages_in_a_row_with_one_sink_are_read_together(said: list[tuple[int, bytes]]) -> None:
    data = b"".join(message(sid, "a", payload) for sid, payload in said)
    one, other = [].append, [].append
    sinks: dict[int, Any] = {1: one, 2: one, 3: other}
    at, found = 0, []
    while at < len(data):
        if (run := read_run(data, at, sinks)) is not None:
            sink, payloads, at = run
            found.append((sink, payloads))
        else:
            frame = read_frame(data, at)
            assert frame is not None and frame[0] == 4
            found.append((None, [frame[2]]))
            at = frame[3]
    wanted: list[tuple[Any, list[bytes]]] = []
    for sid, payload in said:
        sink = sinks.get(sid)
        if sink is not None and wanted and wanted[-1][0] is sink:
            wanted[-1][1].append(payload)
        else:
            wanted.append((sink, [payload]))
    assert found == wanted


@pytest.mark.parametrize(
    "other",
    [
        b"HMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        b"PING\r\n",
        b"+OK\r\n",
        b"MSG a x 1\r\nx\r\n",
        b"MSG a 1 -1\r\nx\r\n",
        b"MSG a 1\r\nx\r\n",
        b"MSG a 1 r s 1\r\nx\r\n",
        b"MSG  1 1\r\nx\r\n",
        b"MSG a 1 1\r\nxyz",
        b"MSG " + b"a" * 5000 + b" 1 1\r\nx\r\n",
    ],
)
def test_whatever_else_comes_is_for_the_library(other: bytes) -> None:
    assert read_frame(other, 0) is None
    assert read_run(other, 0, {1: list}) is None


class Socket:
    """A transport, as far as its protocol goes."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol


async def through_a_shortcut(
    parts: list[bytes], rng: random.Random, *, batches: bool
) -> list[bytes]:
    """What a plain handler, or a sink, gets of these bytes, while the library's reader is late at
    times."""
    client = _Client(lambda: None)
    got: list[bytes] = []
    if batches:
        client.sinks[1] = got.extend
    else:
        subscription = cast(Any, SimpleNamespace(pending_msgs=0))
        client.plain[1] = subscription, lambda _, payload: got.append(payload)
    reader = asyncio.StreamReader()
    socket = Socket(asyncio.StreamReaderProtocol(reader))
    writer = SimpleNamespace(transport=socket)
    client._transport = cast(Any, SimpleNamespace(_io_reader=reader, _io_writer=writer))
    client.shorten()

    async def read_on() -> None:
        if reader._buffer:  # type: ignore[attr-defined]
            await client._ps.parse(await reader.read(1 << 16))

    for part in parts:
        socket.get_protocol().data_received(part)
        if rng.random() < 0.7:
            await read_on()
        await asyncio.sleep(0)  # another turn
    await read_on()
    return got


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("seed", range(60))
async def test_messages_cut_anywhere_come_once_and_in_order(seed: int, batches: bool) -> None:
    rng = random.Random(seed)
    payloads = [b"%d:" % n + rng.randbytes(rng.randrange(40)) for n in range(14)]
    said = b""
    for payload in payloads:
        said += rng.choice([b"", b"+OK\r\n", message(2, "b", b"MSG a 1 1\r\nx\r\n")])
        if rng.random() < 0.2:
            head = b"NATS/1.0\r\n\r\n"
            said += b"HMSG a 1 %d %d\r\n" % (len(head), len(head) + len(payload))
            said += head + payload + b"\r\n"
        else:
            said += message(1, "a", payload)
    cuts = sorted(rng.randrange(len(said)) for _ in range(rng.randrange(9)))
    parts = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    assert await through_a_shortcut(parts, rng, batches=batches) == payloads


async def heard_over(server: EmbeddedNats, connections: int) -> list[NatsShortcut]:
    """One message over each connection in a row; those that were read the short way."""
    plane = NatsPlane(server.url, backoff=Backoff(0.005, 0.05))
    got: list[bytes] = []
    found = []
    try:
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        for number in range(1, connections + 1):
            await until(lambda number=number: plane.stats.connects == number)
            await until(lambda: plane.state is PlaneState.CONNECTED)
            await plane.publish("a", b"word")
            await until(lambda number=number: len(got) == number)
            link: Any = plane._link
            transport = link._client._transport._io_writer.transport
            protocol = transport.get_protocol()
            if isinstance(protocol, NatsShortcut):
                found.append(protocol)
            transport.abort()
    finally:
        await plane.close()
    return found


async def test_each_connection_is_read_the_short_way(nats: EmbeddedNats) -> None:
    assert len(set(await heard_over(nats, 3))) == 3


async def test_another_library_reads_by_itself_which_is_said_once(
    nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "parsing", SimpleNamespace())
    _log_slow_reading.cache_clear()
    with capture_logs() as lines:
        assert await heard_over(nats, 2) == []
    assert sum("nats-py" in line["event"] for line in lines) == 1
