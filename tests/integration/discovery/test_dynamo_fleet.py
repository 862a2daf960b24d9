"""Our router in front of Dynamo's own workers, and our engines behind its own frontend.

Needs them, and is not the only proof: set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.engines.planned_words import words_for
from support.fake_engine import prompt
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    backend_of,
    finding,
    registered,
    until_ready,
    workers_of,
)
from support.servers.dynamo_peer import PEER, DynamoFrontend, DynamoMockers
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer

from dynamo_router.bench.load.dynamo_peer import write_model
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.indexer.source import SourceState
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.records import EventPlaneConfig

pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")
WORKERS = 3
ROUTER = KvRouterConfig(block_size=16, seed=1)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[JetStreamServer]:
    with JetStreamServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    with backend_of("etcd", tmp_path / "etcd") as backend:
        for name, value in backend.environ.items():
            monkeypatch.setenv(name, value)
        yield backend


def environ(backend: Backend, nats: JetStreamServer) -> dict[str, str]:
    return {**backend.environ, "NATS_SERVER": nats.url}


def exact(ports: Any) -> bool:
    sources = ports.server.router.index.sources()
    return len(sources) >= WORKERS and all(s.state is SourceState.EXACT for s in sources)


async def test_a_thousand_completions_and_an_exact_index(
    tmp_path: Path, etcd: Backend, nats: JetStreamServer
) -> None:
    mockers = DynamoMockers(tmp_path / "peer", environ(etcd, nats), "etcd", "nats", WORKERS)
    async with finding(etcd, nats=nats.url, router=ROUTER) as ports:
        mockers.launch()
        try:
            await until_ready(ports, WORKERS, 60.0)
            assert {worker["dialect"] for worker in await workers_of(ports)} == {"dynamo"}
            for start in range(0, 1000, 50):
                await asyncio.gather(*(complete(ports, start + n) for n in range(50)))
            await until(lambda: exact(ports))
            index = ports.server.router.index
            for first in range(0, 40):
                tokens = list(range(first * 100 + 3, first * 100 + 3 + 48))
                found = index.scores(block_hashes(tokens, 16))
                assert max(found.values()) == 3
            await heals_a_gap(ports, index)
        finally:
            mockers.kill()
        await until(lambda: not ports.server.monitor.ready_clients(), 60.0)


async def heals_a_gap(ports: Any, index: Any) -> None:
    """An event that never came is had from the worker itself."""
    feed = ports.server.pool.events.feed
    await feed._subscriptions[0].close()
    blocks = [status.blocks for status in index.sources()]
    await asyncio.gather(*(complete(ports, 5000 + n) for n in range(12)))
    await feed._plane.subscribe_batches(feed._events, feed._on_messages)
    await asyncio.gather(*(complete(ports, 7000 + n) for n in range(12)))
    await until(lambda: exact(ports))
    for first in range(5000, 5012):
        tokens = list(range(first * 100 + 3, first * 100 + 3 + 48))
        assert max(index.scores(block_hashes(tokens, 16)).values(), default=0) == 3
    assert sum(status.blocks for status in index.sources()) > sum(blocks)
    assert sum(status.given_up for status in index.sources()) == 0


async def complete(ports: Any, number: int) -> None:
    request = prompt(f"r{number}", 1)
    first = (number % 40 if number < 5000 else number) * 100 + 3
    del request.tokenized.input_token_ids[:]
    request.tokenized.input_token_ids.extend(range(first, first + 50))
    request.max_tokens = 8
    answers = await ports.answers(request)
    last = answers[-1].complete
    streamed = [token for answer in answers[:-1] for token in answer.chunk.token_ids]
    assert last.finish_reason == "length"
    assert len(streamed) == 8 and streamed == list(last.output_token_ids)


async def all_heard_over_zmq(ports: Any) -> bool:
    return {worker["event_source"] for worker in await workers_of(ports)} == {"zmq"}


async def test_dynamos_events_are_heard_over_zmq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_of("file", tmp_path / "file") as backend:
        for name, value in backend.environ.items():
            monkeypatch.setenv(name, value)
        environ = {**backend.environ, "DYN_REQUEST_PLANE": "tcp"}
        mockers = DynamoMockers(tmp_path / "peer", environ, "file", "zmq", WORKERS)
        plane = EventPlaneConfig(event_plane="zmq")
        async with finding(backend, plane=plane, router=ROUTER) as ports:
            mockers.launch()
            try:
                await until_ready(ports, WORKERS, 60.0)
                await asyncio.gather(*(complete(ports, n) for n in range(40)))
                await until(lambda: exact(ports))
                await until(lambda: all_heard_over_zmq(ports), 60.0)
                await heals_a_gap(ports, ports.server.router.index)
            finally:
                mockers.kill()


async def test_as_much_is_cached_as_behind_dynamos_frontend(
    tmp_path: Path, etcd: Backend, nats: JetStreamServer
) -> None:
    """The same load on the same fleet, one after the other, each with caches that begin empty."""
    shares = []
    for name in ("ours", "theirs"):
        mockers = DynamoMockers(tmp_path / name, environ(etcd, nats), "etcd", "nats", WORKERS)
        mockers.launch()
        try:
            if name == "ours":
                async with finding(etcd, nats=nats.url, router=ROUTER) as ports:
                    await until_ready(ports, WORKERS, 60.0)
                    shares.append(await cached_share(partial(cached_by_us, ports)))
                    continue
            frontend = DynamoFrontend(tmp_path / "front", environ(etcd, nats), "etcd", "nats")
            await asyncio.to_thread(frontend.start)
            try:
                shares.append(await cached_share(partial(cached_by_them, frontend)))
            finally:
                frontend.kill()
        finally:
            mockers.kill()
            await until(lambda: not etcd_keys(etcd), 60.0)
    ours, theirs = shares
    print(f"cached: {ours:.3f} behind our router, {theirs:.3f} behind Dynamo's frontend")
    assert ours >= theirs - 0.02 and theirs > 0.1


def etcd_keys(etcd: Backend) -> str:
    """The instances that are left in the store."""
    assert isinstance(etcd.server, EtcdServer)
    return etcd.server.control("get", "--prefix", "v1/instances", "--keys-only").strip()


async def cached_share(ask: Callable[[list[int]], Awaitable[int]]) -> float:
    """How much of the prompts of a load of 16 conversations was cached."""
    rng, total, cached = Random(1), 0, 0
    prompts = []
    for number in range(400):
        family = rng.randrange(16)
        begin = [3 + 100 * family + n % 97 for n in range(12 * 16)]
        prompts.append([*begin, *(3 + (number * 31 + n * 7) % 1900 for n in range(4 * 16))])
    waiting = iter(prompts)

    async def client() -> None:
        nonlocal total, cached
        for tokens in waiting:
            total += len(tokens)
            cached += await ask(tokens)

    await asyncio.gather(*(client() for _ in range(4)))
    return cached / total


async def cached_by_us(ports: Any, tokens: list[int]) -> int:
    request = prompt(f"r{tokens[-1]}-{tokens[0]}-{id(tokens)}", 0)
    request.tokenized.input_token_ids.extend(tokens)
    answers = await ports.answers(request)
    cached: int = answers[-1].complete.cached_tokens
    return cached


async def cached_by_them(frontend: DynamoFrontend, tokens: list[int]) -> int:
    body = {"model": "tiny", "prompt": tokens, "max_tokens": 4}
    answer = await asyncio.to_thread(frontend.ask, "/v1/completions", body)
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


async def test_our_engines_behind_dynamos_frontend(
    tmp_path: Path, etcd: Backend, nats: JetStreamServer
) -> None:
    model = tmp_path / "model"
    write_model(model)
    # The model's token that ends an answer is 1: an engine that makes it is cut short there.
    engine = EngineConfig(block_size=16, num_gpu_blocks=2048, vocab_size=2000, eos_token_id=(1,))
    more = {"model_path": str(model), "model_id": "ours", "engine": engine}
    async with registered(etcd, 2, nats=nats.url, dialect="dynamo", **more):
        frontend = DynamoFrontend(tmp_path / "front", environ(etcd, nats), "etcd", "nats")
        await asyncio.to_thread(frontend.start)
        try:
            for number in range(100):
                tokens = list(range(3 + number, 43 + number))
                body = {"model": "ours", "prompt": tokens, "max_tokens": 6}
                answer = await asyncio.to_thread(frontend.ask, "/v1/completions", body)
                assert answer["usage"]["completion_tokens"] == 6
                assert answer["choices"][0]["text"].split() == words_for(tokens, 6, engine)
                assert answer["choices"][0]["finish_reason"] == "length"
        finally:
            frontend.kill()
