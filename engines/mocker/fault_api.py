"""The HTTP API, in JSON, that makes a mocker's engines fail.

GET    /engines               what they are and what is wrong with them
PUT    /engines/N/fault       a Fault for engine N, or for `all`; an empty body lifts it
DELETE /engines/N/fault       lifts it
POST   /engines/N/restart     a new engine in place, its cache empty and its events numbered anew
POST   /crash                 the whole process is gone at once
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from ...base.errors import ConfigError
from ...base.urls import joined
from ...transport.http1 import (
    Application,
    HttpCall,
    HttpError,
    HttpListener,
    answer_json,
    plain_error,
)
from .faults import HEALTHY, Fault
from .server import MockServer

MAX_BODY_BYTES = 1 << 16


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine starts again."""

    first_event_id: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0


class FaultApi:
    """Listens from `start` to `close`."""

    def __init__(self, engines: Sequence[MockServer]) -> None:
        self._engines = engines
        self.address = ""
        routes = {
            "GET /engines": self._on_engines,
            "PUT /engines/{engine}/fault": self._on_fault,
            "DELETE /engines/{engine}/fault": self._on_lift,
            "POST /engines/{engine}/restart": self._on_restart,
            "POST /crash": self._on_crash,
        }
        self._listener = HttpListener(
            Application(routes, plain_error, max_body_bytes=MAX_BODY_BYTES)
        )

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. ConfigError if it cannot be had."""
        taken = await self._listener.start(host, port, key="fault_port")
        self.address = joined(host, taken)

    async def close(self) -> None:
        await self._listener.close()

    async def _on_engines(self, call: HttpCall) -> None:
        await answer_json(call, [self._describe(number) for number in range(len(self._engines))])

    async def _on_fault(self, call: HttpCall) -> None:
        numbers = self._numbers(call)
        await self._set(call, numbers, _decode(call.body, Fault))

    async def _on_lift(self, call: HttpCall) -> None:
        await self._set(call, self._numbers(call), HEALTHY)

    async def _on_restart(self, call: HttpCall) -> None:
        numbers = self._numbers(call)
        wanted = _decode(call.body, Restart)
        restarts = [self._engines[n].restart(wanted.first_event_id) for n in numbers]
        await self._each(call, numbers, restarts)

    async def _on_crash(self, call: HttpCall) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def _set(self, call: HttpCall, numbers: list[int], fault: Fault) -> None:
        await self._each(call, numbers, [self._engines[n].set_fault(fault) for n in numbers])

    async def _each(self, call: HttpCall, numbers: list[int], changes: list[Any]) -> None:
        results = await asyncio.gather(*changes, return_exceptions=True)
        for result in results:
            if isinstance(result, ConfigError):  # its port was taken meanwhile
                raise HttpError(409, str(result))
            if isinstance(result, BaseException):
                raise result
        await answer_json(call, [self._describe(number) for number in numbers])

    def _numbers(self, call: HttpCall) -> list[int]:
        word = call.values["engine"]
        if word == "all":
            return list(range(len(self._engines)))
        if not word.isdecimal() or int(word) >= len(self._engines):
            text = f"there is no engine {word}: 0..{len(self._engines) - 1}, or all"
            raise HttpError(404, text)
        return [int(word)]

    def _describe(self, number: int) -> dict[str, Any]:
        server = self._engines[number]
        engines = server.ranks.engines
        return {
            "engine": number,
            "address": server.address,
            "worker_id": server.worker_id,
            "running": sum(engine.running for engine in engines),
            "waiting": sum(engine.waiting for engine in engines),
            "fault": server.fault,
        }


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise HttpError(400, str(error)) from None
