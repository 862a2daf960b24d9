"""EngineServer: one engine behind a gRPC server of its own, publishing its cache events."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...base.clock import Clock, SystemClock
from ...base.errors import ConfigError
from ...base.identity import address_worker_id
from ...base.urls import joined
from ...process.system import why_cannot_listen
from ...runtime.event_planes import EventPlane
from ...transport.grpc_methods import Methods, served_plainly
from ...transport.http2 import Http2Server, ServerLimits
from ...transport.security import ServerTls
from ..event_stream import PublisherLimits
from ..outbox import StoredRun
from ..publisher import KvEventPublisher
from .config import ServingConfig
from .engine import ServedEngine
from .kv_events import ENGINE_TIERS, BlocksRemoved, BlocksStored, KvEvent, chains
from .kv_feed import KvEventFeed
from .registration import WorkerRegistration
from .servicer import TrtllmServicer

_BYTES_PER_BLOCK = 64  # of an event, about
_WILDCARDS = ("0.0.0.0", "::", "[::]")


class EngineServer:
    """From `start` to `stop` it listens, and its engine runs and publishes; once."""

    def __init__(
        self,
        config: ServingConfig,
        engine: ServedEngine,
        *,
        plane: EventPlane | None = None,
        clock: Clock | None = None,
        tls: ServerTls | None = None,
        registration: WorkerRegistration | None = None,
        feed: KvEventFeed | None = None,
        around: Callable[[Methods], Methods] = lambda methods: methods,
    ) -> None:
        """`registration`: under which it is found; without one it is not. `feed`: of the engine's
        events for gRPC subscribers, if it is a special one; `around` is what calls go through.
        The plane stays its owner's to close, after `stop`."""
        self.engine = engine
        self.worker_id = -1  # until it listens, if it depends on the address
        self.address = ""
        self.registration = registration
        self._config = config
        self._plane = plane
        self._clock = clock or SystemClock()
        self._tls = tls
        self._feed = feed
        self._around = around
        self._publishers: list[KvEventPublisher] = []  # one for each rank
        self._server: Http2Server | None = None
        self._beat_timer: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Where it listens: grpc:// or, with TLS, grpcs://."""
        return f"{'grpc' if self._tls is None else 'grpcs'}://{self.address}"

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(self.address.rpartition(":")[2])

    async def start(self, first_event_id: int = 1) -> None:
        """Take the port, start the engine, then answer and be found. ConfigError if the port cannot
        be had, before the engine is started; else as the engine's `start`."""
        config = self._config
        server = Http2Server(
            ServerLimits(), None if self._tls is None else self._tls.http2_context()
        )
        try:
            port = server.bind(config.host, config.port)
        except OSError:
            await server.stop(0.0)
            key, reason = why_cannot_listen(config.host, config.port)
            wanted = joined(config.host, config.port)
            raise ConfigError(f"cannot listen on {wanted}: {reason}", key=key) from None
        try:
            self.address = joined(_advertised_host(config), port)
            await self.engine.start(self._on_events)
            await self._begin(server, first_event_id)
        except BaseException:
            if self._server is None:
                await server.stop(0.0)
            raise

    async def _begin(self, server: Http2Server, first_event_id: int) -> None:
        config, engine = self._config, self.engine
        if self.registration is not None:
            self.worker_id = await self.registration.start(config.worker_id)
        elif config.worker_id is None:
            self.worker_id = address_worker_id(self.address)
        else:
            self.worker_id = config.worker_id
        await self._start_publishers(first_event_id)
        if self._feed is None:
            self._feed = KvEventFeed(engine)
        publishers = [publisher.publisher_id for publisher in self._publishers]
        facts = replace(engine.facts, model_id=config.model_id or engine.facts.model_id)
        feed = self._feed if config.kv_stream else None
        servicer = TrtllmServicer(engine, feed, facts, self.worker_id, publishers)
        methods = self._around(servicer.methods()).items()
        await server.start({path: served_plainly(method) for path, method in methods})
        self._server = server
        if self.registration is not None:
            await self.registration.announce(
                self.worker_id, self.url, engine, self._publishers, self._snapshot
            )
        if config.heartbeat_s > 0:
            self._beat()

    async def _start_publishers(self, first_event_id: int) -> None:
        config, engine, plane = self._config, self.engine, self._plane
        if plane is None:
            return
        # Enough for the announcement of a full cache, and as much again.
        blocks = engine.facts.settings.get("total_kv_blocks", 0) + engine.lower_blocks
        limits = PublisherLimits(max_replay_bytes=(1 << 20) + 2 * _BYTES_PER_BLOCK * blocks)
        publishers = [
            KvEventPublisher(
                plane,
                worker_id=self.worker_id,
                dp_rank=rank,
                namespace=config.namespace,
                component=config.component,
                endpoint=config.endpoint,
                snapshot=partial(self._snapshot, rank),
                clock=self._clock,
                start_event_id=first_event_id,
                heartbeat_s=config.heartbeat_s,
                limits=limits,
            )
            for rank in range(engine.dp_size)
        ]
        for rank, publisher in enumerate(publishers):
            await publisher.start()
            for run in self._snapshot(rank):  # of what it computed to warm up
                publisher.stored(*run)
            self._publishers.append(publisher)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those here finish for `grace_s`, end the rest. Idempotent."""
        if self.registration is not None:
            await self.registration.withdraw()
            await self.registration.drained(grace_s)
        await self._stop_serving(grace_s)
        publishers, self._publishers = self._publishers, []
        for publisher in publishers:
            publisher.cleared()  # no router should look for its blocks any more
            await publisher.close()
        if self.registration is not None:
            await self.registration.close()

    async def kill(self) -> None:
        """Be gone at once, as a process that crashed: connections break, nothing is announced."""
        publishers, self._publishers = self._publishers, []
        if self.registration is not None:
            await self.registration.abandon()
        await self._stop_serving(None)
        for publisher in publishers:
            await publisher.close()

    async def _stop_serving(self, grace_s: float | None) -> None:
        """None: connections break."""
        if self._server is not None:
            if self._beat_timer is not None:
                self._beat_timer.cancel()
            if self._feed is not None:
                self._feed.close()  # subscriptions never end by themselves
            if grace_s is None:
                await self._server.kill()
            else:
                await self._server.stop(grace_s)
            self._server = None  # not before: a stop that was cut short can be called again
        await self.engine.stop()

    def _beat(self) -> None:
        """Say to subscribers which batch was the last, and again later."""
        assert self._feed is not None
        self._feed.beat()
        loop = asyncio.get_running_loop()
        self._beat_timer = loop.call_later(self._config.heartbeat_s, self._beat)

    def _on_events(self, rank: int, events: list[KvEvent]) -> None:
        if self._feed is not None:
            self._feed.on_events(rank, events)
        if rank >= len(self._publishers):
            return  # its cache is announced when it has one
        publisher = self._publishers[rank]
        for event in events:
            if isinstance(event, BlocksStored):
                publisher.stored(
                    event.parent_hash, event.block_hashes, event.local_hashes, event.tier
                )
            elif isinstance(event, BlocksRemoved):
                publisher.removed(event.block_hashes, event.tier)
            else:
                publisher.cleared()

    def _snapshot(self, rank: int) -> list[StoredRun]:
        """The whole cache of a rank as it is now, the device first, in each tier parents first."""
        return [
            StoredRun(chain.parent_hash, chain.block_hashes, chain.local_hashes, tier)
            for tier in ENGINE_TIERS
            for chain in chains(self.engine.cached_blocks(rank, tier), tier)
        ]


def _advertised_host(config: ServingConfig) -> str:
    if config.advertise_host is not None:
        return config.advertise_host
    return socket.gethostname() if config.host in _WILDCARDS else config.host
