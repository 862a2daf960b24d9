"""Events through a real NATS server until they are visible in the index: how many, how late.

Engines and their publishers are another process (event_source.py); this one is the router's side:
its event plane, its feed, its index.
"""

import asyncio
import logging
import sys
from functools import partial
from time import monotonic_ns, process_time
from typing import Any

import structlog
import uvloop

from ....base.clock import SystemClock
from ....base.errors import RouterError
from ....indexer.event_index import EventIndex
from ....indexer.wire import Stored, decode_event_message
from ....kv_events import EventFeed
from ....process.child_process import ask_module
from ....runtime.event_planes import EmbeddedNats, NatsPlane, PlaneState
from ....workers.registry import WorkerRegistry
from ...results import measure_in_turns, percentiles
from .config import IndexBenchConfig
from .event_source import (
    APPLIED,
    COMPONENT,
    CONNECT_TIMEOUT_S,
    ENDPOINT,
    NAMESPACE,
    LoadSpec,
    Sent,
)

STEADY_BLOCKS_PER_S = 100_000.0
RUN_BLOCKS = 128  # a prompt of 8192 tokens in blocks of 64
CACHE_BLOCKS = 1 << 14
WINDOW_BLOCKS = 1 << 18
TELL_S = 0.002  # between two reports to the engines of how far the index is
DRAIN_TIMEOUT_S = 30.0
SAMPLES = 20_000  # messages at most whose lag is kept


class WatchedIndex(EventIndex):
    """Notes when messages became visible: of every n-th one, after waiting for it."""

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
        if self._every and self._posted % self._every == 0 and len(self.seen) < SAMPLES:
            self.flush()
            self.seen.append((monotonic_ns(), message))
        return taken

    def lags_ms(self) -> list[float]:
        """From the engine's word to the index, of the first stored event of each message seen."""
        lags = []
        for when, message in self.seen:
            for event in decode_event_message(message):
                if isinstance(event.data, Stored):
                    lags.append((when - event.data.blocks[0].block_hash) / 1e6)
                    break
        return lags


def measure_events(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per load ("all": as much as goes through; "steady") and worker count.

    `stored_per_s` counts stored blocks only, `blocks_per_s` evicted ones too. RouterError if an
    event was lost on the way, or the engines could not keep their own times.
    """
    loads = {"all": None, "steady": STEADY_BLOCKS_PER_S}
    variants = {
        (workers, load): partial(_run, config, workers, rate)
        for workers in config.workers
        for load, rate in loads.items()
    }
    rounds = measure_in_turns(variants, min(3, config.rounds))
    return [
        {"load": load, "workers": workers, "run_blocks": RUN_BLOCKS} | figures
        for (workers, load), figures in rounds.spreads().items()
    ]


def _run(config: IndexBenchConfig, workers: int, rate: float | None) -> dict[str, float]:
    spec = LoadSpec(
        url="",
        engines=workers,
        seconds=config.event_seconds,
        run_blocks=RUN_BLOCKS,
        cache_blocks=CACHE_BLOCKS,
        blocks_per_s=rate,
        window_blocks=WINDOW_BLOCKS,
        seed=config.seed,
    )
    kept = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        return uvloop.run(_measure(spec))  # the loop that `serve` runs on
    finally:
        structlog.configure(**kept)


async def _measure(spec: LoadSpec) -> dict[str, float]:
    server = EmbeddedNats()
    await server.start()
    # Waiting for each message would slow the full load down: there only the sum counts.
    index = WatchedIndex(every=0 if spec.blocks_per_s is None else 2)
    plane = NatsPlane(server.url)
    feed = EventFeed(
        plane,
        index,
        WorkerRegistry(),
        SystemClock(),
        namespace=NAMESPACE,
        component=COMPONENT,
        endpoint=ENDPOINT,
    )
    reader = Reader(plane, index)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while plane.state is not PlaneState.CONNECTED:
                await asyncio.sleep(0.01)
        await feed.start()
        telling = asyncio.create_task(reader.run())
        try:
            spec.url = server.url
            cpu = process_time()
            sent = await _load(spec)
            ended = await reader.has_all(sent)
            cpu = process_time() - cpu
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        return _digest(spec, index, sent, (ended - sent.began_ns) / 1e9, cpu)
    finally:
        await feed.close()
        await plane.close()
        index.close()
        await server.stop()


class Reader:
    """Watches the index grow, and lets the engines know how far it is."""

    def __init__(self, plane: NatsPlane, index: EventIndex) -> None:
        self._plane = plane
        self._index = index
        self._applied = (0, 0)  # stored and removed blocks
        self._changed_ns = monotonic_ns()

    async def run(self) -> None:
        while True:
            self._look()
            await self._plane.publish(APPLIED, str(sum(self._applied)).encode())
            await asyncio.sleep(TELL_S)

    async def has_all(self, sent: Sent) -> int:
        """The monotonic time in ns at which the last event was visible.

        RouterError if one never is.
        """
        deadline = monotonic_ns() + int(DRAIN_TIMEOUT_S * 1e9)
        while monotonic_ns() < deadline:
            self._look()
            if self._applied == (sent.stored, sent.removed):
                return self._changed_ns
            await asyncio.sleep(TELL_S)
        raise RouterError(
            f"of {sent.stored} stored and {sent.removed} removed blocks {self._applied[0]} and"
            f" {self._applied[1]} arrived"
        )

    def _look(self) -> None:
        counters = self._index.tier_counters()["device"]
        applied = counters["stored"], counters["removed"]
        if applied != self._applied:
            self._applied = applied
            self._changed_ns = monotonic_ns()


async def _load(spec: LoadSpec) -> Sent:
    module = "dynamo_router.bench.workbench.index.event_source"
    return await ask_module(module, spec, Sent, "the engines of the event benchmark")


def _digest(
    spec: LoadSpec, index: WatchedIndex, sent: Sent, seconds: float, cpu: float
) -> dict[str, float]:
    if sent.given_up:
        raise RouterError(f"the engines' publishers gave up changes {sent.given_up} times")
    blocks = sent.stored + sent.removed
    measured = {
        "stored_per_s": sent.stored / seconds,
        "blocks_per_s": blocks / seconds,
        "messages_per_s": sent.messages / seconds,
        "events_per_message": sent.events / sent.messages,
        "bytes_per_message": index.bytes / sent.messages,
        "router_cpu_share": cpu / seconds,
        "engines_cpu_share": sent.cpu_s / seconds,
        "stored_per_router_cpu_s": sent.stored / cpu,
        "engines_late_ms": sent.late_ms,
    }
    lags = index.lags_ms()
    if lags:
        p50, p99 = percentiles(lags, 50, 99)
        measured |= {"lag_p50_ms": p50, "lag_p99_ms": p99}
    return measured
