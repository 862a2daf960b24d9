"""PumpedCall: a call whose messages are fetched beside their reader."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ...runtime.request_planes import AnswerQueue
from ..failures import EngineCallError
from .failed_call import failure_of


class PumpedCall:
    """A call under way; see EngineCall. It begins at once, with or without a reader.

    It is in `calls` while it runs. What `messages` raises is what the call failed with, in gRPC's
    words: errors of other kinds than EngineCallError are translated.
    """

    def __init__(
        self,
        messages: Callable[[], AsyncGenerator[bytes, None]],
        timeout: float | None,
        calls: "set[PumpedCall]",
    ) -> None:
        self._messages = messages
        self._timeout = timeout
        self._queue: AnswerQueue[bytes] = AnswerQueue()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._calls = calls
        calls.add(self)
        self.task = asyncio.create_task(self._pump(), name="engine call")
        self.task.add_done_callback(self._on_done)

    def cancel(self) -> bool:
        return self.task.cancel()

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._queue.items()

    def pause(self) -> None:
        """Let the engine wait for a slow reader."""
        self._may_go_on.clear()

    def resume(self) -> None:
        self._may_go_on.set()

    async def _pump(self) -> None:
        async with asyncio.timeout(self._timeout), aclosing(self._messages()) as messages:
            async for message in messages:
                self._queue.put(message, self)
                await self._may_go_on.wait()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(self)
        self._queue.end(_failure_of(task))


async def end_calls(calls: set[PumpedCall]) -> None:
    """Cancel all of them, and wait until they have ended."""
    for call in calls:
        call.cancel()
    if calls:
        await asyncio.wait([call.task for call in calls])


def _failure_of(task: "asyncio.Task[None]") -> BaseException | None:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return error if error is None or isinstance(error, EngineCallError) else failure_of(error)
