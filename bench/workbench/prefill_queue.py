"""dynamo-router bench prefill-queue: how long a prompt takes through the prefill queue.

A decode and a prefill engine that is idle, in this process; a nats-server of our own, and a store
of files. Nothing is computed: the time is that of the queue and of the blocks. Beside it stand what
nats-server takes for a message and its answer, and for a message through a work queue.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.table import Table

from ...engines.prefill_queue import (
    ComputedPrompt,
    PrefillConsumer,
    PrefillQueueConfig,
    QueuedPrompt,
    QueueMetrics,
    QueueNames,
    RemotePrefillRequest,
    RemotePrefills,
)
from ...engines.transfer import Transfer, TransferConfig
from ...indexer.hashing import block_hashes, sequence_hashes
from ...runtime.event_planes import EmbeddedNats
from ...runtime.kv_stores import FileStore, NatsAddress, NatsConnection
from ...runtime.work_queues import Delivery, GroupReader, GroupSettings, QueueSettings, WorkQueue
from ..results import Benchmark, Column, measure_in_turns, new_table
from .settings import QueueBenchConfig

_BLOCK, _DEADLINE_S = 16, 30.0
_SHARED = Path("/dev/shm")
_GROUP = GroupSettings(name="bench", subject="bench.queue")


class _Computed:
    """An engine that has every prompt: see PromptComputer."""

    def __init__(self, transfer: Transfer[Any], blocks: int) -> None:
        self.transfer = transfer
        self._blocks = transfer.grants.allocate(blocks)

    @asynccontextmanager
    async def compute(self, request: RemotePrefillRequest) -> AsyncIterator[ComputedPrompt]:
        yield ComputedPrompt(self.transfer, self._blocks, request.hashes())


class Ends:
    """A decode engine, a prefill engine and what is between them, while entered."""

    def __init__(self, config: QueueBenchConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._stack = AsyncExitStack()
        self._answers: asyncio.Queue[float] = asyncio.Queue()
        self._begun = 0.0

    async def start(self) -> None:
        config, push = self._config, self._stack.push_async_callback
        nats = await self._stack.enter_async_context(EmbeddedNats(store=self._folder / "nats"))
        store = FileStore(self._folder / "store")
        push(store.close)
        metadata = store.bucket("bench/nixl_metadata")

        async def find(engine_id: str) -> bytes | None:
            entry = await metadata.get(engine_id)
            return None if entry is None else entry.value

        blocks = self._folder / "blocks"
        blocks.mkdir(mode=0o700)
        ways = TransferConfig(
            transfer="shm", transfer_block_bytes=config.block_bytes, transfer_folder=str(blocks)
        )
        names, settings = QueueNames.of("bench", "model", "pool"), PrefillQueueConfig()
        self._queues = []
        for _ in range(2):
            connection = NatsConnection(NatsAddress(nats.url))
            push(connection.close)
            self._queues.append(WorkQueue(connection, names.settings(settings)))
        self._transfer, other = ways.open(config.blocks), ways.open(config.blocks)
        push(self._transfer.close)
        push(other.close)
        await metadata.put(self._transfer.engine_id, self._transfer.export())
        self._remotes = RemotePrefills(
            self._queues[0], names, settings, self._transfer, QueueMetrics(), model="model",
            find_metadata=find,
        )  # fmt: skip
        self._transfer.listen(lambda engine_id, word: self._remotes.on_notification(word))
        consumer = PrefillConsumer(
            self._queues[1], names, settings, _Computed(other, config.blocks), QueueMetrics(),
            worker_id=1, model="model", find_metadata=find,
        )  # fmt: skip
        consumer.on_begun.append(self._on_begun)
        for each in (self._remotes, consumer):
            each.start()
            push(each.close)
        plain = WorkQueue(
            self._queues[1].connection, QueueSettings(stream="bench", subjects=(_GROUP.subject,))
        )
        reader = GroupReader(plain, _GROUP, self._on_delivery, 1)
        reader.start()
        push(reader.close)
        self._plain = WorkQueue(self._queues[0].connection, plain.settings)
        link = await self._queues[1].connection.link()
        await link.subscribe_messages(
            "bench.echo", lambda message: self._answer(message.reply), 64, 1 << 20
        )
        async with asyncio.timeout(_DEADLINE_S):
            while not (self._remotes.is_ready and consumer.is_reading and reader.is_reading):
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self._stack.aclose()

    async def prompts(self) -> dict[str, float]:
        """Milliseconds from the decision for the queue to the start, and to blocks that landed."""
        config, grants = self._config, self._transfer.grants
        started, landed = [], []
        for number in range(config.prompts):
            tokens = np.arange(config.blocks * _BLOCK, dtype=np.uint32) + number
            hashes = sequence_hashes(block_hashes(tokens, _BLOCK)).tolist()
            blocks = grants.allocate(config.blocks)
            prompt = QueuedPrompt(f"r{number}", tokens, _BLOCK, hashes, [], blocks)
            began = time.perf_counter()
            await self._remotes.prefill(prompt)
            landed.append(time.perf_counter() - began)
            started.append(self._begun - began)
            grants.free(blocks)
            await self._idle()
        return {**_figures("start", started), **_figures("landed", landed)}

    async def messages(self) -> dict[str, float]:
        """The same of a message through a work queue, which is acknowledged."""
        seconds = []
        for number in range(self._config.prompts):
            began = time.perf_counter()
            await self._plain.publish(_GROUP.subject, b"x", f"{began}:{number}")
            seconds.append(await self._answers.get() - began)
            await self._idle()
        return _figures("start", seconds)

    async def round_trips(self) -> dict[str, float]:
        """The same of a message and its answer."""
        link = await self._queues[0].connection.link()
        seconds = []
        for _ in range(self._config.prompts):
            began = time.perf_counter()
            await link.request("bench.echo", b"x", {}, _DEADLINE_S)
            seconds.append(time.perf_counter() - began)
        return _figures("start", seconds)

    async def _idle(self) -> None:
        """Until the reader waits at the server again."""
        link = await self._queues[1].connection.link()
        await asyncio.sleep(0.002)
        await link.flush()

    def _on_begun(self, request: RemotePrefillRequest) -> None:
        self._begun = time.perf_counter()

    async def _on_delivery(self, delivery: Delivery) -> None:
        self._answers.put_nowait(time.perf_counter())
        await delivery.ack()

    def _answer(self, reply: str) -> None:
        self._answering = asyncio.create_task(self._queues[1].send(reply, b"x"))


def _figures(name: str, seconds: list[float]) -> dict[str, float]:
    middle, late = np.percentile(seconds, [50, 99]).tolist()
    return {f"{name}_p50_ms": middle * 1e3, f"{name}_p99_ms": late * 1e3}


def measure(config: QueueBenchConfig) -> dict[str, Any]:
    parent = str(_SHARED) if _SHARED.is_dir() else None
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
        ends = Ends(config, Path(folder))
        stack.callback(lambda: runner.run(ends.close()))
        runner.run(ends.start())
        kinds: dict[str, Callable[[], Any]] = {
            "prompt": ends.prompts,
            "message of a work queue": ends.messages,
            "message and its answer": ends.round_trips,
        }
        variants = {name: partial(_run, runner, kind) for name, kind in kinds.items()}
        rounds = measure_in_turns(variants, config.rounds, warm_up=1)
        return {"kinds": dict(rounds.spreads())}


def _run(runner: asyncio.Runner, kind: Callable[[], Any]) -> dict[str, float]:
    found: dict[str, float] = runner.run(kind())
    return found


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = f"Prompts of {config['blocks']} blocks of {config['block_bytes']} bytes"
    columns = [
        Column(f"{name} {at} ms", f"{name}_{at}_ms", 2)
        for name in ("start", "landed")
        for at in ("p50", "p99")
    ]
    table = new_table(title, *(each.heading for each in columns))
    for kind, spread in result["kinds"].items():
        table.add_row(kind, *(each.cell(spread) for each in columns))
    return [table]


run = Benchmark("prefill-queue", measure, tables)
