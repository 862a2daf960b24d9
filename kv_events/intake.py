"""The way of KV events into the index as `serve` sets it up: NATS server, plane, snapshot, sources,
feed.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from ..base.backoff import Backoff
from ..base.clock import Clock
from ..base.limit_hits import LimitHits
from ..base.urls import DEFAULT_NATS_URL, redact_url
from ..indexer.event_index import EventIndex, SnapshotHead
from ..process.settings import bad_setting
from ..runtime.components import EndpointName
from ..runtime.event_planes import (
    KV_EVENTS,
    EmbeddedNats,
    EventPlane,
    LocalPlane,
    NatsPlane,
    PlaneState,
    endpoint_subject,
    probe,
)
from ..runtime.kv_stores import NatsAddress
from ..transport.security import NatsAuth
from ..workers.registry import WorkerRegistry
from ..workers.worker_url import WorkerUrl
from .durable_events import DurableEvents, StateReset
from .event_sources import EventSources
from .event_subscribers import EventSubscribers
from .feed import EventFeed
from .index_peers import IndexPeers
from .resync_wire import ResyncRequest
from .settings import EventSettings
from .snapshot_task import SnapshotTask
from .source_choice import STREAMS, EventSource
from .unknown_publishers import UnknownPublishers

SYNC_RETRY_S = 0.5
"""Longest wait before NATS is tried again where routers share their load."""


class EventIntake:
    """Connects an index to the event plane, from `start` until `close`.

    The NATS server is the configured one, else one that answers at the default address, else one
    of our own where engines will have its address, else none. `plane` and `feed` are there once it
    was started, `snapshot` if one is configured.
    """

    plane: EventPlane
    feed: EventFeed

    def __init__(
        self,
        config: EventSettings,
        index: EventIndex,
        registry: WorkerRegistry,
        clock: Clock,
        *,
        client_of: Callable[[int], object],
        url_of: Callable[[int], WorkerUrl | None] = lambda worker_id: None,
        auth: NatsAuth | None = None,
        on_unannounced: Callable[[int], None] | None = None,
        hits: LimitHits | None = None,
        ask_worker: Callable[[ResyncRequest], bool] | None = None,
        pool: str = "",
        reset: StateReset | None = None,
    ) -> None:
        """`auth` is for the NATS server; `client_of` gives the way to a worker whose engine may
        send its events, `url_of` the URL we were given for it; `pool`: which set of the endpoint's
        workers the index is of, empty: all; `reset`: see DurableEvents; the others are for the
        feed."""
        self._config, self._index, self._registry, self._clock = config, index, registry, clock
        self._auth = auth
        self._unknown = UnknownPublishers(
            index, ttl_s=config.unknown_worker_ttl_s, hits=hits, on_unannounced=on_unannounced
        )
        self._ask_worker, self._pool, self._reset = ask_worker, pool, reset
        self._stack = AsyncExitStack()
        wanted = config.event_sources
        self._over_zmq = config.plane.is_zmq and wanted in ("auto", EventSource.ZMQ.label)
        streams = [stream for stream in STREAMS if wanted in ("auto", stream.label)]
        self._streams_only = wanted != "auto" and bool(streams) and not self._over_zmq
        self.sources = EventSources(
            index,
            registry,
            clock,
            block_size=config.router.block_size,
            plane=self._plane_source(),
            subscribers=EventSubscribers(client_of, url_of, config.router.block_size, streams),
        )
        self.nats_url: str | None = None
        self.description = ""
        """the server's URL without credentials, and where we have it from, for people"""
        self.is_embedded = False
        """whether it is a server of our own, which no other process uses"""
        self.snapshot: SnapshotTask | None = None
        self.durable: DurableEvents | None = None
        self.peers: IndexPeers | None = None

    async def start(self) -> None:
        """Listen to events, the last snapshot loaded. ConfigError if there can be no server."""
        config, stack = self._config, self._stack
        if self._over_zmq:
            self.description = f"over ZMQ, found in {config.backend}"
        elif self._streams_only:
            self.description = "from engines"
        else:
            self.nats_url, origin = await self._find_nats()
            shown = "from engines" if self.nats_url is None else redact_url(self.nats_url)
            self.description = f"{shown}{origin}"
            if self.nats_url is None:
                self.sources.plane = None
        if config.index_snapshot is not None:
            subject = endpoint_subject(
                config.namespace, config.component, config.endpoint, KV_EVENTS
            )
            self.snapshot = SnapshotTask(
                self._index,
                Path(config.index_snapshot),
                SnapshotHead(block_size=config.router.block_size, subject=subject),
                interval_s=config.index_snapshot_interval_s,
            )
            # Before the feed, which verifies what was loaded.
            await self.snapshot.start()
            stack.push_async_callback(self.snapshot.close)
        # Without a server the plane carries nothing.
        url = self.nats_url
        # Routers that share their load should not be apart for longer than they must.
        backoff = Backoff(cap=SYNC_RETRY_S) if config.router.router_replica_sync else None
        if self._over_zmq:
            self.plane = config.plane.open(config.discovery, config.backend, config.host)
            stack.push_async_callback(self.plane.close)
        elif url is None:
            self.plane = LocalPlane()
            stack.push_async_callback(self.plane.close)
        else:
            nats = NatsPlane(url, auth=self._auth, backoff=backoff)
            stack.push_async_callback(nats.close)
            self.plane = await self._open_stream(nats, url) if config.durable_kv_events else nats
            if config.router.router_replica_sync and not self.is_embedded:
                await self._borrow(nats)
        self.feed = EventFeed(
            self.plane,
            self._index,
            self._registry,
            self._clock,
            EndpointName(config.namespace, config.component, config.endpoint),
            unknown=self._unknown,
            ask_worker=self._ask_worker,
            sources=self.sources,
            caught_up=self._caught_up,
        )
        await self.feed.start()
        stack.push_async_callback(self.feed.close)

    def _plane_source(self) -> EventSource | None:
        """The event plane as a source; None if it is not to be used."""
        if self._streams_only:
            return None
        if self._config.durable_kv_events:
            return EventSource.JETSTREAM
        return EventSource.ZMQ_PLANE if self._over_zmq else EventSource.NATS

    @property
    def plane_state(self) -> PlaneState:
        """Of the event plane; CONNECTING until it is made."""
        return self.plane.state if hasattr(self, "plane") else PlaneState.CONNECTING

    async def close(self) -> None:
        """Undo what `start` did, in reverse. Idempotent."""
        await self._stack.aclose()

    async def _open_stream(self, nats: NatsPlane, url: str) -> EventPlane:
        """The stream's events instead of the plane's own; closed with this."""
        address = NatsAddress(url, self._auth)
        self.durable = DurableEvents(
            self._config, self._index, nats, address, pool=self._pool, reset=self._reset
        )
        self._stack.push_async_callback(self.durable.close)
        return await self.durable.open()

    async def _borrow(self, nats: NatsPlane) -> None:
        """Begin with the index of a router that runs, and lend ours to those that come."""
        config = self._config
        place = (config.namespace, config.component, config.endpoint)
        head = SnapshotHead(
            block_size=config.router.block_size, subject=endpoint_subject(*place, KV_EVENTS)
        )
        self.peers = IndexPeers(nats, self._index, head, self._clock, place=place, pool=self._pool)
        self._stack.push_async_callback(self.peers.close)
        await self.peers.start()
        await self.peers.borrow()

    def _caught_up(self) -> bool:
        return self.durable is None or self.durable.plane.caught_up

    async def _find_nats(self) -> tuple[str | None, str]:
        """(URL, where we have it from) of the NATS server to use; None: none, for engines that
        run already cannot know one of our own."""
        if self._config.nats is not None:
            return self._config.nats, ""
        if await probe(DEFAULT_NATS_URL):
            return DEFAULT_NATS_URL, " (found)"
        if self._config.durable_kv_events:
            text = "needs a NATS server with JetStream, which outlives the router: give --nats"
            raise bad_setting("durable_kv_events", text)
        if not self._config.starts_nats:
            return None, f" (no NATS server at {DEFAULT_NATS_URL})"
        embedded = await self._stack.enter_async_context(EmbeddedNats())
        embedded.keep_running()
        self.is_embedded = True
        return embedded.url, " (embedded)"
