"""Libraries that take a cancellation for their own: whoever is cancelled within ends all the same.

asyncio.wait_for of Python 3.11 swallows one that comes together with its result. nats-py waits
by it, and passes over one while it has much to send.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client

from dynamo_router.transport.nats.nats_link import NatsLink


class Deaf:
    """A call of a library: heeds no cancellation, and returns."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def __call__(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def ends_cancelled(deaf: Deaf, call: Awaitable[object]) -> bool:
    """Whether who makes the call, which gets into the library, ends when it is cancelled there."""
    task = asyncio.ensure_future(call)
    await deaf.entered.wait()
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


class Subscription:
    _id, _wait_for_msgs_task = 1, None

    def __init__(self, unsubscribe: Callable[[], Awaitable[None]]) -> None:
        self.unsubscribe = unsubscribe


async def test_at_a_subscription_of_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    entering, leaving = Deaf(), Deaf()
    deaf = True

    async def subscribe(*_: object, **__: object) -> Subscription:
        if deaf:
            await entering()
        return Subscription(leaving)

    monkeypatch.setattr(Client, "subscribe", subscribe)
    link = NatsLink(lambda: None, lambda: None)

    async def heard() -> Callable[[], Awaitable[None]]:
        return await link.subscribe("a", lambda subject, payload: None, 10, 1000)

    assert await ends_cancelled(entering, heard())
    deaf = False
    assert await ends_cancelled(leaving, (await heard())())
    await link.close()
