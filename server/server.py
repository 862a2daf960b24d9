"""Server: listeners in front of pools of workers, run together in one event loop."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import structlog

from ..process.supervised import all_done
from .config import ServeConfig
from .fronts import SharedChanges, share_replicas
from .live_settings import LivePools, LiveSettings
from .pool import WorkerPool
from .server_parts import ServerParts

log = structlog.get_logger(__name__)


class Pools(LivePools, Protocol):
    """The pools of a server: the one that is configured, or one for each set of workers that is
    found."""

    @property
    def description(self) -> str:
        """Their part of the ready line."""
        ...

    @property
    def running(self) -> Iterable[WorkerPool]:
        """Those that requests are routed in."""
        ...

    async def start(self) -> None:
        """Find the workers, and take requests. ConfigError if that cannot be had."""

    async def wait_for_probes(self) -> None:
        """Wait until every worker that is there was probed once, or that takes long."""

    async def close(self) -> None:
        """End all of them, started or not. Idempotent."""


class Listener(Protocol):
    """A port of a server, and what it serves: gRPC, OpenAI's API, or admin routes."""

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        ...

    async def listen(self) -> None:
        """Take the port. ConfigError if it cannot be had."""

    async def start(self) -> None:
        """Answer, at the latest from now on: the pools take requests."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""

    async def close(self) -> None:
        """End what is left. Idempotent."""


class Server:
    """A whole service. `close` ends all that it was made of, started or not."""

    def __init__(
        self,
        parts: ServerParts,
        pools: Pools,
        listeners: Sequence[Listener],
        settings: LiveSettings,
        changes: SharedChanges,
        *,
        exposed: Callable[[], Iterable[str]],
    ) -> None:
        """The listeners take their ports in this order. `changes` are those that admin calls make;
        `exposed` is what the listeners leave open to others, once they have their ports."""
        self._parts, self.pools, self.listeners = parts, pools, listeners
        self._settings, self._changes, self._exposed = settings, changes, exposed
        siblings = self._siblings = parts.siblings
        siblings.state = self._state
        share_replicas(siblings, parts.config.router_id, lambda: pools.running)
        parts.history.watch(
            lambda: [(pool.dashboard.model(), pool.dashboard.history) for pool in pools.running]
        )
        self._stack = AsyncExitStack()
        self._stack.push_async_callback(parts.close)
        self._stack.push_async_callback(pools.close)
        self._stack.push_async_callback(parts.history.close)
        self._started = False

    @property
    def config(self) -> ServeConfig:
        """What it is run by now."""
        return self._parts.config

    @property
    def ready_line(self) -> str:
        words = [listener.description for listener in self.listeners]
        return f"dynamo-router ready: {' '.join([*words, self.pools.description])}"

    def reload(self) -> None:
        """Read the settings again; what comes of it is in the log."""
        reloader = self._settings.reloader
        if reloader is None or not self._started:
            log.warning(
                "SIGHUP: the settings are not read again while the server starts: send it later"
            )
        else:
            reloader.on_signal()

    async def start(self) -> None:
        """Take the ports, start the pools, serve.

        ConfigError if something of that cannot be had. Call `close` in any case.
        """
        shares_ports = self._parts.shares_ports
        if not shares_ports:
            # Ports first: they are what fails, and nothing has been started yet.
            await self._listen()
        self._parts.start()
        await self.pools.start()
        await self._siblings.start()
        if shares_ports:
            # Ports last: until this process can serve, connections are to go to the others.
            await self.pools.wait_for_probes()
            await self._changes.catch_up()
            await self._listen()
        for listener in self.listeners:
            await listener.start()
        await self.pools.wait_for_probes()
        self._started = True

    async def _listen(self) -> None:
        for listener in self.listeners:
            await listener.listen()
        for line in self._exposed():
            log.warning(line)

    def turn_away(self) -> None:
        """Show by health that no more requests should come, and go on serving them."""
        self._parts.turn_away()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""
        self.turn_away()
        await all_done(listener.drain(grace_s) for listener in self.listeners)

    async def close(self) -> None:
        """End what is left. No task, child, thread or socket of it survives. Idempotent."""
        self._parts.draining = True
        for listener in reversed(self.listeners):
            await listener.close()
        await self._siblings.close()
        await self._stack.aclose()

    def _state(self) -> dict[str, Any]:
        """For /health of all processes."""
        pools = list(self.pools.running)
        return {
            "in_flight": sum(pool.dispatcher.in_flight for pool in pools),
            "requests": sum(pool.metrics.requests.started for pool in pools),
            "draining": self._parts.draining,
        }
