"""dynamo-router bench bookings: what it costs routers in front of the same workers to share load.

One router sends its bookings, one receives those of all the others; both as `serve` has them, in
this process, without a network. CPU is that of the thread, of a request's whole life: booked, its
first token out, over.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from rich.table import Table

from ...base.clock import SystemClock
from ...process.setting_checks import require_at_least
from ...process.settings import option
from ...router.config import KvRouterConfig
from ...router.kv_router import KvRouter
from ...router.replicas import Replica
from ...slots.peers import decode_message, encode_message
from ..results import Benchmark, Column, measure_in_turns, spread_table

BLOCK_SIZE = 16
CACHED_BLOCKS = 8
OUTPUT_TOKENS = 100


@dataclass(frozen=True, kw_only=True)
class BookingsBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    routers: int = option(8, "Routers in front of the same workers.")
    workers: int = option(64, "Workers.")
    blocks: int = option(128, "Blocks of a prompt.")
    batch: int = option(8, "Requests per message between routers.")
    requests: int = option(256, "Requests of each router in a round.")
    rounds: int = option(9, "Rounds, after one to warm up; medians of them are reported.")
    policy: str = option(
        "forecast", "The policy; one that learns observes the requests of other routers."
    )
    core: int | None = option(None, "Pin this process to a CPU core (steadier).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "workers", "batch", "requests", "rounds")
        require_at_least(self, 2, "routers")
        require_at_least(self, CACHED_BLOCKS, "blocks")


class Site:
    """A router and its part in sharing load."""

    def __init__(self, router_id: int, config: BookingsBenchConfig, clock: SystemClock) -> None:
        settings = KvRouterConfig(
            block_size=BLOCK_SIZE,
            use_kv_events=False,
            router_replica_sync=True,
            policy=config.policy,
        )
        self.router = KvRouter(settings, clock=clock)
        for worker_id in range(config.workers):
            self.router.add_worker(worker_id)
        load = self.router.count_peers()
        self.slots = load.slots
        self.replica = Replica(load, router_id)


class Bookings:
    """Rounds of requests: each is booked at its router, sent to the others, and received by one."""

    def __init__(self, config: BookingsBenchConfig) -> None:
        self._config, self._clock = config, SystemClock()
        self._receiver = Site(1, config, self._clock)
        self._others = [Site(2 + n, config, self._clock) for n in range(config.routers - 1)]
        self._rng = np.random.default_rng(1)
        self._names = count()
        for site in self._others:
            for message in site.replica.on_connected(self._clock.now()):
                self._receiver.replica.hear(message, self._clock.now())

    def round(self) -> dict[str, float]:
        """us of CPU a request: to publish its booking, to apply one of another router."""
        publishing, messages = 0.0, []
        for _ in range(0, self._config.requests, self._config.batch):
            for site in self._others:
                seconds, batches = self._publishing(site)
                publishing += seconds
                messages += batches
        requests = len(messages) // 3 * self._config.batch
        began = time.thread_time()
        for message in messages:
            self._receiver.replica.hear(decode_message(message), self._clock.now())
        applying = time.thread_time() - began
        return {"told_us": publishing / requests * 1e6, "heard_us": applying / requests * 1e6}

    def close(self) -> None:
        for site in (self._receiver, *self._others):
            site.router.close()

    def _publishing(self, site: Site) -> tuple[float, list[bytes]]:
        """Seconds that publishing a batch of requests adds, and its messages."""
        config, rng = self._config, self._rng
        shape = (config.batch, config.blocks)
        hashes = rng.integers(0, 2**63, shape, dtype=np.uint64)
        numbers = rng.integers(0, config.workers, config.batch).tolist()
        names = [f"request-{next(self._names)}" for _ in range(config.batch)]
        sent: list[bytes] = []

        def publish() -> None:
            sent.extend(encode_message(batch) for batch in site.replica.batches())

        listener, site.slots.listener = site.slots.listener, None
        alone = self._lived(site, names, numbers, hashes, lambda: None)
        site.slots.listener = listener
        return self._lived(site, names, numbers, hashes, publish) - alone, sent

    def _lived(
        self,
        site: Site,
        names: list[str],
        numbers: list[int],
        hashes: Any,
        publish: Callable[[], None],
    ) -> float:
        slots, isl = site.slots, self._config.blocks * BLOCK_SIZE
        began = time.thread_time()
        for name, number, own in zip(names, numbers, hashes, strict=True):
            now = self._clock.now()
            slots.add_request(name, number, own, isl=isl, overlap_blocks=CACHED_BLOCKS, now=now)
        publish()
        for name in names:
            slots.mark_prefill_completed(name, CACHED_BLOCKS * BLOCK_SIZE)
        publish()
        for name in names:
            slots.free(name, OUTPUT_TOKENS)
        publish()
        return time.thread_time() - began


def measure(config: BookingsBenchConfig) -> dict[str, Any]:
    """Both figures over the rounds."""
    bookings = Bookings(config)
    gc.disable()
    try:
        rounds = measure_in_turns({"bookings": bookings.round}, config.rounds, warm_up=1)
    finally:
        gc.enable()
        bookings.close()
    return rounds.spreads()


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = f"us of CPU a request, {config['routers']} routers, {config['blocks']} blocks"
    lines = (
        Column("to publish one", "told_us", 1),
        Column("to apply one", "heard_us", 1),
    )
    return [spread_table(title, result["bookings"], lines)]


run = Benchmark("bookings", measure, tables)
