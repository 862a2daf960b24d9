"""Seeded schedules that kill, pause and restart prefill workers, decode workers, NATS and etcd.

Meanwhile prompts go through the prefill queue: each request ends once, with a truthful status, and
reads right blocks; nothing is held afterwards. QUEUE_SEEDS=200 runs as many.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.engines.queue_rig import BLOCK, BLOCKS, CapacityError, DecodeEnd, PrefillEnd
from support.polling import until
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer

from dynamo_router.engines.prefill_queue import PrefillQueueConfig
from dynamo_router.runtime.kv_stores import EtcdConfig, EtcdStore

SEEDS = int(os.environ.get("QUEUE_SEEDS", "20"))
REQUESTS = 60
LASTS_S = 1.2
ENDS = {"remote", "away", "full", "deadline", "failed", "quarantined", "gone", "crowded"}
"""gone: its decode worker died with it; crowded: that had no free blocks."""
CONFIG = PrefillQueueConfig(
    prefill_queue_ack_wait_s=0.3,
    prefill_queue_timeout_s=2.0,
    prefill_queue_max_messages=20,
    prefill_queue_slots=2,
)
DEAF = PrefillQueueConfig(prefill_queue_ack_wait_s=600.0)
"""of a worker that stands still: it gives no sign"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.kill()


class Fleet:
    """Two decode and three prefill workers, and what befalls them."""

    def __init__(
        self, seed: int, nats: JetStreamServer, etcd: EtcdServer, store: EtcdStore, folder: Path
    ) -> None:
        self.rng = Random(seed)
        self.nats, self.etcd = nats, etcd
        self._folder, self._namespace = folder, f"seed{seed}"
        self._metadata = store.bucket(f"{self._namespace}/nixl_metadata")
        self.decodes: list[DecodeEnd] = []
        self.prefills: list[PrefillEnd] = []
        self.ends: Counter[str] = Counter()
        self.corrupt = self.checked = self._workers = 0
        self._running: dict[DecodeEnd, set[asyncio.Task[None]]] = {}
        self._server_turn = asyncio.Lock()

    async def find(self, engine_id: str) -> bytes | None:
        entry = await self._metadata.get(engine_id)
        return None if entry is None else entry.value

    async def add_decode(self) -> None:
        end = DecodeEnd(
            self.nats.url, self._folder, CONFIG, self._namespace, find_metadata=self.find
        )
        self.decodes.append(end)
        self._running[end] = set()
        with suppress(Exception):  # etcd is away: prefill workers get it with the answer to `take`
            async with asyncio.timeout(0.2):
                await self._metadata.put(end.transfer.engine_id, end.transfer.export())

    def add_prefill(self) -> None:
        self._workers += 1
        self.prefills.append(
            PrefillEnd(
                self.nats.url, self._folder, CONFIG, self._namespace,
                worker_id=self._workers, compute_s=0.01, find_metadata=self.find,
            )
        )  # fmt: skip

    def ask(self) -> asyncio.Task[None]:
        end = self.rng.choice(self.decodes)
        tokens = self.rng.randrange(1, 20 * BLOCK)
        prompt = np.random.default_rng(self.rng.randrange(2**32)).integers(
            0, 5000, tokens, dtype=np.uint32
        )
        cached = self.rng.randrange(tokens // BLOCK + 1) if self.rng.random() < 0.3 else 0
        chosen = self.rng.randrange(1, self._workers + 1) if self.rng.random() < 0.3 else None
        task = asyncio.create_task(self._run(end, prompt, cached, chosen))
        self._running[end].add(task)
        task.add_done_callback(self._running[end].discard)
        task.add_done_callback(self._on_end)
        return task

    async def _run(self, end: DecodeEnd, prompt: Any, cached: int, chosen: int | None) -> None:
        try:
            outcome = await end.request(prompt, cached=cached, worker_id=chosen)
        except CapacityError:
            outcome = "crowded"
        self.ends[outcome] += 1

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.ends["gone"] += 1

    async def befall(self) -> None:
        """One fault, lifted before it returns."""
        faults = (
            self.kill_prefill, self.kill_prefill, self.pause_prefill, self.pause_prefill,
            self.drain_prefill, self.kill_decode, self.kill_nats, self.pause_nats, self.kill_etcd,
        )  # fmt: skip
        await self.rng.choice(faults)()

    async def _moment(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.05, 0.6))

    async def kill_prefill(self) -> None:
        if self.prefills:
            await self.prefills.pop(self.rng.randrange(len(self.prefills))).kill()
        await self._moment()
        self.add_prefill()

    async def drain_prefill(self) -> None:
        if self.prefills:
            await self.prefills.pop(self.rng.randrange(len(self.prefills))).close()
        self.add_prefill()

    async def pause_prefill(self) -> None:
        if not self.prefills:
            return
        end = self.rng.choice(self.prefills)
        end.awake.clear()
        end.consumer._config = DEAF
        await self._moment()
        end.consumer._config = CONFIG
        end.awake.set()

    async def kill_decode(self) -> None:
        if len(self.decodes) < 2:
            return
        end = self.decodes.pop(self.rng.randrange(len(self.decodes)))
        running = self._running.pop(end)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self._over(end)
        await self._moment()
        await self.add_decode()

    async def kill_nats(self) -> None:
        async with self._server_turn:
            self.nats.kill()
            await self._moment()
            await self.nats.come_back()

    async def pause_nats(self) -> None:
        async with self._server_turn:
            self.nats.pause()
            try:
                await self._moment()
            finally:
                self.nats.resume()

    async def kill_etcd(self) -> None:
        async with self._server_turn:
            self.etcd.kill()
            await self._moment()
            await self.etcd.come_back()

    async def settled(self) -> None:
        """Return once the queue is empty, and no block is held."""

        async def is_empty() -> bool:
            return await self.decodes[0].prefills.queued() == 0

        for end in self.decodes:
            await end.ready()
            await until(lambda end=end: end.transfer.grants.free_blocks == BLOCKS)
        await until(is_empty)
        for worker in self.prefills:
            await worker.ready()
            await until(lambda worker=worker: worker.transfer.grants.free_blocks == BLOCKS)

    async def close(self) -> None:
        for end in self.decodes:
            await self._over(end)
        for worker in self.prefills:
            await worker.close()

    async def _over(self, end: DecodeEnd) -> None:
        self.corrupt += end.corrupt
        self.checked += end.checked
        assert end.metrics.queued == {}
        await end.close()


@asynccontextmanager
async def fleet_of(
    seed: int, nats: JetStreamServer, etcd: EtcdServer, folder: Path
) -> AsyncIterator[Fleet]:
    store = EtcdStore(EtcdConfig((etcd.url,)))
    fleet = Fleet(seed, nats, etcd, store, folder)
    try:
        for _ in range(2):
            await fleet.add_decode()
        for _ in range(3):
            fleet.add_prefill()
        yield fleet
    finally:
        await fleet.close()
        await store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_request_ends_once_and_reads_right_blocks(
    seed: int, nats: JetStreamServer, etcd: EtcdServer, tmp_path: Path
) -> None:
    async with fleet_of(seed, nats, etcd, tmp_path) as fleet:
        for each in (*fleet.decodes, *fleet.prefills):
            await each.ready()
        rng = Random(seed + 10_000)
        faults = [asyncio.create_task(fleet.befall()) for _ in range(rng.randrange(1, 4))]
        requests = []
        for _ in range(REQUESTS):
            requests.append(fleet.ask())
            await asyncio.sleep(rng.expovariate(REQUESTS / LASTS_S))
        await asyncio.gather(*faults)
        requests += [fleet.ask() for _ in range(5)]  # and it goes on
        await asyncio.wait(requests)
        for request in requests:
            assert request.cancelled() or request.exception() is None
        await fleet.settled()
    assert fleet.ends.total() == len(requests)
    assert set(fleet.ends) <= ENDS, fleet.ends
    assert fleet.corrupt == 0
    assert fleet.checked > 0
    assert list(tmp_path.iterdir()) == []  # of the engines' memory
