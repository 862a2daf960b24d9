"""The services that every gRPC server has: grpc.health.v1, and reflection in both its versions.

The servicer of reflection is gRPC's own; it never meets its server.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ...base.errors import StatusCode
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import ServerCall

_States = health_pb2.HealthCheckResponse
REFLECTION = tuple(f"grpc.reflection.{v}.ServerReflection" for v in ("v1", "v1alpha"))
"""Their messages are the same."""


class HealthService:
    """grpc.health.v1: the last state that `set` gave each service; others are unknown.

    gRPC's own servicer writes to those that watch under the lock that a change takes: one of them
    that reads nothing would hold up all others, and each change.
    """

    def __init__(self) -> None:
        self._states: dict[str, Any] = {"": _States.SERVING}
        self._changed = asyncio.Event()  # of this state; the next one has another
        self._is_shut = False
        decode = health_pb2.HealthCheckRequest.FromString
        self.methods: Methods = {
            f"/{health.SERVICE_NAME}/Check": Method(self._check, decode, _serialized),
            f"/{health.SERVICE_NAME}/Watch": Method(self._watch, decode),
        }

    def set(self, service: str, *, serving: bool) -> None:
        if not self._is_shut:
            self._states[service] = _States.SERVING if serving else _States.NOT_SERVING
            self._notify()

    def shut_down(self) -> None:
        """Nothing is served any more, whatever is set later."""
        self._is_shut = True
        self._states = dict.fromkeys(self._states, _States.NOT_SERVING)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, request: Any, call: ServerCall) -> Any:
        state = self._states.get(request.service)
        if state is None:
            await call.abort(StatusCode.NOT_FOUND)
        return _States(status=state)

    async def _watch(self, request: Any, call: ServerCall) -> None:
        last: Any = None
        while True:
            changed = self._changed
            state = self._states.get(request.service, _States.SERVICE_UNKNOWN)
            if state != last:
                last = state
                await call.write(_serialized(_States(status=state)))
            await changed.wait()


def reflection_methods(services: Iterable[str]) -> Methods:
    """The reflection methods for these services, and for reflection itself."""
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
