"""LastingCall: a leg that goes on without its client until what it is for has come."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from ...base.errors import StatusCode
from ...process.supervised import is_cancelled
from ...workers.channels import EngineCall
from ...workers.failures import EngineCallError, Origin

Then = Callable[[list[bytes], EngineCallError | None, bool], Awaitable[None]]
"""Called with the messages that came, how the call failed if it did, and whether its client had
left."""


class LastingCall:
    """See EngineCall. It begins at once, and waits `within_s` for its first `count` messages, or
    the end of its answer. `cancel` ends it afterwards; before, only its client is gone.

    `then` is run once these have come, and the client has taken them or left.
    """

    def __init__(
        self,
        call: EngineCall,
        count: int,
        within_s: float,
        then: Then,
        tasks: "set[asyncio.Task[None]]",
    ) -> None:
        self._call, self._count, self._within_s, self._then = call, count, within_s, then
        self._messages = cast("AsyncGenerator[bytes, None]", aiter(call))
        self._begin: list[bytes] = []
        self._failure: EngineCallError | None = None
        self._is_over = self._is_taken = self._is_left = False
        self._opened, self._decided = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(self._run(), name="lasting leg")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def cancel(self) -> bool:
        if self._is_taken:
            return self._call.cancel()
        was_there, self._is_left = not self._is_left, True
        self._opened.set()
        self._decided.set()
        return was_there

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[bytes, None]:
        try:
            await self._opened.wait()
            if self._is_left:
                raise asyncio.CancelledError
            self._is_taken = True
            self._decided.set()
            for message in self._begin:
                yield message
            if self._failure is not None:
                raise self._failure
            if not self._is_over:
                async with aclosing(self._messages):
                    async for message in self._messages:
                        yield message
        finally:
            if not self._is_taken:
                self.cancel()

    async def _run(self) -> None:
        try:
            await self._open()
            self._opened.set()
            await self._decided.wait()
            if not self._is_taken:
                self._call.cancel()
            await self._then(self._begin, self._failure, self._is_left)
        finally:
            if not self._is_taken:  # also where its pool closes
                self.cancel()
                self._call.cancel()

    async def _open(self) -> None:
        text = "it went on without its client, and did not answer in time"
        try:
            async with asyncio.timeout(self._within_s):
                async for message in self._messages:
                    self._begin.append(message)
                    if len(self._begin) == self._count:
                        return
            self._is_over = True
        except EngineCallError as error:
            self._failure = error
        except TimeoutError:
            self._failure = EngineCallError(Origin.SILENCE, StatusCode.UNAVAILABLE, text)
        except asyncio.CancelledError:
            self._failure = _removed()


async def first_of(call: EngineCall, within_s: float) -> bytes:
    """The first message of a call, which is ended then. EngineCallError if none comes in time."""
    messages: Any = aiter(call)
    try:
        async with asyncio.timeout(within_s), aclosing(messages):
            async for message in messages:
                return cast("bytes", message)
    except TimeoutError:
        text = "it did not answer in time"
        raise EngineCallError(Origin.SILENCE, StatusCode.UNAVAILABLE, text) from None
    except asyncio.CancelledError:
        raise _removed() from None
    finally:
        call.cancel()
    raise EngineCallError(Origin.EMPTY, StatusCode.OK, "it ended without a message")


def _removed() -> EngineCallError:
    """Of a call that was cancelled, by its worker's removal; CancelledError if its reader was."""
    if is_cancelled():
        raise asyncio.CancelledError
    return EngineCallError(Origin.WORKER_DOWN, StatusCode.UNAVAILABLE, "it was removed")
