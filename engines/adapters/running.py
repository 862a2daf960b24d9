"""RunningRequests: the requests that an engine of another library is busy with, and its loss.

A library may never answer again once its engine is gone: its waiting callers are woken up here.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Self

from ...base.errors import InvalidRequestError, NoWorkersError
from ..serving import AnswerPart, EngineUnavailableError

MOST_REQUESTS = 65536
"""At a time; more are turned away."""


class RunningRequests:
    """By their ids, on one event loop."""

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self._most = most
        self._answers: dict[str, RunningAnswer] = {}
        self._over = asyncio.Event()
        self.failure: str | None = None
        """why the engine takes no requests any more"""

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def fail(self, reason: str) -> None:
        """The engine is gone: its requests end, also those that wait for it. The first reason
        counts."""
        if self.failure is None:
            self.failure = reason
            self._over.set()
            for answer in list(self._answers.values()):
                answer.wake()

    async def lost(self) -> str:
        """Return the reason once the engine is gone."""
        await self._over.wait()
        return self.failure or ""

    def add(self, answer: "RunningAnswer") -> None:
        """EngineUnavailableError, NoWorkersError, or InvalidRequestError if the id is in use."""
        if self.failure is not None:
            raise EngineUnavailableError(self.failure)
        if answer.request_id in self._answers:
            text = f"request id {answer.request_id!r} is in use"
            raise InvalidRequestError(text, field="request_id")
        if len(self._answers) >= self._most:
            raise NoWorkersError(f"the engine has {self._most} requests")
        self._answers[answer.request_id] = answer

    def remove(self, answer: "RunningAnswer") -> None:
        if self._answers.get(answer.request_id) is answer:
            del self._answers[answer.request_id]


class RunningAnswer:
    """An Answer of parts that a library generates. One task reads it."""

    def __init__(
        self,
        running: RunningRequests,
        request_id: str,
        parts: AsyncGenerator[AnswerPart, None],
    ) -> None:
        """`parts` gives up its request when it is closed."""
        self.request_id = request_id
        self._running = running
        self._parts = parts
        self._added = False
        self._reader: asyncio.Task[object] | None = None

    def wake(self) -> None:
        """The engine is gone: a reader who waits for it is not to wait any more."""
        if self._reader is not None:
            self._reader.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerPart:
        running = self._running
        if not self._added:
            running.add(self)
            self._added = True
        if running.failure is not None:
            raise EngineUnavailableError(running.failure)
        reader = self._reader = asyncio.current_task()
        try:
            return await anext(self._parts)
        except asyncio.CancelledError:
            if running.failure is None or reader is None or reader.uncancel() > 0:
                raise
            raise EngineUnavailableError(running.failure) from None
        finally:
            self._reader = None

    async def aclose(self) -> None:
        self._running.remove(self)
        await self._parts.aclose()
