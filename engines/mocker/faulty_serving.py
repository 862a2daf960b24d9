"""Faults of a mock engine's server: calls that are not answered or fail, and its event feed."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from ...base.errors import StatusCode
from ...transport.grpc_methods import Methods
from ...workers.trtllm_proto import SERVICE
from ..serving import KvEvent, KvEventFeed, KvSubscription, ServedEngine
from .faults import HEALTHY, Fault, FaultyMessages

TEXT = "a fault that was asked for"
Awake = Callable[[], Awaitable[None]]
"""Returns once the engine does not hang."""


class FaultyCalls:
    """Calls that an engine answers when it is awake; Generate may fail at once."""

    def __init__(self, awake: Awake) -> None:
        self.fault = HEALTHY
        self._awake = awake

    def around(self, methods: Methods) -> Methods:
        """The methods, as the fault makes them."""
        return {
            path: method._replace(answer=self._after(path, method.answer))
            for path, method in methods.items()
        }

    def _after(self, path: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        generates = path == f"/{SERVICE}/Generate"

        async def late(message: Any, context: Any) -> Any:
            await self._awake()
            failure = self.fault.fail if generates else None
            if failure == "OK":
                return None
            if failure is not None:
                await context.abort(StatusCode[failure], TEXT)
            return await answer(message, context)

        return late


class FaultyFeed(KvEventFeed):
    """A KvEventFeed that mishandles what it tells, as a fault says."""

    def __init__(self, engine: ServedEngine, awake: Awake) -> None:
        super().__init__(engine)
        self._awake = awake
        self._messages: FaultyMessages[bytes] = FaultyMessages()
        self._cut = self._overrun = 0.0  # shares of messages
        self._random = Random(0)

    def set_fault(self, fault: Fault) -> None:
        """Mishandle what changes from now on. A message that was kept back is let go, and what was
        lost until now shows: an engine says now and then which batch was the last."""
        for batch in self._messages.begin(fault):
            super()._send(batch)
        self._cut, self._overrun, self._random = fault.cut, fault.overrun, Random(fault.seed)
        self.beat()

    def on_events(self, rank: int, events: list[KvEvent]) -> None:
        if self._random.random() < self._overrun:
            self.lose(rank, len(events))
        else:
            super().on_events(rank, events)

    def _send(self, batch: bytes) -> None:
        for each in self._messages.take(batch):
            super()._send(each)
        if self._random.random() < self._cut:
            self.end(TEXT)

    def _new_subscription(self) -> KvSubscription:
        return _SlowSubscription(self._awake)


class _SlowSubscription(KvSubscription):
    """Of an engine that may hang."""

    def __init__(self, awake: Awake) -> None:
        super().__init__()
        self._awake = awake

    async def next(self) -> bytes | None:
        batch = await super().next()
        if batch is not None:
            await self._awake()
        return batch
