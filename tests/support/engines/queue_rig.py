"""Both ends of a prefill queue over a real NATS and real memory, around engines that only fill
blocks: what the queue does wrong shows in what a decode end reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
from support.polling import until

from dynamo_router.base.errors import CapacityError
from dynamo_router.engines.prefill_queue import (
    ComputedPrompt,
    PrefillConsumer,
    PrefillQueueConfig,
    QueuedPrompt,
    QueueMetrics,
    QueueNames,
    RemotePrefillError,
    RemotePrefillRequest,
    RemotePrefills,
)
from dynamo_router.engines.transfer import ArenaLayout, BlockState, ShmTransfer
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection
from dynamo_router.runtime.work_queues import WorkQueue

BLOCK = 16
LAYOUT = ArenaLayout(bytes_per_block=2048, layers=2, heads=2)
BLOCKS = 1024


def hashes_of(tokens: np.ndarray[Any, np.dtype[np.uint32]]) -> list[int]:
    """Of all blocks, a partial one last."""
    full = len(tokens) // BLOCK
    local = block_hashes(tokens[: full * BLOCK], BLOCK)
    if rest := tokens[full * BLOCK :].tolist():
        last = block_hashes(np.array(rest, np.uint32), len(rest))
        local = np.concatenate([local, last])
    hashes: list[int] = sequence_hashes(local).tolist()
    return hashes


def new_engine_id() -> str:
    return f"{token_hex(4)}-{token_hex(4)}"


class Link:
    """One process's connection to the queue."""

    def __init__(self, url: str, config: PrefillQueueConfig, namespace: str) -> None:
        self.connection = NatsConnection(NatsAddress(url))
        self.names = QueueNames.of(namespace, "model", "pool")
        self.queue = WorkQueue(self.connection, self.names.settings(config))


class DecodeEnd:
    """A decode engine of a few blocks; `request` runs one prompt to its end."""

    def __init__(
        self, url: str, folder: Path, config: PrefillQueueConfig, namespace: str, **more: Any
    ) -> None:
        self.transfer = ShmTransfer(new_engine_id(), LAYOUT, BLOCKS, folder=folder)
        self.link = Link(url, config, namespace)
        self.metrics = QueueMetrics()
        self.prefills = RemotePrefills(
            self.link.queue, self.link.names, config, self.transfer, self.metrics, model="model",
            find_metadata=more.get("find_metadata"),
        )  # fmt: skip
        self.corrupt = self.checked = 0
        self.transfer.listen(lambda engine_id, word: self.prefills.on_notification(word))
        self.prefills.start()

    async def ready(self) -> "DecodeEnd":
        await until(lambda: self.prefills.is_ready)
        return self

    async def request(
        self, tokens: np.ndarray[Any, np.dtype[np.uint32]], *, cached: int = 0, **more: Any
    ) -> str:
        """`remote`, or why not, in which case the prompt is computed here. CapacityError."""
        grants, hashes = self.transfer.grants, hashes_of(tokens)
        blocks = grants.allocate(len(hashes))
        computed = blocks[:cached]
        self.transfer.arena.fill(computed, hashes[:cached])
        to_come = blocks[cached:]
        prompt = QueuedPrompt(
            more.pop("request_id", token_hex(4)), tokens, BLOCK, hashes, computed, to_come, **more
        )
        outcome, local = "remote", []
        try:
            try:
                await self.prefills.prefill(prompt)
            except RemotePrefillError as error:
                outcome = error.reason
                local = grants.allocate(len(hashes) - cached - len(to_come))
                self.transfer.arena.fill([*to_come, *local], hashes[cached:])
            read = [*computed, *to_come, *local]
            self.corrupt += len(self.transfer.arena.wrong(read, hashes))
            self.checked += len(read)
            return outcome
        finally:
            mine = (BlockState.ALLOCATED, BlockState.LANDED)
            kept = [*computed, *to_come, *local]
            grants.free([each for each in kept if grants.state(each) in mine])

    async def close(self) -> None:
        await self.prefills.close()
        await self.transfer.close()
        await self.link.connection.close()


class PrefillEnd:
    """A prefill engine that takes `compute_s` for each prompt."""

    def __init__(
        self,
        url: str,
        folder: Path,
        config: PrefillQueueConfig,
        namespace: str,
        *,
        worker_id: int = 1,
        compute_s: float = 0.0,
        layout: ArenaLayout = LAYOUT,
        **more: Any,
    ) -> None:
        self.transfer = ShmTransfer(new_engine_id(), layout, BLOCKS, folder=folder)
        self.link = Link(url, config, namespace)
        self.metrics = QueueMetrics()
        self.compute_s, self.computed = compute_s, 0
        self.awake = asyncio.Event()  # a fault, if it is not set: it stands still before it writes
        self.awake.set()
        self.consumer = PrefillConsumer(
            self.link.queue, self.link.names, config, self, self.metrics,
            worker_id=worker_id, model="model", find_metadata=more.get("find_metadata"),
        )  # fmt: skip
        self.consumer.start()

    async def ready(self) -> "PrefillEnd":
        await until(lambda: self.consumer.is_reading)
        return self

    @asynccontextmanager
    async def compute(self, request: RemotePrefillRequest) -> AsyncIterator[ComputedPrompt]:
        hashes = hashes_of(request.token_ids())
        grants = self.transfer.grants
        blocks = grants.allocate(len(hashes))
        try:
            await asyncio.sleep(self.compute_s)
            await self.awake.wait()
            self.transfer.arena.fill(blocks, hashes)
            self.computed += 1
            yield ComputedPrompt(self.transfer, blocks, hashes)
        finally:
            grants.free(blocks)

    async def kill(self) -> None:
        await self.consumer.kill()
        await self.transfer.close()
        await self.link.connection.close()

    async def close(self) -> None:
        await self.consumer.close()
        await self.transfer.close()
        await self.link.connection.close()


__all__ = ["BLOCK", "BLOCKS", "CapacityError", "DecodeEnd", "PrefillEnd", "hashes_of"]
