"""What the headers of a request ask for, or why it is refused; how an answer's begin. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from ...base.errors import StatusCode
from .wire import Header, decode_metadata, decode_timeout, encode_message

GRPC_TYPE = b"application/grpc"
ANSWER_HEAD: tuple[Header, ...] = ((b":status", b"200"), (b"content-type", GRPC_TYPE))
_STATUS = tuple(b"%d" % code for code in range(17))
DONE: tuple[Header, ...] = ((b"grpc-status", b"0"),)


class RequestHead(NamedTuple):
    """A call. `timeout_s` is None if its client waits for ever; `metadata` is the application's."""

    path: bytes
    timeout_s: float | None
    metadata: tuple[tuple[str, str | bytes], ...] = ()


class Refusal(NamedTuple):
    """The headers of an answer that is nothing else; its status, of gRPC or HTTP, and why."""

    headers: tuple[Header, ...]
    status: str
    why: str


def read_head(headers: Sequence[Header]) -> RequestHead | Refusal:
    """Read a request's headers, which nghttp2 has found to be HTTP's."""
    method = path = kind = b""
    timeout_s: float | None = None
    authorized = False
    for name, value in headers:
        if name == b":method":
            method = value
        elif name == b":path":
            path = value
        elif name == b"content-type":
            kind = value
        elif name == b"grpc-timeout":
            timeout_s = decode_timeout(value)
            if timeout_s is None:
                return _refusal(StatusCode.INTERNAL, "grpc-timeout is no time")
        elif name == b"authorization":
            if authorized:
                text = "a call has authorization once at most"
                return _refusal(StatusCode.INVALID_ARGUMENT, text)
            authorized = True
    if method != b"POST":
        return Refusal(((b":status", b"405"), (b"allow", b"POST")), "405", "a call is a POST")
    if kind != GRPC_TYPE and not kind.startswith((b"application/grpc+", b"application/grpc;")):
        unread: tuple[Header, ...] = ((b":status", b"415"), (b"accept", GRPC_TYPE))
        return Refusal(unread, "415", "a call is application/grpc")
    return RequestHead(path, timeout_s, decode_metadata(headers))


class HeadReader:
    """Reads those of one connection: the calls of one client mostly have the same headers."""

    __slots__ = ("_headers", "_read")

    def __init__(self) -> None:
        self._headers: Sequence[Header] = ()
        self._read = read_head(())

    def read(self, headers: Sequence[Header]) -> RequestHead | Refusal:
        """As `read_head`; the headers are not changed afterwards."""
        if headers != self._headers:
            self._read = read_head(headers)
            self._headers = headers
        return self._read


def _refusal(code: StatusCode, why: str) -> Refusal:
    return Refusal(status_head(code, why), code.name, why)


def status_head(code: int, text: str, more: tuple[Header, ...] = ()) -> tuple[Header, ...]:
    """An answer without a message."""
    return (*ANSWER_HEAD, *status_trailers(code, text, more))


def status_trailers(code: int, text: str, more: tuple[Header, ...] = ()) -> tuple[Header, ...]:
    """The end of an answer."""
    if not code and not text:
        return (*DONE, *more) if more else DONE
    trailers: tuple[Header, ...] = ((b"grpc-status", _STATUS[code]),)
    if text:
        trailers += ((b"grpc-message", encode_message(text)),)
    return (*trailers, *more) if more else trailers


def http1_refusal(data: bytes) -> bytes:
    """The answer to a client whose first bytes are these, if they are no HTTP/2; empty: none."""
    line = data.partition(b"\r\n")[0]
    if b"HTTP/1." not in line:
        return b""
    text = b"this port speaks gRPC, over HTTP/2 alone\n"
    head = b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n"
    return head + b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text)
