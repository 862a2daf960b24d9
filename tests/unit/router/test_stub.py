"""RouterServiceStub: a call for each that the protocol names, with its messages."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dynamo_router.router.proto import RouterServiceStub, router_pb2


class Channel:
    """Notes the calls that are made on it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def unary_unary(self, path: str, **how: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.paths.append(path)
        return lambda message: (path, how["request_serializer"](message))


def test_it_has_each_call_of_the_protocol() -> None:
    channel = Channel()
    stub = RouterServiceStub(channel)
    service = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
    assert not any(call.client_streaming or call.server_streaming for call in service.methods)
    names = [call.name for call in service.methods]
    assert channel.paths == [f"/dynamo_router.v1.RouterService/{name}" for name in names]
    assert set(names) <= set(dir(stub))
    asked = router_pb2.BookedRequest(request_id="a")
    assert stub.Free(asked) == ("/dynamo_router.v1.RouterService/Free", asked.SerializeToString())


def test_it_is_an_object_as_others() -> None:
    stub = RouterServiceStub(Channel())
    assert copy.copy(stub).Free is stub.Free
    with pytest.raises(AttributeError, match="Fre"):
        stub.Fre  # noqa: B018
