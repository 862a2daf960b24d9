"""Sessions of HTTP/2 in memory: two that talk to each other, or one and what a test feeds it."""

from typing import Any

from support.servers import http2_frames as raw

from dynamo_router.transport.http2._session import Session
from dynamo_router.transport.http2._streams import HEADERS, Stream
from dynamo_router.transport.http2.library import make_session

HEAD = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"here"),
    (b"te", b"trailers"),
)
OK = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)


def pair(**limits: Any) -> tuple[Session, Session]:
    return make_session(server=False, **limits), make_session(server=True, **limits)


def carry(source: Session, target: Session, pieces: list[int] | None = None) -> int:
    """Everything that one side has to send, in pieces of these sizes, over and over; its size."""
    data = source.send(1 << 24)
    at, turn = 0, 0
    while at < len(data):
        size = len(data) if not pieces else pieces[turn % len(pieces)]
        part = data[at : at + size]
        target.receive(part, len(part))
        at, turn = at + size, turn + 1
    return len(data)


def exchange(client: Session, server: Session, pieces: list[int] | None = None) -> None:
    """Until neither has anything to send."""
    while carry(client, server, pieces) + carry(server, client, pieces):
        pass


def told(session: Session, stream: Stream | None = None) -> list[tuple[int, Any]]:
    """The events of one stream, or of whichever there is."""
    events = session.take_events()
    return [e[1:] for e in events if e[0] is not None and stream in (None, e[0])]


def asked(server: Session) -> Stream:
    """The stream of the request that came."""
    return next(stream for stream, kind, _ in server.take_events() if kind == HEADERS)


def client_of_raw(**limits: Any) -> tuple[Session, Stream]:
    """A client that has made a call, of a server that the test writes."""
    client = make_session(server=False, **limits)
    call = client.request(HEAD, (), b"question")
    client.send(1 << 20)
    feed(client, raw.settings())
    client.take_events()
    return client, call


def feed(session: Session, data: bytes) -> None:
    session.receive(data, len(data))
