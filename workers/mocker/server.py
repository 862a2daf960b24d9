"""MockServer: one mock engine behind a gRPC server of its own, publishing its cache events."""

import socket
from typing import Any

from grpc import aio

from ...runtime.clock import Clock, SystemClock
from ...runtime.errors import ConfigError
from ...runtime.event_plane import EventPlane
from ...runtime.identity import address_worker_id
from ..outbox import StoredRun
from ..publisher import KvEventPublisher
from .config import MockerConfig, parse_speeds
from .engine import MockEngine
from .kv_events import BlocksStored, KvEvent
from .kv_feed import KvEventFeed, chains
from .live import LiveEngine
from .servicer import TrtllmServicer

_MAX_MESSAGE_BYTES = 32 << 20
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),  # a port that is in use is an error, not half of the requests
]
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
    ) -> None:
        self.engine = MockEngine(config.engine)
        self.worker_id = -1  # until it listens, if it depends on the address
        self.address = ""
        self.publisher: KvEventPublisher | None = None
        self._config = config
        self._index = index
        self._plane = plane
        self._clock = clock or SystemClock()
        self._feed = KvEventFeed(self.engine)
        speeds = parse_speeds(config.worker_speeds)
        self._live = LiveEngine(
            self.engine,
            speedup_ratio=config.speedup_ratio * speeds[index % len(speeds)],
            clock=self._clock,
            on_events=self._on_events,
        )
        self._server: aio.Server | None = None

    @property
    def busy(self) -> bool:
        """Whether requests are here that have not been answered."""
        return self._live.busy

    async def start(self) -> None:
        """Listen and run. ConfigError if the port cannot be had."""
        config = self._config
        server = aio.server(options=_OPTIONS)
        port = config.port + self._index if config.port else 0
        try:
            port = server.add_insecure_port(f"{config.host}:{port}")
        except RuntimeError:
            port = 0
        if not port:
            await server.stop(None)
            wanted = f"{config.host}:{config.port + self._index}"
            raise ConfigError(f"cannot listen on {wanted}: is it in use?", key="port")
        self.address = f"{_advertised_host(config)}:{port}"
        if config.worker_id is None:
            self.worker_id = address_worker_id(self.address)
        else:
            self.worker_id = config.worker_id + self._index
        if self._plane is not None:
            self.publisher = KvEventPublisher(
                self._plane,
                worker_id=self.worker_id,
                namespace=config.namespace,
                component=config.component,
                endpoint=config.endpoint,
                snapshot=self._snapshot,
                clock=self._clock,
                # Room for the announcement of a full cache, and as much again.
                max_replay_bytes=(1 << 20) + 2 * _BYTES_PER_BLOCK * config.engine.num_gpu_blocks,
                heartbeat_s=config.heartbeat_s,
            )
            await self.publisher.start()
        servicer = TrtllmServicer(self._live, self._feed, config, self.worker_id)
        server.add_generic_rpc_handlers((servicer.handlers(),))
        self._live.start()
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those here finish for `grace_s`, end the rest. Idempotent."""
        await self._stop_serving(grace_s)
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            publisher.cleared()  # nobody should look for its blocks any more
            await publisher.close()

    async def kill(self) -> None:
        """Be gone at once, as a process that crashed: connections break, nothing is announced."""
        publisher, self.publisher = self.publisher, None
        await self._stop_serving(0.0)
        if publisher is not None:
            await publisher.close()

    async def _stop_serving(self, grace_s: float) -> None:
        if self._server is not None:
            self._feed.close()  # subscriptions never end by themselves
            await self._server.stop(grace_s or None)
            self._server = None  # not before: a stop that was cut short can be called again
        await self._live.stop()

    def _on_events(self, events: list[KvEvent]) -> None:
        self._feed.on_events(events)
        publisher = self.publisher
        if publisher is None:
            return
        for event in events:
            if isinstance(event, BlocksStored):
                publisher.stored(event.parent_hash, event.block_hashes, event.local_hashes)
            else:
                publisher.removed(event.block_hashes)

    def _snapshot(self) -> list[StoredRun]:
        """The whole cache as it is now, parents first."""
        return [
            StoredRun(chain.parent_hash, chain.block_hashes, chain.local_hashes)
            for chain in chains(self.engine.kv.cached_blocks())
        ]


def _advertised_host(config: MockerConfig) -> str:
    if config.advertise_host is not None:
        return config.advertise_host
    return socket.gethostname() if config.host in _WILDCARDS else config.host
