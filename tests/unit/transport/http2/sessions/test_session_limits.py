"""What a session takes of a peer that keeps to no rule, and what it does then."""

import pytest
from support.servers import http2_frames as raw
from support.servers.http2_sessions import (
    HEAD,
    OK,
    TRAILERS,
    carry,
    client_of_raw,
    exchange,
    feed,
    pair,
    told,
)

from dynamo_router.transport.http2._session import SessionError
from dynamo_router.transport.http2._streams import (
    END,
    HEADERS,
    HEADERS_TOO_LONG,
    MESSAGE,
    MESSAGE_COMPRESSED,
    MESSAGE_CUT,
    MESSAGE_TOO_LONG,
    SETTINGS,
)
from dynamo_router.transport.http2.library import make_session


@pytest.mark.parametrize(
    ("answer", "violation"),
    [
        (raw.message(b"x" * 2000), MESSAGE_TOO_LONG),
        (b"\0\xff\xff\xff\xff", MESSAGE_TOO_LONG),
        (raw.message(b"x", compressed=True), MESSAGE_COMPRESSED),
    ],
)
def test_a_message_that_we_do_not_take_ends_its_call_only(answer: bytes, violation: int) -> None:
    client, call = client_of_raw(max_message_bytes=1000)
    other = client.request(HEAD, (), b"")
    feed(client, raw.headers(1) + raw.data(1, raw.message(b"first") + answer + b"more"))
    assert [f.kind for f in raw.parse(client.send(1 << 20)) if f.stream == 1] == [raw.RST_STREAM]
    assert told(client, call) == [(HEADERS, list(OK)), (MESSAGE, b"first"), (END, 8)]
    assert call.violation == violation
    feed(client, raw.headers(3) + raw.data(3, raw.message(b"fine")))
    assert (MESSAGE, b"fine") in told(client, other)


@pytest.mark.parametrize("late", [True, False], ids=["trailers", "headers"])
def test_headers_that_are_too_long_end_their_call(late: bool) -> None:
    client, call = client_of_raw(max_header_bytes=4000)
    long = tuple((b"x-%d" % n, b"v" * 100) for n in range(60))
    if late:
        feed(client, raw.headers(1) + raw.headers(1, long, end=True))
    else:
        feed(client, raw.headers(1, (*OK, *long)))
    client.send(1 << 20)
    assert told(client, call)[-1][0] == END and call.violation == HEADERS_TOO_LONG
    assert sum(len(n) + len(v) for n, v in (*call.headers, *call.trailers)) <= 4000


def test_a_stream_that_ends_within_a_message() -> None:
    client, call = client_of_raw()
    half = raw.message(b"whole") + raw.message(b"half")[:-1]
    feed(client, raw.headers(1) + raw.data(1, half) + raw.headers(1, TRAILERS, end=True))
    client.send(100)
    assert told(client, call) == [(HEADERS, list(OK)), (MESSAGE, b"whole"), (END, 0)]
    assert call.violation == MESSAGE_CUT


def test_a_header_without_a_name_is_no_header() -> None:
    client, call = client_of_raw()
    feed(client, raw.headers(1, (*OK, (b"", b"value"), (b"x", b"y"))))
    assert told(client, call) == [(HEADERS, [*OK, (b"x", b"y")])]


def test_streams_beyond_the_limit_wait_at_the_client() -> None:
    client, server = pair(max_streams=2)
    exchange(client, server)
    for n in range(5):
        client.request(HEAD, (), b"%d" % n)
    carry(client, server)
    open_now = [e[0] for e in server.take_events() if e[1] == HEADERS]
    assert len(open_now) == 2
    server.refuse(open_now[0], (*OK, *TRAILERS))
    exchange(client, server)
    assert [e[2] for e in server.take_events() if e[1] == MESSAGE] == [b"2"]


@pytest.mark.parametrize("knows", [True, False])
def test_a_client_that_ignores_the_limit_on_streams_is_refused(knows: bool) -> None:
    server = make_session(server=True, max_streams=1)
    server.send(1 << 20)
    feed(server, raw.PREFACE + raw.settings())
    if knows:
        feed(server, raw.frame(raw.SETTINGS, flags=raw.ACK))
    feed(server, raw.headers(1, HEAD) + raw.headers(3, HEAD))
    sent = {f.kind: f for f in raw.parse(server.send(1 << 20))}
    assert len(server) == 1
    if knows:
        assert raw.GOAWAY in sent
    else:
        refused = sent[raw.RST_STREAM]
        assert (refused.stream, refused.payload) == (3, b"\0\0\0\7")


# Peers that mean no good


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(raw.frame(raw.PING, 0, bytes(8)), id="pings"),
        pytest.param(raw.settings((raw.MAX_CONCURRENT_STREAMS, 7)), id="settings"),
    ],
)
@pytest.mark.parametrize("server", [True, False])
def test_a_flood_that_asks_for_answers_ends_the_connection(flood: bytes, server: bool) -> None:
    session = make_session(server=server)
    feed(session, (raw.PREFACE if server else b"") + raw.settings())
    with pytest.raises(SessionError):
        for _ in range(10_000):
            feed(session, flood)


def test_calls_that_are_reset_as_fast_as_they_are_made_end_the_connection() -> None:
    server = make_session(server=True)
    feed(server, raw.PREFACE + raw.settings())
    reset = bytes(3) + b"\x08"
    most = 0
    for first in range(1, 1_000_000, 200):  # what is allowed grows with the time that it takes
        some = range(first, first + 200, 2)
        calls = (raw.headers(n, HEAD) + raw.frame(raw.RST_STREAM, n, reset) for n in some)
        feed(server, b"".join(calls))
        most = max(most, len(server))
        if raw.GOAWAY in [f.kind for f in raw.parse(server.send(1 << 20))]:
            break
    else:
        raise AssertionError("it went on")
    assert most <= 1


def test_headers_that_never_end_end_the_connection() -> None:
    server = make_session(server=True)
    feed(server, raw.PREFACE + raw.settings() + raw.headers(1, HEAD, ends_headers=False))
    more = raw.frame(raw.CONTINUATION, 1, raw.block(((b"x", b"y" * 1000),)))
    with pytest.raises(SessionError):
        for _ in range(1000):
            feed(server, more)
            if raw.GOAWAY in [f.kind for f in raw.parse(server.send(1 << 20))]:
                raise SessionError
    assert told(server) == []


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 100, bytes(100)])
def test_what_is_no_http2_ends_the_connection(server: bool, said: bytes) -> None:
    session = make_session(server=server)
    session.send(1 << 20)
    with pytest.raises(SessionError):
        feed(session, said)
        if raw.GOAWAY in [f.kind for f in raw.parse(session.send(1 << 20))] and session.is_over:
            raise SessionError


def test_a_huge_header_table_is_not_used() -> None:
    client = make_session(server=False)
    feed(client, raw.settings((raw.HEADER_TABLE_SIZE, 2**32 - 1)))
    for n in range(200):
        client.request((*HEAD, (b"x-%d" % n, b"v" * 100)), (), b"")
    assert (None, SETTINGS, None) in client.take_events()
    assert len(client.send(1 << 24)) > 200 * 100  # a header that repeats no other is spelled out


def test_headers_that_grow_far_beyond_their_bytes_are_not_read_to_the_end() -> None:
    """A byte of HPACK repeats a header of 3 kB: their stream is reset, and others go on."""
    server = make_session(server=True, max_header_bytes=4000)
    feed(server, raw.PREFACE + raw.settings())
    indexed = raw.block(((b"x", b"y" * 3000),)).replace(b"\0", b"\x40", 1)
    bomb = raw.block(HEAD) + indexed + b"\xbe" * 10_000
    feed(server, raw.frame(raw.HEADERS, 1, bomb, raw.END_HEADERS) + raw.headers(3, HEAD))
    sent = [f for f in raw.parse(server.send(1 << 20)) if f.kind == raw.RST_STREAM]
    assert [frame.stream for frame in sent] == [1]
    events = [(stream.id, kind) for stream, kind, _ in server.take_events() if stream is not None]
    assert events == [(3, HEADERS), (1, END)]


@pytest.mark.parametrize("size", [7, 100, 1 << 20])
def test_so_many_calls_begin_at_a_time_and_the_rest_is_taken_later(size: int) -> None:
    server = make_session(server=True)
    server.most_new = 3
    left = raw.PREFACE + raw.settings()
    left += b"".join(
        raw.headers(n, HEAD) + raw.data(n, raw.message(b"%d" % n), end=True)
        for n in range(1, 21, 2)
    )
    begun, messages = [], []
    while left:
        taken = server.receive(left, min(size, len(left)))
        left = left[taken:]
        events = [event for event in server.take_events() if event[0] is not None]
        now = [stream.id for stream, kind, _ in events if kind == HEADERS]
        assert len(now) <= 3
        begun += now
        messages += [value for _, kind, value in events if kind == MESSAGE]
    assert begun == list(range(1, 21, 2)) and messages == [b"%d" % n for n in begun]
