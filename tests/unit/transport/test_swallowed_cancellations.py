"""Libraries that take a cancellation for their own: whoever is cancelled within ends all the same.

asyncio.wait_for of Python 3.11 swallows one that comes together with its result. Both nats-py and
gRPC's server wait by it, and nats-py passes over one while it has much to send.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from grpc import aio
from nats.aio.client import Client

from dynamo_router.runtime.request_planes import GrpcListener, RequestServer
from dynamo_router.transport.grpc_server.aio_server import AioServer
from dynamo_router.transport.http2 import ServerLimits
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


class Server:
    """As one of gRPC's own that serves."""

    def __init__(self, deaf: Deaf) -> None:
        self._deaf = deaf

    def add_generic_rpc_handlers(self, handlers: object) -> None: ...

    def add_insecure_port(self, where: str) -> int:
        return 1

    async def start(self) -> None: ...

    async def stop(self, grace: float | None) -> None:
        await self._deaf()


async def test_at_the_end_of_a_server_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = Deaf()
    monkeypatch.setattr(aio, "server", lambda **_: Server(deaf))
    server = AioServer(ServerLimits(), None)
    await server.start({})
    assert await ends_cancelled(deaf, server.stop(1.0))


async def test_at_the_end_of_a_server_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = Deaf()
    monkeypatch.setattr(aio, "server", lambda **_: Server(deaf))
    listener = GrpcListener(RequestServer())
    await listener.start()
    assert await ends_cancelled(deaf, listener.close())
