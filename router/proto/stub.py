"""The calls of RouterService for a client in Python, on a channel of grpc or of grpc.aio."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass

from . import router_pb2


class RouterServiceStub:
    """One attribute for each call: `stub.Free(router_pb2.BookedRequest(...), timeout=seconds)`.

    A refused call raises what calls of the channel raise.
    """

    def __init__(self, channel: Any) -> None:
        service = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
        for method in service.methods:
            call = channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...
