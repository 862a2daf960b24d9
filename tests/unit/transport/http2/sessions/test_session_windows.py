"""Windows of a client's streams: small for what nobody reads, larger for who keeps up."""

import pytest
from support.servers import http2_frames as raw
from support.servers.http2_sessions import (
    HEAD,
    OK,
    TRAILERS,
    asked,
    carry,
    client_of_raw,
    exchange,
    feed,
    pair,
    told,
)

from dynamo_router.transport.http2._session import Session
from dynamo_router.transport.http2._streams import END, MESSAGE, Stream

FIRST, MOST = 16 << 10, 256 << 10
FLOW = 3  # FLOW_CONTROL_ERROR
SMALL = 1019  # of a message, 1 KiB with its head
LIMITS = {"window_bytes": MOST, "first_window_bytes": FIRST}


def answering(message: bytes, times: int, *, wide: bool = False) -> tuple[Session, Stream, Session]:
    """A client, its call, and the server, which has as much to say as that."""
    client, server = pair(**LIMITS)
    exchange(client, server)
    call = client.request(HEAD, (), b"", wide)
    carry(client, server)
    stream = asked(server)
    server.respond(stream, OK)
    for _ in range(times):
        server.write(stream, message)
    server.finish(stream, TRAILERS)
    return client, call, server


def come(client: Session, call: Stream, server: Session) -> int:
    """How many messages come if none is taken."""
    exchange(client, server)
    return sum(kind == MESSAGE for kind, _ in told(client, call))


def test_of_a_stream_that_nobody_reads_the_first_window_comes() -> None:
    assert come(*answering(bytes(SMALL), 1000)) == FIRST >> 10


def test_beside_messages_that_nobody_reads_one_may_be_larger_than_the_first_window() -> None:
    assert come(*answering(bytes(40_000), 100)) == 1


def test_what_is_read_now_and_then_does_not_widen_the_window() -> None:
    client, call, server = answering(bytes(SMALL), 1000)
    unread = come(client, call, server)
    for _ in range(3):
        for _ in range(unread):
            client.take(call, SMALL)
        unread = come(client, call, server)
        assert unread == FIRST >> 10


def test_the_window_grows_with_what_is_read() -> None:
    client, call, server = answering(bytes(SMALL), 20_000)
    unread, windows = come(client, call, server), []
    while unread:
        windows.append(unread << 10)
        for _ in range(unread):
            client.take(call, SMALL)
        unread = come(client, call, server)
    assert windows == sorted(windows[:-1]) + windows[-1:]  # the last is what was left
    assert set(windows[:-1]) >= {FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, MOST}
    assert max(windows) <= MOST + 2 * FIRST and sum(windows) == 20_000 << 10


def test_a_wide_call_has_the_largest_window_from_the_start() -> None:
    assert come(*answering(bytes(SMALL), 1000, wide=True)) == MOST >> 10


def test_of_wide_and_other_calls_each_has_its_window() -> None:
    client, server = pair(**LIMITS)
    exchange(client, server)
    calls = [client.request(HEAD, (), b"", wide) for wide in (False, True, False)]
    carry(client, server)
    for stream in [event[0] for event in server.take_events() if event[1] == MESSAGE]:
        server.respond(stream, OK)
        for _ in range(400):
            server.write(stream, bytes(SMALL))
    exchange(client, server)
    messages = [event[0] for event in client.take_events() if event[1] == MESSAGE]
    assert [messages.count(call) << 10 for call in calls] == [FIRST, MOST, FIRST]


@pytest.mark.parametrize("size", [FIRST - 5, FIRST - 4, FIRST, 5 * FIRST, MOST + 1, 4 << 20])
def test_a_message_larger_than_the_window_comes_whole(size: int) -> None:
    client, call, server = answering(b"a" * size, 3)
    got = []
    while (END, 0) not in got:
        exchange(client, server)
        events = told(client, call)
        assert events, "nothing comes any more"
        for kind, value in events:
            if kind == MESSAGE:
                client.take(call, len(value))
        got += events
    assert [value for kind, value in got if kind == MESSAGE] == [b"a" * size] * 3


def test_a_large_message_does_not_take_a_round_trip_for_each_small_window() -> None:
    client, _, server = answering(bytes(4 << 20), 1)
    trips = 0
    while carry(server, client):
        carry(client, server)
        trips += 1
    assert trips <= (4 << 20) // (MOST // 2) + 3


@pytest.mark.parametrize(("wide", "window"), [(False, FIRST), (True, MOST)])
def test_an_engine_that_sends_more_than_the_window_loses_the_connection(
    wide: bool, window: int
) -> None:
    client, server = pair(**LIMITS)
    exchange(client, server)
    call = client.request(HEAD, (), b"", wide)
    client.send(1 << 20)
    unread = raw.data(call.id, raw.message(bytes(SMALL)))
    feed(client, raw.headers(call.id) + unread * (window >> 10))
    assert told(client, call)[1:] == [(MESSAGE, bytes(SMALL))] * (window >> 10)
    assert not client.is_over
    feed(client, unread)
    (given_up,) = raw.parse(client.send(1 << 20))
    assert (given_up.kind, given_up.payload[-4:]) == (raw.GOAWAY, FLOW.to_bytes(4, "big"))
    assert client.is_over and told(client, call) == []


def test_an_engine_that_has_not_acknowledged_the_settings_may_send_as_http2_lets_it() -> None:
    client, call = client_of_raw(**LIMITS)
    messages = raw.data(call.id, raw.message(bytes(SMALL))) * 63
    feed(client, raw.headers(call.id) + messages)
    assert told(client, call)[1:] == [(MESSAGE, bytes(SMALL))] * 63
