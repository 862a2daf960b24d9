"""A method of gRPC: how its requests are decoded and answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..base.errors import UNREADABLE_MESSAGE, StatusCode
from .http2 import Serve, ServerCall

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
AnswerAtOnce: TypeAlias = Callable[[bytes, Metadata], bytes | None]
"""An answer's bytes by those of its request and the call's metadata, None if something has to be
waited for. RouterError is the status of the call."""


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
    """How a method's calls are served where they are not counted."""

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
