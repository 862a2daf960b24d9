"""The calls of RouterService for a client in Python, on a channel of grpc or of grpc.aio."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from . import router_pb2


class RouterServiceStub:
    """One attribute for each call: `stub.Free(router_pb2.BookedRequest(...), timeout=seconds)`.

    A refused call raises what calls of the channel raise.
    """

    def __init__(self, channel: Any) -> None:
        service = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
        self._calls: dict[str, Callable[..., Any]] = {
            method.name: channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in service.methods
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self._calls[name]
        except KeyError:
            raise AttributeError(f"RouterService has no call {name!r}") from None
