"""The messages of trtllm.TrtllmService, as TensorRT-LLM itself serves them."""

# smg-grpc-proto carries no py.typed marker: its messages are untyped, and this is the one place
# that says so.
from smg_grpc_proto.generated import (  # type: ignore[import-untyped]
    common_pb2 as common_pb,
)
from smg_grpc_proto.generated import (
    trtllm_service_pb2 as pb,
)

__all__ = ["SERVICE", "common_pb", "length_delimited", "pb"]

SERVICE = "trtllm.TrtllmService"


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
