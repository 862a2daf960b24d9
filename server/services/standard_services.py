"""The services that every gRPC server has: grpc.health.v1, and reflection in both its versions.

The servicers are gRPC's own; they never meet its server.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ...base.errors import StatusCode
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import ServerCall

REFLECTION = tuple(f"grpc.reflection.{v}.ServerReflection" for v in ("v1", "v1alpha"))
"""Their messages are the same."""


class _TypedCall:
    """A call as gRPC's servicers want it: what they write are messages of protobuf."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call

    async def write(self, message: Any) -> None:
        await self._call.write(message.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        await self._call.abort(StatusCode(code.value[0]), details)


class HealthService:
    """grpc.health.v1: what `set` said last of each service; of others nothing is known."""

    def __init__(self) -> None:
        self._servicer = cast(Any, health).aio.HealthServicer()  # its stubs know no asyncio
        decode = health_pb2.HealthCheckRequest.FromString
        self.methods: Methods = {
            f"/{health.SERVICE_NAME}/Check": Method(self._check, decode, _serialized),
            f"/{health.SERVICE_NAME}/Watch": Method(self._watch, decode),
        }

    async def set(self, service: str, *, serving: bool) -> None:
        states = health_pb2.HealthCheckResponse
        await self._servicer.set(service, states.SERVING if serving else states.NOT_SERVING)

    async def shut_down(self) -> None:
        """Nothing is served any more, whatever is set later."""
        await self._servicer.enter_graceful_shutdown()

    async def _check(self, request: Any, call: ServerCall) -> Any:
        return await self._servicer.Check(request, _TypedCall(call))

    async def _watch(self, request: Any, call: ServerCall) -> None:
        await self._servicer.Watch(request, _TypedCall(call))


def reflection_methods(services: Iterable[str]) -> Methods:
    """What tells clients of these services, and of reflection itself."""
    names = (*services, *REFLECTION)
    servicer = cast(Any, reflection).aio.ReflectionServicer(names)

    async def answer(requests: AsyncIterator[Any], call: ServerCall) -> None:
        async for response in servicer.ServerReflectionInfo(requests, None):
            await call.write(response.SerializeToString())

    decode = reflection_pb2.ServerReflectionRequest.FromString
    method = Method(answer, decode, streams=True)
    return {f"/{name}/ServerReflectionInfo": method for name in REFLECTION}


def _serialized(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return body
