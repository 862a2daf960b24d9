"""Requests and answers between our HTTP servers and what answers them, in ASGI's shapes.

It is not ASGI: an application is also given the Client of its connection, through which a stream
is written without a coroutine for each part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, Protocol

import msgspec

from ...base.errors import CapacityError
from ...process.loop_turns import NextTurn, end_in_turn
from ...process.off_loop import OffLoop
from ._whole_request import decoded
from .errors import HttpError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = "application/json"
LONG_JOIN = 2 << 20
"""Bytes that take about a millisecond to join. Above one MiB Python does it outside the GIL."""


class ClientLeftError(Exception):
    """The client closed the connection: an answer has no reader."""


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers; of one that comes twice the first."""
    return decoded(scope["headers"])


async def read_body(
    receive: Receive,
    most: int,
    count: Callable[[int], None] = lambda size: None,
    off_loop: OffLoop | None = None,
) -> bytes:
    """The whole body; HttpError 413 once it is longer than `most` bytes. `count` is called with the
    size of each part, and may raise. `off_loop` joins the parts of a long one; HttpError 429 if it
    has no room."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        check_length(length, most)
        count(len(parts[-1]))
        if not message.get("more_body", False):
            break
    if off_loop is None or length < LONG_JOIN:
        return b"".join(parts)
    try:
        return await off_loop.run(partial(b"".join, parts), size=length)
    except CapacityError as error:
        raise HttpError(429, str(error)) from None


def check_length(length: int, most: int) -> None:
    """HttpError 413 for a body of more than `most` bytes."""
    if length > most:
        raise HttpError(413, f"the body is longer than {most} bytes")


async def send_whole(
    send: Send,
    status: int,
    body: bytes | memoryview,
    headers: Mapping[str, str],
    length: int | None = None,
) -> None:
    """An answer in one piece, or, with the `length` of all of it, its first piece."""
    length = len(body) if length is None else length
    all_headers = {"content-type": JSON, "content-length": str(length), **headers}
    await send({"type": "http.response.start", "status": status, "headers": encoded(all_headers)})
    more = len(body) < length
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_json(
    send: Send, value: Any, headers: Mapping[str, str], *, status: int = 200
) -> None:
    await send_whole(send, status, msgspec.json.encode(value), headers)


class Output(Protocol):
    """Where the answer to a request goes."""

    def begin(self, status: int, headers: Headers, lines: bytes = b"") -> None: ...

    def write(self, data: bytes, *, more: bool = True) -> None: ...

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it is there."""
        ...


class Client:
    """The client of one connection: whether it keeps up or has left, and a direct way to write to
    it, which `send` is not: that is a coroutine, and streams are written from callbacks."""

    def __init__(self, next_turn: NextTurn | None = None) -> None:
        """`next_turn`: of all connections of a server."""
        self._gone = False
        self.in_next_turn = (next_turn or NextTurn()).call
        """has a function called in the next turn of the event loop"""
        self._task: asyncio.Task[Any] | None = None
        self._wakers: list[asyncio.Future[None]] = []
        self.answering: asyncio.Task[None] | None = None
        """the task that answers the request in turn, where its connection says so"""
        self.output: Output | None = None
        """of the request that is in turn"""
        self.reads = True
        """whether it keeps up: what was sent fits into buffers. True, too, once it is gone and no
        work for it is left."""

    def whole_body(self) -> bytes | None:
        """The body of the request in turn, if all of it is there; None: it is to be received."""
        return None if self.output is None else self.output.whole_body()

    def begin(self, status: int, headers: Headers, lines: bytes = b"") -> None:
        """Begin an answer; its head goes with the first of its body. `lines` are headers that all
        such answers have, as they are sent."""
        if self.output is not None:
            self.output.begin(status, headers, lines)

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
        if self._task is None:
            self.on_drained()
        else:  # one of many, if many clients leave together: until its turn nothing is made for it
            self.reads = False
            end_in_turn(self._end)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; ClientLeftError, and it is cancelled, if the client leaves first."""
        task = self._task = self.answering or asyncio.current_task()
        assert task is not None
        if self._gone:
            work.close()
            raise ClientLeftError
        try:
            await work
        except asyncio.CancelledError:
            if not self._gone or task.uncancel():
                raise  # the task was cancelled from outside
            raise ClientLeftError from None
        finally:
            if self._task is task:  # else that of the next request, which has begun meanwhile
                self._task = None
            if self._gone:
                self.on_drained()


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as they are sent."""
    made = []  # no comprehension, which is a call of its own
    for name, value in headers.items():
        made.append((name.encode("latin-1"), value.encode("latin-1")))
    return made
