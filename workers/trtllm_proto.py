"""The messages of trtllm.TrtllmService, as TensorRT-LLM itself serves them."""

from collections.abc import Iterator

# smg-grpc-proto carries no py.typed marker: its messages are untyped, and this is the one place
# that says so.
from smg_grpc_proto.generated import (  # type: ignore[import-untyped]
    common_pb2 as common_pb,
)
from smg_grpc_proto.generated import (
    trtllm_service_pb2 as pb,
)

__all__ = ["SERVICE", "common_pb", "guide_name", "length_delimited", "parts_of", "pb"]

SERVICE = "trtllm.TrtllmService"
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def guide_name(kind: int) -> str:
    """Of a type of guided decoding, which a client may have made up."""
    kinds = pb.GuidedDecodingParams.GuideType
    return str(kinds.Name(kind) if kind in kinds.values() else kind)


def length_delimited(field: int, data: bytes) -> bytes:
    """A field of a serialized message: its number, the length, and the bytes themselves."""
    return b"".join((_varint(field << 3 | 2), _varint(len(data)), data))


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parts_of(message: bytes, field: int, *, floats: bool = False) -> Iterator[bytes]:
    """The bytes of each length-delimited field of this number in a serialized message. `floats`:
    where these are packed ones, and of each that is one alone."""
    kinds = (_DELIMITED, _FIXED32) if floats else (_DELIMITED,)
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind, number = tag & 7, tag >> 3
        if kind == _VARINT:
            _, at = _read_varint(message, at)
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _DELIMITED:
            size, at = _read_varint(message, at)
        if number == field and kind in kinds:
            yield message[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ends)"""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
