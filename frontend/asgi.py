"""The little of ASGI that the frontend needs: a request's parts, answers, and who is gone.

A web framework would stand between each token and its client; the interface itself is enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from .openai import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would collect the tokens
}


class ClientLeftError(Exception):
    """The client closed the connection; nobody is there to be answered."""


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers, names in lower case; of one that comes twice the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


async def read_body(receive: Receive, most: int) -> bytes:
    """The whole body; ApiError 413 once it is longer than `most` bytes."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > most:
            raise ApiError(413, f"the body is longer than {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_whole(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """An answer in one piece."""
    told = {"content-type": JSON, "content-length": str(len(body)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(told)})
    await send({"type": "http.response.body", "body": body})


async def send_json(
    send: Send, value: Any, headers: Mapping[str, str], *, status: int = 200
) -> None:
    await send_whole(send, status, msgspec.json.encode(value), headers)


class EventStream:
    """Server-sent events. The headers go with the first of them, so that what fails before is told
    by its own status. A stream that is silent for `keep_alive_s` gets a comment."""

    def __init__(
        self, send: Send, headers: Mapping[str, str], keep_alive: bytes, keep_alive_s: float
    ) -> None:
        self._send = send
        self._headers = headers
        self._keep_alive, self._keep_alive_s = keep_alive, keep_alive_s
        self._lock = asyncio.Lock()
        self._last = asyncio.get_running_loop().time()
        self.started = False

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read."""
        async with self._lock:
            await self._start()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._last = asyncio.get_running_loop().time()

    async def end(self) -> None:
        async with self._lock:
            await self._send({"type": "http.response.body", "body": b""})

    async def keep_alive(self) -> None:
        """Runs beside the stream until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._last + self._keep_alive_s - loop.time()
            if left <= 0:
                await self.write(self._keep_alive)
            else:
                await asyncio.sleep(left)

    async def _start(self) -> None:
        if self.started:
            return
        self.started = True
        headers = _encoded({**STREAM_HEADERS, **self._headers})
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


async def unless_gone(receive: Receive, work: "asyncio.Task[None]") -> None:
    """Wait for the work; ClientLeftError, and the work is cancelled, if the client leaves first."""
    leaving = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientLeftError
        await work
    finally:
        for task in (work, leaving):
            task.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
