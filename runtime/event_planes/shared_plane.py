"""SharedPlane: one subscription to a subject for all who listen to it in this process.

A broker sends a message once for every subscription. Where a thousand listen to the same subject
over one connection, as the engines of a mocker do, that is a thousand copies of each.
"""

import asyncio
from collections.abc import Callable

from .event_plane import (
    EventPlane,
    Handler,
    PlaneState,
    PlaneStats,
    StateCallback,
    Subscription,
)


class SharedPlane:
    """An event plane over another one, which it closes when it is closed."""

    def __init__(self, plane: EventPlane) -> None:
        self._plane = plane
        self._topics: dict[str, _Topic] = {}

    @property
    def state(self) -> PlaneState:
        return self._plane.state

    @property
    def stats(self) -> PlaneStats:
        """Those of the plane below."""
        return self._plane.stats

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._plane.publish(subject, payload)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        if self.state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        topic = self._topics.setdefault(subject, _Topic())
        listener = _Listener(topic, subject, handler)
        async with topic.changing:
            if topic.subscription is None:
                topic.subscription = await self._plane.subscribe(subject, topic.on_message)
            topic.listeners[listener] = None
        return listener

    async def offer(self, subject: str, publisher_id: int | None = None) -> None:
        await self._plane.offer(subject, publisher_id)

    async def withdraw(self, publisher_id: int) -> None:
        await self._plane.withdraw(publisher_id)

    def on_state(self, callback: StateCallback) -> Callable[[], None]:
        return self._plane.on_state(callback)

    async def flush(self) -> bool:
        return await self._plane.flush()

    async def close(self) -> None:
        await self._plane.close()


class _Topic:
    """Who listens to one subject."""

    def __init__(self) -> None:
        self.listeners: dict[_Listener, None] = {}
        self.subscription: Subscription | None = None  # while somebody listens
        self.changing = asyncio.Lock()

    def on_message(self, subject: str, payload: bytes) -> None:
        errors = []
        for listener in list(self.listeners):
            if listener in self.listeners:  # not closed by one before it
                try:
                    listener.handler(subject, payload)
                except Exception as error:  # one listener's fault is not the others'
                    errors.append(error)
        if errors:
            raise ExceptionGroup("handlers failed", errors)


class _Listener:
    """One handler's interest, until closed."""

    def __init__(self, topic: _Topic, subject: str, handler: Handler) -> None:
        self._topic = topic
        self._subject = subject
        self.handler = handler

    @property
    def subject(self) -> str:
        return self._subject

    async def close(self) -> None:
        topic = self._topic
        topic.listeners.pop(self, None)
        async with topic.changing:
            if not topic.listeners and topic.subscription is not None:
                subscription, topic.subscription = topic.subscription, None
                await subscription.close()
