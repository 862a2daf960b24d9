"""Prefetch: an engine loads what its host memory and disk have of a prompt before that comes.

Not in trtllm.TrtllmService: a method of its own, with the GenerateRequest that is expected. An
engine that does not know it answers UNIMPLEMENTED, as gRPC servers do.
"""

from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import UInt64Value

from ..base.errors import StatusCode
from .channels import EngineChannel, Metadata
from .failures import EngineCallError, Origin

PREFETCH_METHOD = "/dynamo_router.v1.EngineCache/Prefetch"


def encode_loaded(blocks: int) -> bytes:
    """The answer: how many blocks it loads."""
    data: bytes = UInt64Value(value=blocks).SerializeToString()
    return data


async def ask_prefetch(
    channel: EngineChannel, request: bytes, *, timeout: float, metadata: Metadata | None = None
) -> int | None:
    """How many blocks the engine at the other end loads; None if it does not know how.

    `request` is the serialized GenerateRequest, `timeout` in seconds. Raises EngineCallError for
    whatever else goes wrong.
    """
    try:
        _, answer = await channel.unary(
            PREFETCH_METHOD, request, timeout=timeout, metadata=metadata
        )
        return int(UInt64Value.FromString(answer).value)
    except EngineCallError as error:
        if error.code() is StatusCode.UNIMPLEMENTED:
            return None
        raise
    except DecodeError:
        text = "the answer to Prefetch cannot be read"
        raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text) from None
