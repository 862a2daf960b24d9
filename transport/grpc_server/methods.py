"""A method of gRPC, whichever server carries its calls, and what it may ask of a call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from ...base.errors import UNREADABLE_MESSAGE, StatusCode
from ..http2 import AtOnce, PeerGoneError

__all__ = [
    "AtOnce",
    "Method",
    "Methods",
    "PeerGoneError",
    "ServerCall",
    "answer_call",
    "served_plainly",
]

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
AnswerAtOnce: TypeAlias = Callable[[bytes, Metadata], bytes | None]
"""An answer's bytes by those of its request and the call's metadata, None if something has to be
waited for. RouterError is the status of the call."""


class ServerCall(Protocol):
    """One call, by one task: it is cancelled when the client gives the call up, its time is over
    or its connection is lost. The names are those of grpc.aio's context.
    """

    def invocation_metadata(self) -> Metadata: ...
    def peer(self) -> str:
        """ipv4:HOST:PORT, ipv6:%5BHOST%5D:PORT or unix:..."""
        ...

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """What the client's certificate says, by gRPC's names; empty without one."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the client gives it up; None: it does not say."""
        ...

    def read_at_once(self) -> bytes | None:
        """The next message, if it is known to be there."""
        ...

    async def read(self) -> bytes | None:
        """The next message; None if there is none any more."""
        ...

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Before the first message."""
        ...

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """With the status."""
        ...

    def put(self, message: bytes) -> bool:
        """One more message, if it need not wait. False: nothing was done, it is to be written."""
        ...

    async def write(self, message: bytes) -> None:
        """One more message; it waits while the client does not read. PeerGoneError if it left."""
        ...

    async def finish(self) -> None:
        """All was written: wait until it has left, but not for ever."""
        ...

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End it with a status. What it raises is to be let through."""
        ...


class Method(NamedTuple):
    """How a method answers: `answer(request, call)` writes its messages, or returns the one.

    Requests and answers are bytes unless there is something to decode or encode them. A method
    that `streams` is given its requests as an iterator. `at_once` is asked first where it is there.
    """

    answer: Callable[[Any, Any], Awaitable[Any]]
    decode: Callable[[bytes], Any] | None = None
    encode: Callable[[Any], bytes] | None = None
    streams: bool = False
    at_once: AnswerAtOnce | None = None


Methods: TypeAlias = Mapping[str, Method]
"""By their paths: /SERVICE/METHOD."""
Serve: TypeAlias = Callable[[ServerCall], Awaitable[None]]
"""Serves a call, whichever library carries it."""


async def answer_call(method: Method, request: Any, call: ServerCall) -> None:
    """Have a call answered whose request was read, up to the end of the answer."""
    answer = await method.answer(request, call)
    if answer is not None:
        await call.write(answer if method.encode is None else method.encode(answer))
    await call.finish()


async def requests_of(method: Method, call: ServerCall) -> AsyncIterator[Any]:
    """The requests of a call of a method that streams."""
    while (message := await call.read()) is not None:
        yield message if method.decode is None else method.decode(message)
        await asyncio.sleep(0)  # others have their turn, however many came in one piece


def served_plainly(method: Method) -> Serve:
    """How a method's calls are served where nobody counts them."""

    async def serve(call: ServerCall) -> None:
        if method.streams:
            await answer_call(method, requests_of(method, call), call)
            return
        message = await call.read()
        if message is None:
            await call.abort(StatusCode.INVALID_ARGUMENT, "the call has no message")
        request: Any = message
        if method.decode is not None:
            try:
                request = method.decode(message)
            except Exception:
                await call.abort(StatusCode.INVALID_ARGUMENT, UNREADABLE_MESSAGE)
        await answer_call(method, request, call)

    return serve
