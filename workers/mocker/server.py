"""MockServer: one mock engine behind a gRPC server of its own, publishing its cache events."""

import asyncio
import socket
from functools import partial

import grpc

from ...runtime.clock import Clock, SystemClock
from ...runtime.errors import ConfigError
from ...runtime.event_planes import EventPlane
from ...runtime.grpc_servers import GrpcListener, make_listener, served_plainly
from ...runtime.http2 import ServerLimits
from ...runtime.identity import address_worker_id
from ...runtime.security import ServerTls
from ..channels import NGHTTP2, data_path_of
from ..event_stream import PublisherLimits
from ..outbox import StoredRun
from ..publisher import KvEventPublisher
from .config import MockerConfig, parse_speeds
from .dp_engine import DataParallelEngine
from .engine import ENGINE_TIERS, MockEngine
from .faults import HEALTHY, Fault, FaultyPlane
from .kv_events import BlocksStored, KvEvent
from .kv_feed import KvEventFeed, chains
from .registration import WorkerRegistration
from .servicer import TrtllmServicer

_BYTES_PER_BLOCK = 64  # of an event, about
_WILDCARDS = ("0.0.0.0", "::", "[::]")


class MockServer:
    """Engine number `index` of a mocker: from `start` to `stop` it listens, runs and publishes."""

    def __init__(
        self,
        config: MockerConfig,
        index: int,
        *,
        plane: EventPlane | None = None,
        clock: Clock | None = None,
        tls: ServerTls | None = None,
        registration: WorkerRegistration | None = None,
    ) -> None:
        """`registration`: under which it is found; without one it is not."""
        self._tls = tls
        self.registration = registration
        self.worker_id = -1  # until it listens, if it depends on the address
        self.address = ""
        self.fault = HEALTHY
        self._config = config
        self._index = index
        self._port = config.port + index if config.port else 0
        self._plane = FaultyPlane(plane) if plane is not None else None
        self._clock = clock or SystemClock()
        speeds = parse_speeds(config.worker_speeds)
        self._speedup = config.speedup_ratio * speeds[index % len(speeds)]
        self._publishers: list[KvEventPublisher] = []  # one for each rank
        self._server: GrpcListener | None = None
        self._servicer: TrtllmServicer | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()
        self._build()

    def _build(self) -> None:
        """New ranks with empty caches."""
        self.ranks = DataParallelEngine(
            self._config.engine,
            speedup_ratio=self._speedup,
            clock=self._clock,
            on_events=self._on_events,
        )
        self._feed = KvEventFeed(self.ranks.engines)

    @property
    def engine(self) -> MockEngine:
        """The engine, or its rank 0."""
        return self.ranks.engines[0]

    @property
    def url(self) -> str:
        """Where it listens: grpc:// or, with TLS, grpcs://."""
        return f"{'grpc' if self._tls is None else 'grpcs'}://{self.address}"

    @property
    def busy(self) -> bool:
        """Whether requests are here that have not been answered."""
        return self.ranks.busy

    async def start(self, first_event_id: int = 1) -> None:
        """Listen and run. ConfigError if the port cannot be had."""
        config = self._config
        native = data_path_of(config) == NGHTTP2
        server = make_listener(ServerLimits(), self._tls, native=native)
        try:
            port = server.bind(config.host, self._port)
        except OSError:
            await server.stop(0.0)
            wanted = f"{config.host}:{self._port}"
            raise ConfigError(f"cannot listen on {wanted}: is it in use?", key="port") from None
        self._port = port
        self.address = f"{_advertised_host(config)}:{port}"
        given = None if config.worker_id is None else config.worker_id + self._index
        if self.registration is not None:
            self.worker_id = await self.registration.start(given)
        else:
            self.worker_id = address_worker_id(self.address) if given is None else given
        if self._plane is not None:
            # Enough for the announcement of a full cache, and as much again.
            tiers = config.engine.tiers
            blocks = config.engine.num_gpu_blocks + tiers.host_blocks + tiers.disk_blocks
            replay_bytes = (1 << 20) + 2 * _BYTES_PER_BLOCK * blocks
            self._publishers = [
                KvEventPublisher(
                    self._plane,
                    worker_id=self.worker_id,
                    dp_rank=rank,
                    namespace=config.namespace,
                    component=config.component,
                    endpoint=config.endpoint,
                    snapshot=partial(self._snapshot, rank),
                    clock=self._clock,
                    start_event_id=first_event_id,
                    heartbeat_s=config.heartbeat_s,
                    limits=PublisherLimits(max_replay_bytes=replay_bytes),
                )
                for rank in range(config.engine.dp_size)
            ]
            for publisher in self._publishers:
                await publisher.start()
        publishers = [publisher.publisher_id for publisher in self._publishers]
        self._servicer = TrtllmServicer(self.ranks, self._feed, config, self.worker_id, publishers)
        methods = self._servicer.methods().items()
        self.ranks.start()
        await server.start({path: served_plainly(method) for path, method in methods})
        self._server = server
        if self.registration is not None:
            await self.registration.announce(
                self.worker_id, self.url, self.ranks, self._publishers, self._snapshot
            )
        if config.heartbeat_s > 0:
            self._beat()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those here finish for `grace_s`, end the rest. Idempotent."""
        if self.registration is not None:
            await self.registration.withdraw()
            await self.registration.drained(grace_s)
        await self._stop_serving(grace_s)
        publishers, self._publishers = self._publishers, []
        for publisher in publishers:
            publisher.cleared()  # nobody should look for its blocks any more
            await publisher.close()
        if self._plane is not None:
            await self._plane.close()
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

    async def set_fault(self, fault: Fault) -> None:
        """Be as `fault` says from now on. ConfigError if it cannot listen again after a crash."""
        async with self._changing:
            if fault.crash:
                await self.kill()
            elif self._server is None:
                await self._start_again(1)
            self.fault = fault
            self.ranks.slow_down(fault.slow)
            self.ranks.hang(fault.hang)
            if self._servicer is not None:
                self._servicer.failure = fault.fail and grpc.StatusCode[fault.fail]
            self._feed.set_fault(fault)
            if self._plane is not None:
                await self._plane.set_fault(fault)

    async def restart(self, first_event_id: int = 0) -> None:
        """Crash, and be back in place: healthy, empty, events numbered from `first_event_id`."""
        async with self._changing:
            await self.kill()
            await self._start_again(first_event_id)
            self.fault = HEALTHY
            if self._plane is not None:
                await self._plane.set_fault(HEALTHY)

    async def _start_again(self, first_event_id: int) -> None:
        self._build()
        await self.start(first_event_id)

    async def _stop_serving(self, grace_s: float | None) -> None:
        """None: connections break."""
        if self._server is not None:
            if self._beat_timer is not None:
                self._beat_timer.cancel()
            self._feed.close()  # subscriptions never end by themselves
            if grace_s is None:
                await self._server.kill()
            else:
                await self._server.stop(grace_s)
            self._server = None  # not before: a stop that was cut short can be called again
        await self.ranks.stop()

    def _beat(self) -> None:
        """Say to subscribers which batch was the last, and again later."""
        self._feed.beat()
        loop = asyncio.get_running_loop()
        self._beat_timer = loop.call_later(self._config.heartbeat_s, self._beat)

    def _on_events(self, rank: int, events: list[KvEvent]) -> None:
        self._feed.on_events(rank, events)
        if not self._publishers:
            return
        publisher = self._publishers[rank]
        for event in events:
            if isinstance(event, BlocksStored):
                publisher.stored(
                    event.parent_hash, event.block_hashes, event.local_hashes, event.tier
                )
            else:
                publisher.removed(event.block_hashes, event.tier)

    def _snapshot(self, rank: int) -> list[StoredRun]:
        """The whole cache of a rank as it is now, the device first, in each tier parents first."""
        return [
            StoredRun(chain.parent_hash, chain.block_hashes, chain.local_hashes, tier)
            for tier in ENGINE_TIERS
            for chain in chains(self.ranks.engines[rank].cached_blocks(tier), tier)
        ]


def _advertised_host(config: MockerConfig) -> str:
    if config.advertise_host is not None:
        return config.advertise_host
    return socket.gethostname() if config.host in _WILDCARDS else config.host
