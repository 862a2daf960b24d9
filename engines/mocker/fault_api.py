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
from aiohttp import web

from ...base.errors import ConfigError
from ...transport.http_site import HttpSite, json_response
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
        self._site = HttpSite(
            [
                web.get("/engines", self._on_engines),
                web.put("/engines/{engine}/fault", self._on_fault),
                web.delete("/engines/{engine}/fault", self._on_lift),
                web.post("/engines/{engine}/restart", self._on_restart),
                web.post("/crash", self._on_crash),
            ],
            max_body_bytes=MAX_BODY_BYTES,
        )

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. ConfigError if it cannot be had."""
        await self._site.start(host, port, key="fault_port")
        self.address = f"{host}:{self._site.port}"

    async def close(self) -> None:
        await self._site.close()

    async def _on_engines(self, request: web.Request) -> web.Response:
        return json_response([self._describe(number) for number in range(len(self._engines))])

    async def _on_fault(self, request: web.Request) -> web.Response:
        numbers = self._numbers(request)
        fault = _decode(await request.read(), Fault)
        return await self._set(numbers, fault)

    async def _on_lift(self, request: web.Request) -> web.Response:
        return await self._set(self._numbers(request), HEALTHY)

    async def _on_restart(self, request: web.Request) -> web.Response:
        numbers = self._numbers(request)
        wanted = _decode(await request.read(), Restart)
        return await self._each(
            numbers, [self._engines[n].restart(wanted.first_event_id) for n in numbers]
        )

    async def _on_crash(self, request: web.Request) -> web.Response:
        os.kill(os.getpid(), signal.SIGKILL)
        return json_response({})  # too late, but the handler needs an answer

    async def _set(self, numbers: list[int], fault: Fault) -> web.Response:
        return await self._each(numbers, [self._engines[n].set_fault(fault) for n in numbers])

    async def _each(self, numbers: list[int], changes: list[Any]) -> web.Response:
        results = await asyncio.gather(*changes, return_exceptions=True)
        for result in results:
            if isinstance(result, ConfigError):  # its port was taken meanwhile
                return _error(409, str(result))
            if isinstance(result, BaseException):
                raise result
        return json_response([self._describe(number) for number in numbers])

    def _numbers(self, request: web.Request) -> list[int]:
        word = request.match_info["engine"]
        if word == "all":
            return list(range(len(self._engines)))
        if not word.isdecimal() or int(word) >= len(self._engines):
            text = f"there is no engine {word}: 0..{len(self._engines) - 1}, or all"
            raise web.HTTPNotFound(text=_error_text(text), content_type="application/json")
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
        raise web.HTTPBadRequest(
            text=_error_text(str(error)), content_type="application/json"
        ) from None


def _error(status: int, text: str) -> web.Response:
    return json_response({"error": text}, status)


def _error_text(text: str) -> str:
    return msgspec.json.encode({"error": text}).decode()
