"""Which nghttp2 there is: that of the pycurl package, or the system's; and whether it works.

It is loaded once, by address (_nghttp2.pyx). Nothing of pycurl itself is imported.
"""

import ctypes.util
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ...base.errors import ConfigError
from . import _nghttp2
from ._session import Session
from ._streams import END, GOAWAY, HALF_CLOSED, HEADERS, MESSAGE

SYSTEM_NAME = "libnghttp2.so.14"


@dataclass(frozen=True)
class Library:
    """The nghttp2 in use. `version` is None if there is none, and `reason` says why."""

    version: str | None
    path: str = ""
    reason: str = ""


@cache
def load_library() -> Library:
    """Find nghttp2 and bind it, the first time; the same answer ever after."""
    reasons = []
    for path in _candidates():
        try:
            version = _nghttp2.bind(path.encode())
            check_exchange()
            return Library(version, path)
        except (ImportError, AssertionError) as error:
            reasons.append(str(error))
    wanted = ".".join(map(str, _nghttp2.OLDEST))
    text = f"no nghttp2 {wanted} or newer, in pycurl or of the system"
    return Library(None, reason=f"{text} ({'; '.join(reasons) or 'none found'})")


def require_library() -> None:
    """ConfigError if there is no nghttp2 that works: no gRPC call can be made or served then."""
    if reason := load_library().reason:
        text = f"gRPC needs nghttp2: {reason}; install the package pycurl or the system's nghttp2"
        raise ConfigError(text)


def _candidates() -> list[str]:
    """Where a library may be; that of the pycurl wheel has a mangled name."""
    found: list[str] = []
    spec = find_spec("pycurl")
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin).parent
        for folder in (origin, origin.parent):
            found += map(str, sorted(folder.glob("pycurl.libs/libnghttp2[-.]*so*")))
    system = ctypes.util.find_library("nghttp2") or SYSTEM_NAME
    return list(dict.fromkeys((*found, SYSTEM_NAME, system)))


def check_exchange() -> None:
    """One call between a client and a server in memory. AssertionError if what comes out is not
    what went in: then the library is not what our declarations say it is.
    """
    client, server = make_session(server=False), make_session(server=True)
    head = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a/B"),
        (b":authority", b"c"),
    )
    call = client.request(head, ((b"x", b"1"),), b"question")
    _carry(client, server)
    arrived = [event for event in server.take_events() if event[0] is not None]
    assert [event[1] for event in arrived] == [HEADERS, MESSAGE, HALF_CLOSED], "a request"
    (asked, _, _), *rest = arrived
    assert asked.headers == [*head, (b"x", b"1")], "headers"
    assert rest == [(asked, MESSAGE, b"question"), (asked, HALF_CLOSED, None)], "messages"
    server.respond(asked, ((b":status", b"200"),))
    server.write(asked, b"answer" * 10_000)
    server.finish(asked, ((b"grpc-status", b"0"),))
    server.goaway(7)
    for _ in range(4):  # the answer is larger than a frame
        _carry(server, client)
        _carry(client, server)
    events = client.take_events()
    of_call = [event[1:] for event in events if event[0] is call]
    answered = [(HEADERS, [(b":status", b"200")]), (MESSAGE, b"answer" * 10_000), (END, 0)]
    assert of_call == answered, "the answer"
    assert call.trailers == [(b"grpc-status", b"0")], "trailers"
    assert (None, GOAWAY, (asked.id, 7)) in events, "GOAWAY"


def make_session(
    *,
    server: bool,
    window_bytes: int = 256 << 10,
    first_window_bytes: int | None = None,
    max_message_bytes: int = 32 << 20,
    max_header_bytes: int = 16 << 10,
    max_streams: int = 100,
) -> Session:
    """A session with these limits. `window_bytes` is what the peer may send ahead in a stream that
    is read, `first_window_bytes` in one of which little was; None: the same.
    """
    return Session(
        server=server,
        window_bytes=window_bytes,
        first_window_bytes=min(first_window_bytes or window_bytes, window_bytes),
        max_message_bytes=max_message_bytes,
        max_header_bytes=max_header_bytes,
        max_streams=max_streams,
    )


def _carry(source: Session, target: Session) -> None:
    data = source.send(1 << 20)
    target.receive(data, len(data))
