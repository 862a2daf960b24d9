"""The router's side of events that engines publish until the index shows them, over each way.

Engines are another process (stream_source.py); this one has what `serve` has: the feed of the event
plane, or a stream for each engine, and the one index.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from time import monotonic_ns, process_time

import structlog
import uvloop

from ...base.clock import SystemClock
from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...indexer.event_index import EventIndex
from ...indexer.wire import Stored, decode_event_message
from ...kv_events import EngineStream, EventFeed, EventSubscribers, StreamCounts
from ...process.child_process import ask_module
from ...runtime.components import EndpointName
from ...runtime.event_planes import EmbeddedNats, NatsPlane
from ...workers.registry import WorkerRegistry
from ...workers.trtllm_client import TrtllmClient
from ...workers.worker_url import WorkerUrl
from ..results import percentiles
from .stream_source import APPLIED, ENDPOINT, Published, StreamLoad, until_connected

STANDSTILL_S = 60.0
"""After so long in which nothing became visible nothing more is waited for."""
LOOK_S = 0.002
"""between two looks at what is visible, which engines over NATS get"""
LAG_EVERY, LAG_SAMPLES = 2, 20_000
"""It is noted when each second message became visible, of LAG_SAMPLES at most."""

Look = Callable[[int], Awaitable[None]]
"""Called with the number of stored blocks that are visible. RouterError if no more will come."""


class WatchedIndex(EventIndex):
    """Notes when messages became visible: of every n-th one, after waiting for it; 0: of none."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every
        self._posted = 0
        self.bytes = 0
        self.seen: list[tuple[int, bytes]] = []

    def post(self, message: bytes) -> bool:
        taken = super().post(message)
        self._posted += 1
        self.bytes += len(message)
        if self._every and self._posted % self._every == 0 and len(self.seen) < LAG_SAMPLES:
            self.flush()
            self.seen.append((monotonic_ns(), message))
        return taken

    def post_all(self, messages: list[bytes]) -> int:
        return sum(not self.post(message) for message in messages)

    def lags_ms(self) -> list[float]:
        """From the engine's word to the index, of the first stored event of each message seen."""
        lags = []
        for when, message in self.seen:
            for event in decode_event_message(message):
                if isinstance(event.data, Stored):
                    lags.append((when - event.data.blocks[0].block_hash) / 1e6)
                    break
        return lags


def measure_stream(load: StreamLoad) -> dict[str, float]:
    """One round. RouterError if an event was lost on the way.

    `stored_per_s` counts stored blocks only, `blocks_per_s` evicted ones too. Over NATS at a rate
    there is the lag, too, from an engine's word to the index.
    """
    kept = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        return uvloop.run(_measure(load))  # the loop that `serve` runs on
    finally:
        structlog.configure(**kept)


async def _measure(load: StreamLoad) -> dict[str, float]:
    over_nats = load.way == "nats"
    # Waiting for each message would slow the full load down: there only the sum counts.
    with closing(WatchedIndex(LAG_EVERY if over_nats and load.blocks_per_s else 0)) as index:
        async with (_over_nats if over_nats else _over_streams)(load, index) as look:
            cpu = process_time()
            module = "dynamo_router.bench.workbench.stream_source"
            asked = ask_module(module, load, Published, "the engines of the benchmark")
            publishing = asyncio.create_task(asked)
            seen_ns = await _all_seen(index, look, load, publishing)
            cpu = process_time() - cpu
        published = await publishing
        removed = index.tier_counters()["device"]["removed"]
    if published.given_up:
        raise RouterError(f"the engines' publishers gave up changes {published.given_up} times")
    seconds = (seen_ns - published.began_ns) / 1e9
    figures = {
        "stored_per_s": published.stored / seconds,
        "blocks_per_s": (published.stored + removed) / seconds,
        "messages_per_s": published.messages / seconds,
        "events_per_message": published.events / published.messages,
        "bytes_per_message": (published.bytes or index.bytes) / published.messages,
        "router_cpu_share": cpu / seconds,
        "engines_cpu_share": published.cpu_s / seconds,
        "stored_per_router_cpu_s": published.stored / cpu,
    }
    if lags := index.lags_ms():
        figures["lag_p50_ms"], figures["lag_p99_ms"] = percentiles(lags, 50, 99)
        figures["engines_late_ms"] = published.late_ms
    return figures


async def _all_seen(
    index: EventIndex, look: Look, load: StreamLoad, publishing: asyncio.Task[Published]
) -> int:
    """The monotonic time in ns at which the last stored block was visible."""
    stored = load.stored_blocks
    seen, changed_ns = 0, monotonic_ns()
    while stored is None or seen < stored:
        if publishing.done():
            stored = publishing.result().stored  # or it raises what they failed with
        if monotonic_ns() - changed_ns > STANDSTILL_S * 1e9:
            raise RouterError(f"of {stored} stored blocks {seen} arrived")
        before, seen = seen, index.tier_counters()["device"]["stored"]
        changed_ns = monotonic_ns() if seen > before else changed_ns
        await look(seen)
        await asyncio.sleep(LOOK_S)
    return changed_ns


@asynccontextmanager
async def _over_nats(load: StreamLoad, index: EventIndex) -> AsyncIterator[Look]:
    """The feed of an event plane, over a nats-server of our own."""
    namespace, component, endpoint = ENDPOINT
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats())
        load.url = server.url
        plane = NatsPlane(server.url)
        stack.push_async_callback(plane.close)
        feed = EventFeed(
            plane,
            index,
            WorkerRegistry(),
            SystemClock(),
            EndpointName(namespace, component, endpoint),
        )
        stack.push_async_callback(feed.close)
        await until_connected(plane)
        await feed.start()

        async def look(stored: int) -> None:
            await plane.publish(APPLIED, str(stored).encode())

        yield look


class _Listener:
    """Watches the state of a stream: one that is refused ends the measurement."""

    def __init__(self) -> None:
        self.refused = ""

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        pass

    def on_refused(self, worker_id: int, reason: str) -> None:
        self.refused = reason


@asynccontextmanager
async def _over_streams(load: StreamLoad, index: EventIndex) -> AsyncIterator[Look]:
    """A stream for each engine, from a port of its own."""
    load.ports = _free_ports(load.engines)
    listener, counts = _Listener(), StreamCounts()
    async with AsyncExitStack() as stack:
        clients = [TrtllmClient(f"127.0.0.1:{port}") for port in load.ports]
        for client in clients:
            stack.push_async_callback(client.close)
        subscribers = EventSubscribers(clients.__getitem__, partial(_url, load), load.block_size)
        for worker in range(load.engines):
            stream = EngineStream(
                worker,
                [0],
                index,
                listener,
                counts,
                block_size=load.block_size,
                subscribers=subscribers,
            )
            stack.push_async_callback(stream.close)
            index.announce_publisher(WorkerWithDpRank(worker), stream.publisher_id(0))
            stream.believe(True)
            stream.open()

        async def look(stored: int) -> None:
            if listener.refused:
                raise RouterError(f"the events were refused: {listener.refused}")

        yield look
    if counts.gaps:
        raise RouterError(f"{counts.gaps} times messages were missing")


def _url(load: StreamLoad, worker: int) -> WorkerUrl:
    address = f"127.0.0.1:{load.ports[worker]}"
    return WorkerUrl(address, events=f"tcp://{address}" if load.way == "zmq" else None)


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
