"""The little of ASGI that our HTTP servers need: a request's parts, answers, and who is gone.

A web framework would stand between each token and its client; the interface itself is enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any, Protocol

import msgspec

from .errors import HttpError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = "application/json"
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the tokens
)


class ClientLeftError(Exception):
    """The client closed the connection; nobody is there to be answered."""


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers; of one that comes twice the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


async def read_body(receive: Receive, most: int) -> bytes:
    """The whole body; HttpError 413 once it is longer than `most` bytes."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > most:
            raise HttpError(413, f"the body is longer than {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_whole(
    send: Send,
    status: int,
    body: bytes | memoryview,
    headers: Mapping[str, str],
    length: int | None = None,
) -> None:
    """An answer in one piece, or, with the `length` of all of it, its first piece."""
    length = len(body) if length is None else length
    told = {"content-type": JSON, "content-length": str(length), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(told)})
    more = len(body) < length
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_json(
    send: Send, value: Any, headers: Mapping[str, str], *, status: int = 200
) -> None:
    await send_whole(send, status, msgspec.json.encode(value), headers)


class Output(Protocol):
    """Where the answer to a request goes."""

    def begin(self, status: int, headers: Headers) -> None: ...

    def write(self, data: bytes, *, more: bool = True) -> None: ...


class Client:
    """The client of one connection: it may leave while a request is worked on, and what it is told
    in many pieces need not go through the server's interface one by one."""

    def __init__(self) -> None:
        self._gone = False
        self._task: asyncio.Task[Any] | None = None
        self._wakers: list[asyncio.Future[None]] = []
        self.output: Output | None = None
        """of the request that is in turn"""
        self.reads = True
        """it has read enough of what it was sent, or is gone"""

    def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer; its head goes with the first of its body."""
        if self.output is not None:
            self.output.begin(status, headers)

    def write_part(self, data: bytes) -> None:
        """Send a part of the body of an answer that has begun; nothing to a client that is gone."""
        if self.output is not None:
            self.output.write(data)

    async def drained(self) -> None:
        """Returns once the client reads."""
        while not self.reads:
            waker = asyncio.get_running_loop().create_future()
            self._wakers.append(waker)
            await waker

    def on_full(self) -> None:
        """It does not read what it was sent."""
        self.reads = self._gone

    def on_drained(self) -> None:
        """It has read enough."""
        self.reads = True
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            if not waker.done():
                waker.set_result(None)

    def on_gone(self) -> None:
        """The connection is lost."""
        self._gone = True
        self.on_drained()
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
        self._begun = self._ending = False
        self.started = False
        """something was put, which goes out even if nothing follows"""

    def put(self, data: bytes, *, last: bool = False) -> None:
        """What is put in one turn of the loop goes out together. After the `last` the end is
        awaited for a turn, to go with it."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self.started = True
        self._ending = last

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read."""
        await self._client.drained()
        self.put(data)

    def _flush(self) -> None:
        if self._ending and self._waiting:
            self._ending = False
            self._loop.call_soon(self._flush)
            return
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._last = self._loop.time()
            if not self._begun:
                self._begin()
            self._client.write_part(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    async def end(self, data: bytes) -> None:
        """Write the last of it."""
        if not self._begun:
            self._begin()
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

    def _begin(self) -> None:
        self._begun = True
        self._client.begin(200, (*STREAM_HEADERS, *_encoded(self._headers)))


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
