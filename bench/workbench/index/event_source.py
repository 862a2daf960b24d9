"""Engines that do nothing but cache and evict, each with the publisher that real ones have.

A process of its own: it takes a `LoadSpec` on stdin, loads a NATS server with events, and says on
stdout what it `Sent`.
"""

import asyncio
import sys
from collections import deque
from time import monotonic_ns, process_time

import msgspec
import numpy as np
import structlog
import uvloop

from ....base.clock import SystemClock
from ....engines.outbox import StoredRun
from ....engines.publisher import KvEventPublisher
from ....runtime.event_planes import NatsPlane, PlaneState

APPLIED = "bench.applied"
CONNECT_TIMEOUT_S = 20.0
STALL_S = 30.0  # without a word from the reader: it is gone
NAMESPACE, COMPONENT, ENDPOINT = "bench", "engines", "generate"
IDLE_S = 0.0005


class LoadSpec(msgspec.Struct):
    """The load. Each engine caches runs of blocks, as prompts bring them, and evicts the oldest."""

    url: str
    engines: int
    seconds: float
    run_blocks: int
    """blocks of a prompt that were not cached: one stored event"""
    cache_blocks: int
    """of one engine; beyond it the oldest run is evicted: one removed event"""
    blocks_per_s: float | None
    """stored by all engines; None: as many as the reader takes"""
    window_blocks: int
    """that may be on their way before the engines wait for the reader"""
    seed: int


class Sent(msgspec.Struct):
    """What the engines published, and what that took."""

    stored: int
    removed: int
    messages: int
    events: int
    given_up: int
    """times that a publisher gave up changes: the measurement is worth nothing then"""
    late_ms: float
    """the most that the engines were behind their own times"""
    began_ns: int
    """of the machine's monotonic clock"""
    cpu_s: float
    """what engines and publishers took of a core"""


class Engine:
    """The cache of one worker. The first block of a run is named by the time it was published."""

    def __init__(self, plane: NatsPlane, worker_id: int, spec: LoadSpec) -> None:
        self._rng = np.random.default_rng([spec.seed, worker_id])
        self._capacity = spec.cache_blocks
        self._runs: deque[StoredRun] = deque()
        self.held = self.stored = self.removed = 0
        self.publisher = KvEventPublisher(
            plane,
            worker_id=worker_id,
            namespace=NAMESPACE,
            component=COMPONENT,
            endpoint=ENDPOINT,
            snapshot=lambda: self._runs,
            clock=SystemClock(),
        )

    def prefill(self, blocks: int) -> int:
        """A prompt: so many blocks are cached, and others give way. Returns how many in all."""
        changed = blocks
        hashes = self._rng.integers(1, 2**64, 2 * blocks, np.uint64)
        while self._runs and self.held + blocks > self._capacity:
            oldest = self._runs.popleft()
            self.held -= len(oldest.block_hashes)
            self.removed += len(oldest.block_hashes)
            changed += len(oldest.block_hashes)
            self.publisher.removed(oldest.block_hashes)
        hashes[0] = monotonic_ns()
        run = StoredRun(None, hashes[:blocks], hashes[blocks:])
        self._runs.append(run)
        self.held += blocks
        self.stored += blocks
        self.publisher.stored(*run)
        return changed


class Source:
    """All engines, and how far the reader is."""

    def __init__(self, spec: LoadSpec, plane: NatsPlane) -> None:
        self._spec = spec
        self._plane = plane
        self._engines = [Engine(plane, worker, spec) for worker in range(spec.engines)]
        self._sent = self._applied = 0  # blocks
        self._heard_ns = monotonic_ns()
        self._late_ns = 0

    async def run(self) -> Sent:
        spec = self._spec
        heard = await self._plane.subscribe(APPLIED, self._on_applied)
        for engine in self._engines:
            await engine.publisher.start()
        began = self._heard_ns = monotonic_ns()
        end = began + int(spec.seconds * 1e9)
        cpu = process_time()
        turn = 0
        while (now := monotonic_ns()) < end:
            if now - self._heard_ns > STALL_S * 1e9:
                raise TimeoutError("the reader of the events says nothing any more")
            due = self._due(turn, began)
            if due > now or self._sent - self._applied > spec.window_blocks:
                await asyncio.sleep(max(IDLE_S, (due - now) / 1e9))
                continue
            if spec.blocks_per_s is not None:
                self._late_ns = max(self._late_ns, now - due)
            self._sent += self._engines[turn % len(self._engines)].prefill(spec.run_blocks)
            turn += 1
            if turn % len(self._engines) == 0 or spec.blocks_per_s is not None:
                await asyncio.sleep(0)  # the publishers' turn
        for engine in self._engines:
            await engine.publisher.flush()
        await heard.close()
        stats = [engine.publisher.stats for engine in self._engines]
        for engine in self._engines:
            await engine.publisher.close()
        return Sent(
            stored=sum(engine.stored for engine in self._engines),
            removed=sum(engine.removed for engine in self._engines),
            messages=sum(each.messages for each in stats),
            events=sum(each.events for each in stats),
            given_up=sum(each.given_up for each in stats),
            late_ms=self._late_ns / 1e6,
            began_ns=began,
            cpu_s=process_time() - cpu,
        )

    def _due(self, turn: int, began: int) -> int:
        rate = self._spec.blocks_per_s
        return 0 if rate is None else began + int(turn * self._spec.run_blocks / rate * 1e9)

    def _on_applied(self, subject: str, payload: bytes) -> None:
        self._applied = int(payload)
        self._heard_ns = monotonic_ns()


async def load(spec: LoadSpec) -> Sent:
    """Load the server with events. TimeoutError if it, or the reader, is not there."""
    plane = NatsPlane(spec.url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while plane.state is not PlaneState.CONNECTED:
                await asyncio.sleep(0.01)
        return await Source(spec, plane).run()
    finally:
        await plane.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadSpec)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(load(wanted))))
