"""Subscriptions shared by all who listen to a subject: one below, each listener's own above."""

import asyncio
from typing import Any

from support.polling import until

from dynamo_router.runtime.event_planes.event_plane import Handler, Subscription
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.runtime.event_planes.shared_plane import SharedPlane


class CountingPlane(LocalPlane):
    """Counts the subscriptions that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        self.open += 1
        await asyncio.sleep(0)
        return _Counted(self, await super().subscribe(subject, handler))


class _Counted:
    def __init__(self, plane: CountingPlane, inner: Subscription) -> None:
        self._plane, self._inner = plane, inner

    @property
    def subject(self) -> str:
        return self._inner.subject

    async def close(self) -> None:
        self._plane.open -= 1
        await self._inner.close()


async def test_many_listeners_are_one_subscription_until_the_last_one_goes() -> None:
    below = CountingPlane()
    plane = SharedPlane(below)
    got: list[tuple[int, bytes]] = []
    listeners = await asyncio.gather(
        *(plane.subscribe("a.b", lambda _, p, n=n: got.append((n, p))) for n in range(5))  # type: ignore[misc]
    )
    assert below.open == 1 and {each.subject for each in listeners} == {"a.b"}
    await plane.publish("a.b", b"x")
    await until(lambda: len(got) == 5)
    assert sorted(got) == [(n, b"x") for n in range(5)]
    await asyncio.gather(*(each.close() for each in listeners[1:]))
    await plane.publish("a.b", b"y")
    await until(lambda: len(got) == 6)
    assert got[-1] == (0, b"y") and below.open == 1
    await listeners[0].close()
    await listeners[0].close()
    assert below.open == 0
    again = await plane.subscribe("a.b", lambda *_: None)
    assert below.open == 1
    await again.close()
    await plane.close()


async def test_one_that_leaves_while_another_comes_takes_nothing_with_it() -> None:
    below = CountingPlane()
    plane = SharedPlane(below)
    got: list[bytes] = []
    first = await plane.subscribe("a", lambda *_: None)
    _, second = await asyncio.gather(
        first.close(), plane.subscribe("a", lambda _, payload: got.append(payload))
    )
    assert below.open == 1
    await plane.publish("a", b"x")
    await until(lambda: got == [b"x"])
    await second.close()
    await plane.close()


async def test_a_listener_that_fails_does_not_keep_the_others_from_hearing() -> None:
    plane = SharedPlane(LocalPlane())
    got: list[bytes] = []

    def fail(*_: Any) -> None:
        raise LookupError("its own fault")

    await plane.subscribe("a", fail)
    await plane.subscribe("a", lambda _, payload: got.append(payload))
    await plane.publish("a", b"x")
    await until(lambda: got == [b"x"])
    assert plane.stats.handler_errors == 1
    await plane.close()
