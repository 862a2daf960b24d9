"""dynamo-router bench restart: how soon a router whose KV events last knows again what it knew.

A real nats-server keeps the events of engines, whose publishers this process has; a router follows
them as a process, is stopped or killed, and started again. The engines have no doors, so it waits
for them each time, for the 2 s that it waits at most.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import numpy as np
import uvloop
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from ...base.clock import SystemClock
from ...base.errors import RouterError
from ...engines.outbox import StoredRun
from ...engines.publisher import KvEventPublisher
from ...indexer.hashing import block_hashes
from ...process.logs import log_to_stderr
from ...runtime.event_planes import EmbeddedNats, NatsPlane
from ...runtime.event_planes.jetstream import (
    EventStreamClient,
    JetStreamPlane,
    StreamNames,
    max_age_s,
)
from ...runtime.kv_stores import NatsAddress, NatsConnection
from ..load import ServeProcess
from ..results import (
    Benchmark,
    Column,
    Measurement,
    cpu_seconds,
    spread_table,
)
from .settings import RestartBenchConfig

ENDPOINT = ("dynamo", "backend", "generate")
STORED = "index_blocks_totalstored"
START_S = 120.0
STANDSTILL_S = 60.0
"""After so long in which nothing more was known nothing more is waited for."""
LOOK_S = 0.02
LOOKED_UP = 16
"""Blocks of which a router that started must know the holder."""
FLUSH_EVERY = 256
"""Messages of an engine that are handed to the server at once."""


class Router:
    """`serve` as a process that reads its events from the stream; its engines have no doors."""

    def __init__(self, nats_url: str, http: aiohttp.ClientSession, config: RestartBenchConfig):
        workers = [f"grpc://127.0.0.1:{number}?id={number}" for number in _engines(config)]
        self._arguments = [
            *("--mode", "kv", "--port", "0", "--http-port", "0", "--log-level", "warning"),
            *("--block-size", str(config.block_size), "--router-id", "bench"),
            *("--nats", nats_url, "--durable-kv-events"),
            *(word for url in workers for word in ("--worker", url)),
        ]
        self._http, self._killed = http, config.kill
        self._url = ""
        self.pid = 0
        self.stop_s = 0.0
        """that the last one took to end"""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From its start, once it is ready, to its end."""
        process = ServeProcess(self._arguments, workers=0, start_timeout_s=START_S)
        try:
            async with process:
                self.pid, self._url = process.pid, f"http://{process.http_address}"
                yield
                began = monotonic()
                if self._killed:
                    os.kill(self.pid, signal.SIGKILL)
        finally:
            self.pid = 0
        self.stop_s = monotonic() - began

    async def sample(self) -> dict[str, float]:
        """What its metrics say now that have no labels, and of stored blocks by their tier."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            page = await answer.text()
        return {
            sample.name.removeprefix("dynamo_router_") + sample.labels.get("change", ""): (
                sample.value
            )
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.labels or sample.labels.get("tier") == "device"
        }

    async def knows(self, block: NDArray[np.uint32]) -> bool:
        """Whether one engine holds a block."""
        asked = {"token_ids": block.tolist()}
        async with self._http.post(f"{self._url}/overlaps", json=asked) as answer:
            return list((await answer.json()).values()) == [1]


class Engines:
    """Publishers of engines, and what they hold: `blocks`, an array of tokens each."""

    def __init__(self, nats_url: str, config: RestartBenchConfig, stack: AsyncExitStack) -> None:
        self._url, self._config, self._stack = nats_url, config, stack
        count = config.messages // config.engines * config.engines
        numbers = np.arange(count, dtype=np.uint32)
        self.blocks = np.repeat(numbers, config.block_size).reshape(count, config.block_size)
        self._publishers: list[KvEventPublisher] = []
        self._held: list[list[StoredRun]] = []  # by each engine: a router that starts asks for it

    async def start(self) -> None:
        namespace, component, endpoint = ENDPOINT
        for number in _engines(self._config):
            below = NatsPlane(self._url)
            connection = NatsConnection(NatsAddress(self._url, None))
            client = EventStreamClient(
                connection, StreamNames.of_endpoint(*ENDPOINT), max_age_s=max_age_s()
            )
            plane = JetStreamPlane(below, client)
            self._stack.push_async_callback(plane.close)
            await plane.start()
            held: list[StoredRun] = []
            publisher = KvEventPublisher(
                plane,
                worker_id=number,
                namespace=namespace,
                component=component,
                endpoint=endpoint,
                snapshot=held.copy,
                clock=SystemClock(),
            )
            self._stack.push_async_callback(publisher.close)
            await publisher.start()
            self._publishers.append(publisher)
            self._held.append(held)

    async def publish(self) -> None:
        """All blocks, in turn by engine, a message each."""
        hashes = block_hashes(self.blocks.ravel(), self._config.block_size)
        rounds = hashes.reshape(-1, self._config.engines, 1)
        for turn, row in enumerate(rounds):
            for publisher, held, block in zip(self._publishers, self._held, row, strict=True):
                held.append(StoredRun(None, block, block))
                publisher.stored(None, block, block)
            await asyncio.sleep(0)  # what is reported in one turn goes in one message
            await asyncio.sleep(0)
            if turn % FLUSH_EVERY == 0:
                await self._flush()
        await self._flush()

    async def _flush(self) -> None:
        """Wait until NATS has all. One that connects, or is asked for all, announces that first."""
        for publisher in self._publishers:
            began = monotonic()
            while not await publisher.flush():
                if monotonic() - began > STANDSTILL_S:
                    raise RouterError("the nats-server took no more events")
                await asyncio.sleep(LOOK_S)


def _engines(config: RestartBenchConfig) -> range:
    return range(1, config.engines + 1)


async def _measure(config: RestartBenchConfig) -> Measurement[str]:
    """Each start. RouterError where a router did not come to know what it knew before."""
    starts = Measurement[str]()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-router-bench-"))
        nats = await stack.enter_async_context(EmbeddedNats(store=Path(folder)))
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        router = Router(nats.url, http, config)
        engines = Engines(nats.url, config, stack)
        async with router.running():
            await engines.start()
            await engines.publish()
            state = await _until(router, lambda now: now[STORED], len(engines.blocks))
        for _ in range(config.rounds):
            starts.add("starts", await _start(router, engines, state["event_stream_read_sequence"]))
    return starts


async def _start(router: Router, engines: Engines, retained: float) -> dict[str, float]:
    stop_s, began = router.stop_s, monotonic()
    async with router.running():
        ready_s, ready_cpu_s = monotonic() - began, cpu_seconds(router.pid)
        state = await _until(router, lambda now: _has_read(now, retained), 1.0)
        known_s, known_cpu_s = monotonic() - began, cpu_seconds(router.pid)
        for block in engines.blocks[:: max(1, len(engines.blocks) // LOOKED_UP)]:
            if not await router.knows(block):
                raise RouterError(f"after its start it does not know block {block[0]}")
    return {
        "stop_s": stop_s,
        "ready_s": ready_s,
        "ready_cpu_s": ready_cpu_s,
        "known_s": known_s,
        "known_cpu_s": known_cpu_s,
        "retained_messages": retained,
        "restored_sources": state["index_restored_sources"],
    }


def _has_read(now: dict[str, float], retained: float) -> bool:
    return now["event_stream_caught_up"] == 1 and now["event_stream_read_sequence"] >= retained


async def _until(
    router: Router, count: Callable[[dict[str, float]], float], enough: float
) -> dict[str, float]:
    """What the router says when a count is high enough; RouterError if it stands still."""
    seen, changed = -1.0, monotonic()
    while True:
        sample = await router.sample()
        before, seen = seen, count(sample)
        if seen >= enough:
            return sample
        changed = monotonic() if seen > before else changed
        if monotonic() - changed > STANDSTILL_S:
            raise RouterError(f"the router stands still at {seen:g} of {enough:g}")
        await asyncio.sleep(LOOK_S)


def measure(config: RestartBenchConfig) -> dict[str, Any]:
    """The figures of a start over the rounds."""
    with closing(log_to_stderr("warning")):
        starts = uvloop.run(_measure(config))
    return {"killed": config.kill, **starts.spreads()}


def tables(result: Mapping[str, Any]) -> list[Table]:
    how = "killed" if result["killed"] else "stopped"
    starts, engines = result["starts"], result["config"]["engines"]
    title = (
        f"a router {how} and started again, {starts['retained_messages']['median']:,.0f} messages"
        f" of {engines} engines in the stream"
    )
    lines = (
        Column(f"until it was {how}, s", "stop_s", 2),
        Column("until it is ready, s", "ready_s", 2),
        Column("its CPU until then, s", "ready_cpu_s", 2),
        Column("until it has read all, s", "known_s", 2),
        Column("its CPU until then, s", "known_cpu_s", 2),
    )
    return [spread_table(title, starts, lines)]


run = Benchmark("restart", measure, tables)
