"""Publishers of the event plane over ZMQ, each behind a proxy with faults."""

import asyncio
import contextlib
from functools import partial
from typing import Any

import pytest
from support.adversity.fault_proxy import FaultProxy
from support.adversity.nats_messages import MessageFaults
from support.adversity.zmq_messages import ZmqMessageFilter

from dynamo_router.runtime.event_planes.zmq import zmq_plane
from dynamo_router.runtime.event_planes.zmq.sockets import Outlet


class ProxiedOutlets:
    """Puts a proxy before each socket that a ZmqPlane of this process makes: it is what others find
    in the store. `faults` befall the messages of all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults = MessageFaults(b"")
        self.proxies: dict[FaultProxy, None] = {}
        """of the sockets that are open, in the order of their making"""
        self._tasks: set[asyncio.Task[None]] = set()
        monkeypatch.setattr(zmq_plane, "Outlet", partial(_ProxiedOutlet, self))

    async def close(self) -> None:
        for proxy in list(self.proxies):
            self.end(proxy)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def heal(self) -> None:
        """No fault any more, neither of connections nor of messages."""
        self.faults.set(0)
        for proxy in list(self.proxies):
            with contextlib.suppress(OSError):
                await proxy.heal()

    def begin(self, port: int) -> FaultProxy:
        proxy = FaultProxy(port, {"down": partial(ZmqMessageFilter, self.faults)})
        self.proxies[proxy] = None
        self._do(proxy.start())
        return proxy

    def end(self, proxy: FaultProxy) -> None:
        if proxy in self.proxies:
            del self.proxies[proxy]
            self._do(proxy.close())

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ProxiedOutlet(Outlet):
    def __init__(self, outlets: ProxiedOutlets, context: Any, host: str, advertised: str) -> None:
        super().__init__(context, host, advertised)
        self._outlets = outlets
        self._proxy = outlets.begin(int(self.address.rpartition(":")[2]))
        self.address = f"tcp://{self._proxy.address}"

    def close(self) -> None:
        super().close()
        self._outlets.end(self._proxy)
