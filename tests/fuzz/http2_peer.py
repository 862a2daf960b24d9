"""A session of HTTP/2 whose peer sends any bytes."""

from collections.abc import Sequence

from fuzz.guarded import Guarded
from support.servers import http2_frames as raw

from dynamo_router.transport.http2 import load_library
from dynamo_router.transport.http2._session import Session, SessionError
from dynamo_router.transport.http2._streams import END, HEADERS, MESSAGE, Stream
from dynamo_router.transport.http2.library import make_session

MOST_BYTES, MOST_HEADER_BYTES, MOST_STREAMS = 1000, 2000, 4
LONGEST = 1 << 16
HEAD = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"h"))
OK, TRAILERS = ((b":status", b"200"),), ((b"grpc-status", b"0"),)
_memory = Guarded(LONGEST)


def check_http2(data: bytes) -> None:
    """The first byte says which side we are (1: server) and in what pieces the others arrive."""
    if not data or load_library().version is None:
        return
    server = bool(data[0] & 1)
    session = make_session(
        server=server,
        window_bytes=1 << 16,
        first_window_bytes=1 << 12,
        max_message_bytes=MOST_BYTES,
        max_header_bytes=MOST_HEADER_BYTES,
        max_streams=MOST_STREAMS,
    )
    if not server:
        for n in range(3):
            session.request(HEAD, (), bytes(n * 50_000), n == 2)
    seen: dict[Stream, bool] = {}  # a stream told of -> whether it ended
    size, rest = 1 + (data[0] >> 1) * 8, data[1:]
    try:
        session.send(1 << 20)
        while rest and not session.is_over:
            piece, rest = _memory.put(rest[:size]), rest[size:]
            session.receive(piece, len(piece))
            _hear(session, seen, server)
            assert len(session) <= (MOST_STREAMS if server else 3)
    except SessionError:
        pass
    left = session.close()
    assert not any(seen.get(stream, False) for stream in left)
    assert session.is_over


def _hear(session: Session, seen: dict[Stream, bool], server: bool) -> None:
    for more in (True, False):
        for stream, kind, value in session.take_events():
            if stream is None:
                continue
            assert not seen.get(stream, False), "an event after the end"
            seen[stream] = kind == END
            if kind == MESSAGE:
                assert len(value) <= MOST_BYTES
                session.take(stream, len(value))
            if kind == HEADERS:
                assert sum(len(k) + len(v) for k, v in value) <= MOST_HEADER_BYTES
                if server:
                    session.respond(stream, OK)
                    session.write(stream, b"answer")
                    session.finish(stream, TRAILERS)
        if more:
            session.send(1 << 20)


def http2_seeds() -> Sequence[bytes]:
    """Conversations of either side, and what is at the edge of the rules."""
    ask = raw.PREFACE + raw.settings((raw.INITIAL_WINDOW_SIZE, 70_000))
    ask += raw.frame(raw.SETTINGS, flags=raw.ACK) + raw.window_update(0, 1 << 20)
    call = raw.headers(1, HEAD) + raw.data(1, raw.message(b"question"), end=True)
    answer = raw.settings() + raw.frame(raw.SETTINGS, flags=raw.ACK)
    answer += raw.headers(1) + raw.data(1, raw.message(b"a") + raw.message(b"b" * 300))
    end = raw.headers(1, TRAILERS, end=True)
    shrinks = raw.settings((raw.INITIAL_WINDOW_SIZE, 10)) + raw.window_update(3, 60_000)
    goes = raw.frame(raw.GOAWAY, 0, (1).to_bytes(4, "big") + bytes(4))
    reset = raw.frame(raw.RST_STREAM, 1, (8).to_bytes(4, "big"))
    whole, small = bytes((254,)), bytes((2,))
    return [
        bytes((255,)) + ask + call + raw.headers(3, HEAD, end=True),
        bytes((3,)) + ask + call + raw.frame(raw.PING, 0, bytes(8)),
        bytes((255,)) + ask + call + reset + raw.headers(3, HEAD, ends_headers=False),
        bytes((255,)) + ask + b"".join(raw.headers(n, HEAD) for n in range(1, 15, 2)),
        whole + answer + end,
        small + answer + shrinks + end,
        whole + answer + goes + raw.frame(raw.PING, 0, bytes(8), raw.ACK),
        whole + answer + reset + raw.headers(3, ((b"x", b"y" * 3000),)),
        whole + answer + raw.data(1, raw.message(b"x" * 1001)),
        whole + answer + raw.data(1, raw.message(b"x", compressed=True)),
    ]
