"""The little of ASGI that the frontend needs: a request's parts, answers, and who is gone.

A web framework would stand between each token and its client; the interface itself is enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Protocol

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


class Flow(Protocol):
    """Whether a connection takes more now."""

    @property
    def write_paused(self) -> bool: ...

    async def drain(self) -> None: ...


class Client:
    """The client of one connection: it may leave while a request is worked on, and what it is told
    in many pieces need not go through the server's interface one by one."""

    def __init__(self) -> None:
        self._gone = False
        self._transport: asyncio.Transport | None = None
        self._flow: Flow | None = None
        self._task: asyncio.Task[Any] | None = None

    def on_connected(self, transport: asyncio.Transport, flow: Flow) -> None:
        self._transport, self._flow = transport, flow

    def write_chunk(self, data: bytes) -> None:
        """Send a part of a body whose headers said that it comes in chunks, as those of no length
        do; nothing to a client that is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def drained(self) -> None:
        """Returns once the client has read enough of what it was sent."""
        if self._flow is not None and self._flow.write_paused and not self._gone:
            await self._flow.drain()

    def on_gone(self) -> None:
        """The connection is lost."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; ClientLeftError, and it is cancelled, if the client leaves first."""
        task = self._task = asyncio.current_task()
        assert task is not None
        if self._gone:
            work.close()
            raise ClientLeftError
        try:
            await work
        except asyncio.CancelledError:
            if not self._gone or task.uncancel():
                raise  # somebody else ends it
            raise ClientLeftError from None
        finally:
            self._task = None


class EventStream:
    """Server-sent events, until `close`. The headers go with the first of them, so that what fails
    before is told by its own status. A stream that is silent for `keep_alive_s` gets a comment."""

    def __init__(
        self,
        send: Send,
        client: Client,
        headers: Mapping[str, str],
        keep_alive: bytes,
        keep_alive_s: float,
    ) -> None:
        self._send, self._client = send, client
        self._waiting: list[bytes] = []
        self._headers = headers
        self._keep_alive, self._keep_alive_s = keep_alive, keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(keep_alive_s, self._on_silence)
        self._beat: asyncio.Task[None] | None = None
        self.started = False

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read. What is written in one turn of the loop goes out
        together, but for the first of it."""
        self._last = self._loop.time()
        await self._client.drained()
        if not self.started:
            await self._start()
            self._client.write_chunk(data)
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._client.write_chunk(b"".join(waiting))

    async def end(self, data: bytes) -> None:
        """Write the last of it."""
        if not self.started:
            await self._start()
        waiting, self._waiting = self._waiting, []
        await self._send({"type": "http.response.body", "body": b"".join((*waiting, data))})

    async def close(self) -> None:
        """Send no more comments. Idempotent."""
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)

    def _on_silence(self) -> None:
        """The timer's: silent for so long, or so long after the last event."""
        left = self._last + self._keep_alive_s - self._loop.time()
        if left <= 0:
            left = self._keep_alive_s
            if self._beat is None or self._beat.done():
                self._beat = self._loop.create_task(self.write(self._keep_alive))
        self._timer = self._loop.call_later(left, self._on_silence)

    async def _start(self) -> None:
        self.started = True
        headers = _encoded({**STREAM_HEADERS, **self._headers})
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
