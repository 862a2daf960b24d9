"""The session kernel without sockets: a client and a server of it, and peers written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from dynamo_router.transport.http2._session import Session, SessionError
from dynamo_router.transport.http2._streams import (
    DRAINED,
    END,
    GOAWAY,
    HALF_CLOSED,
    HEADERS,
    MESSAGE,
    Stream,
)
from dynamo_router.transport.http2.library import make_session

WINDOW = 65_536


# What goes in comes out


@given(
    question=st.binary(max_size=3000),
    answers=st.lists(st.binary(max_size=2000), max_size=8),
    pieces=st.lists(st.integers(1, 700), min_size=1, max_size=5),
    text=st.text("abc -~", max_size=20),
)
def test_a_call_arrives_however_its_bytes_are_split(
    question: bytes, answers: list[bytes], pieces: list[int], text: str
) -> None:
    client, server = pair(window_bytes=WINDOW)
    more = ((b"x-a", text.strip().encode()),)
    call = client.request(HEAD, more, question)
    carry(client, server, pieces)
    stream = asked_with(server, [*HEAD, *more], question)
    server.respond(stream, OK)
    for answer in answers:
        server.write(stream, answer)
    server.finish(stream, TRAILERS)
    exchange(client, server, pieces)
    messages = [(MESSAGE, answer) for answer in answers]
    assert told(client, call) == [(HEADERS, list(OK)), *messages, (END, 0)]
    assert call.trailers == list(TRAILERS) and call.violation == 0 and call.ended
    assert len(client) == len(server) == 0


def asked_with(server: Session, headers: list[tuple[bytes, bytes]], question: bytes) -> Stream:
    events = [event for event in server.take_events() if event[0] is not None]
    stream: Stream = events[0][0]
    assert [event[1:] for event in events] == [
        (HEADERS, headers),
        (MESSAGE, question),
        (HALF_CLOSED, None),
    ]
    return stream


def test_many_calls_at_once_do_not_mix() -> None:
    client, server = pair()
    calls = [client.request(HEAD, (), bytes([n]) * 3000) for n in range(50)]
    exchange(client, server)
    said = {s.id: v for s, kind, v in server.take_events() if s is not None and kind == MESSAGE}
    assert said == {call.id: bytes([n]) * 3000 for n, call in enumerate(calls)}


def test_a_message_may_be_larger_than_the_window() -> None:
    client, server = pair(window_bytes=WINDOW)
    call = client.request(HEAD, (), b"q" * 1_000_000)
    exchange(client, server)
    stream = asked(server)
    server.respond(stream, OK)
    server.write(stream, b"a" * 1_000_000)
    server.finish(stream, TRAILERS)
    exchange(client, server)
    events = told(client, call)
    assert events[1] == (MESSAGE, b"a" * 1_000_000) and events[-1] == (END, 0)


def test_informational_headers_come_before_those_of_the_answer() -> None:
    client, call = client_of_raw()
    feed(client, raw.headers(1, ((b":status", b"103"),)) + raw.headers(1))
    assert told(client, call) == [(HEADERS, list(OK))]


# Windows


def test_what_nobody_reads_stops_the_sender_at_the_window() -> None:
    client, server = pair(window_bytes=WINDOW)
    call = client.request(HEAD, (), b"")
    carry(client, server)
    stream = asked(server)
    stream.wants_drained = True
    server.respond(stream, OK)
    for _ in range(100):
        server.write(stream, bytes(10_000))
    exchange(client, server)
    unread = [value for kind, value in told(client, call) if kind == MESSAGE]
    assert len(unread) == WINDOW // 10_005 and stream.queued >= 100 * 10_005 - WINDOW
    got = 0
    while got < 100:  # as fast as it is read, it comes
        assert unread, "the sender was not let go on"
        for message in unread:
            client.take(call, len(message))
        got += len(unread)
        exchange(client, server)
        unread = [value for kind, value in told(client, call) if kind == MESSAGE]
    assert stream.queued == 0 and told(server, stream) == [(DRAINED, None)]


def test_a_slow_stream_does_not_stop_the_others() -> None:
    client, server = pair(window_bytes=WINDOW)
    for _ in range(40):  # more than a connection's first window, all unread
        slow = client.request(HEAD, (), b"")
        carry(client, server)
        stream = asked(server)
        server.respond(stream, OK)
        server.write(stream, bytes(60_000))
        exchange(client, server)
        assert (MESSAGE, bytes(60_000)) in told(client, slow)


def test_a_window_that_shrinks_under_a_request() -> None:
    client = make_session(server=False)
    client.request(HEAD, (), bytes(100_000))
    feed(client, raw.settings())
    sent = body_of(client)
    assert sent == 65_535  # HTTP/2's first window
    feed(client, raw.settings((raw.INITIAL_WINDOW_SIZE, 1000)))
    feed(client, raw.window_update(0, 1 << 20))
    assert body_of(client) == 0  # the stream's window is below zero
    feed(client, raw.window_update(1, 64_535))
    assert body_of(client) == 0  # now it is zero
    feed(client, raw.window_update(1, 7))
    assert body_of(client) == 7
    feed(client, raw.window_update(1, 1 << 20))
    assert body_of(client) == 100_005 - 65_535 - 7


def body_of(client: Session) -> int:
    return sum(len(f.payload) for f in raw.parse(client.send(1 << 20)) if f.kind == raw.DATA)


# Endings


def test_a_reset_ends_the_call_with_its_code() -> None:
    client, call = client_of_raw()
    feed(client, raw.headers(1) + raw.frame(raw.RST_STREAM, 1, (2).to_bytes(4, "big")))
    assert told(client, call) == [(HEADERS, list(OK)), (END, 2)]


def test_calls_that_a_goaway_leaves_out_were_not_looked_at() -> None:
    client, first = client_of_raw()
    second = client.request(HEAD, (), b"")
    client.send(1 << 20)
    feed(client, raw.frame(raw.GOAWAY, 0, (1).to_bytes(4, "big") + bytes(4)))
    client.send(100)
    events = client.take_events()
    assert (None, GOAWAY, (1, 0)) in events and (second, END, 7) in events
    feed(client, raw.headers(1, (*OK, *TRAILERS), end=True))
    client.send(100)
    assert told(client, first)[-1] == (END, 0) and client.is_over


def test_of_a_call_that_was_dropped_nothing_is_told() -> None:
    client, call = client_of_raw()
    client.drop(call)
    feed(client, raw.headers(1) + raw.data(1, raw.message(b"late")))
    assert [f.kind for f in raw.parse(client.send(1 << 20)) if f.stream == 1] == [raw.RST_STREAM]
    assert told(client) == [] and len(client) == 0


def test_a_call_that_was_dropped_before_it_was_sent_is_not_sent() -> None:
    client = make_session(server=False)
    call = client.request(HEAD, (), b"question")
    client.drop(call)
    sent = [f for f in raw.parse(client.send(1 << 20)) if f.stream == 1]
    assert not [f for f in sent if f.kind in (raw.HEADERS, raw.DATA)]
    assert not call.begun and told(client) == [] and len(client) == 0


def test_a_server_hears_of_a_client_that_gives_up() -> None:
    client, server = pair()
    call = client.request(HEAD, (), b"")
    carry(client, server)
    stream = asked(server)
    server.respond(stream, OK)
    server.write(stream, b"never read")
    client.drop(call)
    carry(client, server)
    assert told(server, stream) == [(END, 8)]
    server.write(stream, b"nobody is there")
    server.finish(stream, TRAILERS)
    assert len(server) == 0


def test_closing_gives_back_the_calls_that_had_not_ended() -> None:
    client, call = client_of_raw()
    dropped = client.request(HEAD, (), b"")
    client.drop(dropped)
    assert client.close() == [call] and client.is_over
    assert client.send(100) == b"" and client.close() == []
    with pytest.raises(SessionError):
        client.request(HEAD, (), b"")
