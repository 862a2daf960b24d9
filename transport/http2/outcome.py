"""How a call ended, by what came of its stream. Pure."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from ...base.errors import StatusCode
from ._streams import (
    HEADERS_TOO_LONG,
    MESSAGE_COMPRESSED,
    MESSAGE_CUT,
    MESSAGE_TOO_LONG,
    SOUND,
    Stream,
)
from .wire import Header, decode_message, decode_metadata

LAST_CODE = StatusCode.UNAUTHENTICATED
REFUSED_STREAM = 7
"""HTTP/2's code of a stream that was not looked at."""


class Fault(enum.Enum):
    """Who says that a call failed, and of what."""

    STATUS = "status"
    """the peer ended it with a status, or with what stands for one"""
    CONNECT = "connect"
    """there was no connection: nothing of it was sent"""
    BROKEN = "broken"
    """the connection broke under it"""
    ANSWER_SIZE = "answer_size"
    """a message of the answer is longer than our limit"""
    REQUEST_SIZE = "request_size"
    """the request is longer than our limit, and was not sent"""
    STATUS_SIZE = "status_size"
    """the answer's headers or trailers are longer than our limit"""
    DEADLINE = "deadline"
    """its time was over"""
    OURS = "ours"
    """an error of this side, whatever the peer did"""


class Outcome(NamedTuple):
    """How a call ended. `fault` is None if it went well; `code` is gRPC's."""

    fault: Fault | None
    code: StatusCode
    details: str = ""
    trailers: tuple[tuple[str, str | bytes], ...] = ()


# By gRPC's description of its protocol; what is not named there is INTERNAL or UNKNOWN.
_OF_RESET = {
    REFUSED_STREAM: StatusCode.UNAVAILABLE,
    8: StatusCode.CANCELLED,
    11: StatusCode.RESOURCE_EXHAUSTED,
    12: StatusCode.PERMISSION_DENIED,
}
_OF_HTTP = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}


def outcome_of(stream: Stream, reset: int, max_message_bytes: int) -> Outcome:
    """How a client's call ended whose stream did, with this code of a RST_STREAM (0: none)."""
    violation = stream.violation
    if violation == MESSAGE_TOO_LONG:
        sizes = f"{stream.message_bytes} vs. {max_message_bytes}"
        text = f"CLIENT: Received message larger than max ({sizes})"
        return Outcome(Fault.ANSWER_SIZE, StatusCode.RESOURCE_EXHAUSTED, text)
    if violation == HEADERS_TOO_LONG:
        text = "the answer's headers are longer than our limit"
        return Outcome(Fault.STATUS_SIZE, StatusCode.RESOURCE_EXHAUSTED, text)
    if violation == MESSAGE_COMPRESSED:
        text = "a message is compressed, which the call did not allow"
        return Outcome(Fault.STATUS, StatusCode.INTERNAL, text)
    if violation not in (SOUND, MESSAGE_CUT):
        return Outcome(Fault.STATUS, StatusCode.RESOURCE_EXHAUSTED, "no memory for the answer")
    status = find(stream.trailers, b"grpc-status")
    rest = stream.trailers
    if status is None:
        status, rest = find(stream.headers, b"grpc-status"), stream.headers
    if status is not None:
        return _from_status(status, rest, violation == MESSAGE_CUT)
    if reset:
        code = _OF_RESET.get(reset, StatusCode.INTERNAL)
        return Outcome(Fault.STATUS, code, f"Received RST_STREAM with error code {reset}")
    http = find(stream.headers, b":status")
    if http not in (None, b"200"):
        text = f"Received http2 header with status: {http.decode('latin-1')}"
        return Outcome(Fault.STATUS, _OF_HTTP.get(http, StatusCode.UNKNOWN), text)
    return Outcome(Fault.STATUS, StatusCode.UNKNOWN, "the answer ended without a status")


def find(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value of a header."""
    for key, value in headers:
        if key == name:
            return value
    return None


def _from_status(status: bytes, trailers: list[Header], cut: bool) -> Outcome:
    number = int(status) if status.isdigit() and len(status) <= 2 else -1
    code = StatusCode(number) if 0 <= number <= LAST_CODE else StatusCode.UNKNOWN
    if code is StatusCode.OK:
        if cut:
            return Outcome(Fault.STATUS, StatusCode.INTERNAL, "the answer ended within a message")
        return Outcome(None, StatusCode.OK)
    text = decode_message(find(trailers, b"grpc-message") or b"")
    return Outcome(Fault.STATUS, code, text, decode_metadata(trailers))
