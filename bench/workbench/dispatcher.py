"""dynamo-router bench dispatcher: what a request and a streamed message cost without any transport.

A whole pool of workers as `serve` has it, in this process; its engines answer at once, from memory.
CPU is that of this process.
"""

import gc
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import structlog
import uvloop
from rich.table import Table

from ...base.clock import SystemClock
from ...router.config import KvRouterConfig
from ...router.disagg import DisaggConfig
from ...server.access import Security
from ...server.command import GC_THRESHOLDS
from ...server.config import ServeConfig
from ...server.dispatch import NO_TRACE
from ...server.pool import WorkerPool
from ...workers.channels import Metadata
from ...workers.dialects import with_handoff
from ...workers.engine_facts import EngineFacts
from ...workers.trtllm_client import EngineIdentity
from ...workers.trtllm_proto import pb
from ..load import generate_bodies, new_prompts
from ..results import Benchmark, Column, spread, spread_table, turns
from .settings import DispatcherBenchConfig

BODIES = 400
FIRST_PORT = 20000  # no server listens there, and no client calls
READY_S = 10.0

Round = Callable[[int], Awaitable[None]]


class MemoryCall:
    """An answer that is there already, given as by a connection: without a task for a message."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    def __aiter__(self) -> "MemoryCall":
        return self

    async def __anext__(self) -> bytes:
        try:
            return next(self._messages)
        except StopIteration:
            raise StopAsyncIteration from None

    async def deliver(
        self, take: Callable[[bytes], bytes | None], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        for message in self._messages:
            rest = take(message)
            if rest is not None:
                await write(rest)

    def cancel(self) -> bool:
        return False

    async def aclose(self) -> None:
        """Nothing is under way."""


class MemoryEngine:
    """An EngineClient without an engine. `answers` is what all of them answer now."""

    dialect = "trtllm"

    def __init__(self, address: str, answers: list[bytes]) -> None:
        self.address = address
        self._answers = answers

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> MemoryCall:
        return MemoryCall(self._answers)

    async def embed(self, *_: Any, **__: Any) -> bytes:
        return b""

    def get_tokenizer(self, *_: Any, **__: Any) -> MemoryCall:
        return MemoryCall([])

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        return EngineIdentity()

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        return EngineIdentity(), EngineFacts()

    async def prefetch(self, *_: Any, **__: Any) -> int | None:
        return None

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        """There is no cache."""

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        return False, ""

    async def close(self) -> None:
        """There is no connection."""


class Parts:
    """The pool, and its figures."""

    def __init__(self, config: DispatcherBenchConfig) -> None:
        # Nothing is predicted: as with engines whose events come in time.
        router = KvRouterConfig(mode="kv", block_size=16, router_predicted_ttl_secs=0.0)
        serve = ServeConfig(port=0, http_port=0, router=router)
        clock = SystemClock()
        security = Security(serve, clock)
        self.pool = WorkerPool(serve, security, clock, NO_TRACE)
        self.prefill = WorkerPool(serve, security, clock, NO_TRACE)
        apart = replace(serve, disagg=DisaggConfig(disagg="always"))
        self.decode = WorkerPool(apart, security, clock, NO_TRACE, prefill=lambda _: self.prefill)
        self.pools = self.pool, self.prefill, self.decode
        self._answers: list[bytes] = []
        self._short, self._long = _answer(1), _answer(config.output_tokens)
        bodies = generate_bodies(new_prompts(config.tokens), config.output_tokens)
        self._bodies = list(islice(bodies, BODIES))
        *chunks, last = self._short
        handed = [*chunks, with_handoff(last, b"{}")]
        for n in range(config.workers * len(self.pools)):
            address, pool = f"127.0.0.1:{FIRST_PORT + n}", self.pools[n % len(self.pools)]
            answers = handed if pool is self.prefill else self._answers
            pool.monitor.add(f"grpc://{address}", client=MemoryEngine(address, answers))
        self.messages = 0
        """that came to the client"""

    async def short(self, requests: int) -> None:
        """Requests whose answer is one token."""
        await self._dispatched(requests, self._short)

    async def long(self, requests: int) -> None:
        await self._dispatched(requests, self._long)

    async def pairs(self, requests: int) -> None:
        """Those of one token on two workers each."""
        await self._dispatched(requests, self._short, self.decode)

    async def routed(self, requests: int) -> None:
        """The same requests read, decided, booked, computed and freed, with nothing around it."""
        router, reader = self.pool.router, self.pool.reader
        for n in range(requests):
            facts = await reader.generate(self._bodies[n % BODIES])
            router.decide(facts.prompt, facts.request_id, expected_output_tokens=facts.max_tokens)
            router.mark_prefill_complete(facts.request_id, cached_tokens=0)
            router.free(facts.request_id, output_tokens=1)

    async def _dispatched(
        self, requests: int, answer: list[bytes], pool: WorkerPool | None = None
    ) -> None:
        self._answers[:] = answer
        generate = (pool or self.pool).dispatcher.generate
        for n in range(requests):
            await generate(self._bodies[n % BODIES], self._write, put=self._put)

    def _put(self, message: bytes) -> bool:
        self.messages += 1
        return True

    async def _write(self, message: bytes) -> None:
        raise AssertionError("it was put")


async def _measure(config: DispatcherBenchConfig) -> dict[str, Any]:
    """us of CPU per request by part, a figure for each round."""
    parts = Parts(config)
    rounds: dict[str, Round] = {
        "request_us": parts.short,
        "long_us": parts.long,
        "pair_us": parts.pairs,
        "routed_us": parts.routed,
    }
    used: dict[str, list[float]] = {name: [] for name in rounds}
    thresholds = gc.get_threshold()
    try:
        for pool in parts.pools:
            pool.dispatcher.start()
            await pool.wait_for_probes(READY_S)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        for order, counts in turns(rounds, config.rounds, warm_up=1):
            for name in order:
                began = time.process_time()
                await rounds[name](config.requests)
                if counts:
                    used[name].append((time.process_time() - began) * 1e6 / config.requests)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        for pool in parts.pools:
            await pool.close()
    expected = (config.rounds + 1) * config.requests * (4 + config.output_tokens + 1)
    assert parts.messages == expected, f"{parts.messages} messages, not {expected}"
    pairs = zip(used.pop("long_us"), used["request_us"], strict=True)
    used["token_us"] = [(long - short) / (config.output_tokens - 1) for long, short in pairs]
    return {name: spread(each) for name, each in used.items()}


def _answer(tokens: int) -> list[bytes]:
    chunk = pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=[7]))
    whole = pb.GenerateComplete(output_token_ids=[7] * tokens, completion_tokens=tokens)
    end = pb.GenerateResponse(complete=whole).SerializeToString()
    return [*([chunk.SerializeToString()] * tokens), end]


def measure(config: DispatcherBenchConfig) -> dict[str, Any]:
    """The figures over the rounds, with no log but errors."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        return uvloop.run(_measure(config))
    finally:
        structlog.reset_defaults()


def tables(result: Mapping[str, Any]) -> list[Table]:
    lines = (
        Column("a request with a token", "request_us", 1),
        Column("the same on a prefill and a decode worker", "pair_us", 1),
        Column("of it read, decided, booked, freed", "routed_us", 1),
        Column("a further token", "token_us", 1),
    )
    return [spread_table("us of CPU", result, lines)]


run = Benchmark("dispatcher", measure, tables)
