"""SharedPlane: one subscription to a subject for all who listen to it in this process.

A broker sends a message once for every subscription. Where a thousand listen to the same subject
over one connection, as the engines of a mocker do, that is a thousand copies of each.
"""

import asyncio

from .event_plane import EventPlane, Handler, PlaneOver, PlaneState, Subscription


class SharedPlane(PlaneOver):
    """An event plane over another one, which it closes when it is closed."""

    def __init__(self, plane: EventPlane) -> None:
        super().__init__(plane)
        self._topics: dict[str, _Topic] = {}

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        if self.state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        topic = self._topics.setdefault(subject, _Topic())
        listener = _Listener(topic, subject, handler)
        async with topic.changing:
            if topic.subscription is None:
                topic.subscription = await self.plane.subscribe(subject, topic.on_message)
            topic.listeners[listener] = None
        return listener


class _Topic:
    """Who listens to one subject."""

    def __init__(self) -> None:
        self.listeners: dict[_Listener, None] = {}
        self.subscription: Subscription | None = None  # while it has handlers
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
        self.subject = subject
        self.handler = handler

    async def close(self) -> None:
        topic = self._topic
        topic.listeners.pop(self, None)
        async with topic.changing:
            if not topic.listeners and topic.subscription is not None:
                subscription, topic.subscription = topic.subscription, None
                await subscription.close()
