"""What the frames of the request plane say: control headers and the stations of an answer."""

from typing import Any

import msgspec

from ...base.errors import UNREADABLE
from .frames import FrameError, TwoPart, decode_two_part, encode_two_part

CODECS = ("msgpack", "json")
_to_json, _to_msgpack = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
SENTINEL_HEADER = msgspec.json.encode("sentinel")
SENTINEL = encode_two_part(SENTINEL_HEADER)
PROLOGUE = msgspec.json.encode({"error": None})
"""The header by which a worker says that there will be an answer."""
STOP, KILL = (encode_two_part(msgspec.json.encode(word)) for word in ("stop", "kill"))


class CallHome(msgspec.Struct):
    """Where a worker brings its answer. `subject` is fresh for each request."""

    address: str
    subject: str
    context: str
    stream_type: str = "response"


class ConnectionInfo(msgspec.Struct):
    transport: str
    info: str
    """a CallHome as JSON, as text inside of JSON"""


class Control(msgspec.Struct, omit_defaults=True):
    """The control header of a request, its fields in Dynamo's order. `context` of its CallHome
    equals `id`."""

    id: str
    request_type: str = ""
    response_type: str = ""
    payload_codec: str | None = None
    connection_info: ConnectionInfo | None = None
    metadata: dict[str, str] = {}


class RequestMessage(msgspec.Struct):
    """A request that was read: who asks, where the answer goes, what is asked."""

    id: str
    call_home: CallHome
    codec: str
    metadata: dict[str, str]
    body: Any


def encode_request_message(
    id: str, address: str, subject: str, body: object, codec: str, metadata: dict[str, str]
) -> bytes:
    """A request's payload. `address` is where we wait for the answer."""
    info = _to_json(CallHome(address, subject, id)).decode()
    home = ConnectionInfo("tcp_server", info)
    control = Control(id, "single_in", "many_out", codec, home, metadata)
    return encode_two_part(_to_json(control), encode_body(body, codec))


def decode_request_message(payload: bytes) -> RequestMessage:
    """FrameError if it is no request that we could answer."""
    frame = decode_two_part(payload)
    try:
        control = msgspec.json.decode(frame.header, type=Control)
        home = _call_home(control)
        codec = control.payload_codec or "json"
        if codec not in CODECS:
            raise FrameError(f"the codec {codec[:40]!r} is not one of {', '.join(CODECS)}")
        body = decode_body(frame.body, codec)
    except UNREADABLE as error:
        raise FrameError(f"a request cannot be read: {error}") from None
    return RequestMessage(control.id, home, codec, control.metadata, body)


class Handshake(msgspec.Struct):
    """The header of an answer's first frame."""

    subject: str
    stream_type: str = "response"


_HANDSHAKE = msgspec.json.Decoder(Handshake)


def _call_home(control: Control) -> CallHome:
    connection = control.connection_info
    if connection is None or connection.transport != "tcp_server":
        carrier = connection.transport if connection else "none"
        raise FrameError(f"the answer should go over {carrier}, which we do not have")
    return msgspec.json.decode(connection.info, type=CallHome)


def encode_body(body: object, codec: str) -> bytes:
    return _to_msgpack(body) if codec == "msgpack" else _to_json(body)


def decode_body(body: bytes, codec: str) -> Any:
    return msgspec.msgpack.decode(body) if codec == "msgpack" else msgspec.json.decode(body)


def handshake(subject: str) -> bytes:
    """The first frame of an answer."""
    return encode_two_part(_to_json(Handshake(subject)))


def read_handshake(frame: TwoPart) -> str:
    """The subject. FrameError if it is no handshake."""
    try:
        return _HANDSHAKE.decode(frame.header).subject
    except UNREADABLE:
        raise FrameError("an answer began without a handshake") from None


def prologue(error: str | None = None) -> bytes:
    """The second frame: whether there will be an answer."""
    return encode_two_part(PROLOGUE if error is None else _to_json({"error": error}))


def data_frame(chunk: object, codec: str) -> bytes:
    return encode_two_part(b"", encode_body({"data": chunk, "complete_final": False}, codec))


def final_frame(codec: str) -> bytes:
    """The last data frame: the answer is complete."""
    return encode_two_part(b"", encode_body({"complete_final": True}, codec))
