"""Engines over gRPC that serve vLLM's or SGLang's service, behind the router: found by asking."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.engines.token_services import (
    OpenEngineService,
    SglangService,
    TokenService,
    VllmService,
    open_last,
    open_part,
    sglang_last,
    sglang_part,
    vllm_last,
    vllm_part,
)
from support.fake_engine import FakeEngine, prompt
from support.polling import until
from support.serving import BLOCK, PROMPT, Ports, serving

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import SERVICE, common_pb

IN_TURN = KvRouterConfig(mode="round-robin", use_kv_events=False)
EAGER = HealthPolicy(probe_interval_s=0.05, retry_first_s=0.02, retry_most_s=0.05)
SERVICES = [VllmService, SglangService]


async def says(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
    if isinstance(engine, OpenEngineService):
        yield open_part(11, 12)
        yield open_last()
        return
    vllm = isinstance(engine, VllmService)
    for place, token in enumerate((11, 12), 1):
        yield vllm_part([token]) if vllm else sglang_part([token], place)
    yield vllm_last([12], "length") if vllm else sglang_last([12], 2, "length")


async def tokens(ports: Ports, request_id: str) -> list[int]:
    *chunks, last = await ports.answers(prompt(request_id, 8))
    streamed = [token for answer in chunks for token in answer.chunk.token_ids]
    assert streamed == list(last.complete.output_token_ids)
    return streamed


async def dialects(ports: Ports) -> list[str]:
    _, body = await ports.http("GET", "/workers")
    return sorted(worker["dialect"] for worker in body["workers"])


async def test_engines_of_three_services_side_by_side() -> None:
    other = FakeEngine()
    other.model.model_id = "tiny"
    async with VllmService(says) as one, SglangService(says) as two:
        urls = [one.url, two.url]
        async with serving(other, workers=urls, router=IN_TURN) as ports:
            for turn in range(6):
                assert await tokens(ports, f"r{turn}") == [11, 12]
            assert len(one.requests) == len(two.requests) == len(other.requests) == 2
            assert await dialects(ports) == ["sglang", "trtllm", "vllm"]


async def test_an_engine_with_another_service_may_take_an_address_over() -> None:
    """In both ways: its client is that of the service that it has now."""
    engine = FakeEngine()
    engine.model.model_id = "tiny"
    async with serving(engine, health=EAGER) as ports:
        assert await tokens(ports, "a") == [11, 12]
        await engine.stop()
        for kind, dialect in (
            (VllmService, "vllm"),
            (SglangService, "sglang"),
            (OpenEngineService, "openengine"),
        ):
            after = kind(says)
            after.port = engine.port
            async with after:
                await until(lambda d=dialect: _is(ports, d))
                assert await tokens(ports, dialect) == [11, 12] and after.requests
        await engine.start()
        await until(lambda: _is(ports, "trtllm"))
        assert await tokens(ports, "b") == [11, 12]


def _is(ports: Ports, dialect: str) -> bool:
    (entry,) = ports.server.router.registry.entries()
    return entry.state is WorkerState.READY and entry.dialect == dialect


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_client_that_leaves_and_one_that_aborts(kind: type[TokenService]) -> None:
    async def begins(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        yield vllm_part([11]) if kind is VllmService else sglang_part([11], 1)
        await engine.go.wait()
        yield vllm_last([], "abort") if kind is VllmService else sglang_last([], 1, "abort")

    async with kind(begins) as engine, serving(workers=[engine.url]) as ports:
        call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", 8).SerializeToString())
        await stream.read()
        stream.cancel()
        await until(lambda: engine.cancelled == ["r1"])
        answer = asyncio.ensure_future(ports.answers(prompt("r2", 8)))
        await until(lambda: len(engine.requests) == 2)
        client = ports.server.monitor.ready_clients()[0]
        assert (await client.abort("r2", timeout=5))[0]
        assert list((await answer)[-1].complete.output_token_ids) == [11]
        await until(lambda: not int(ports.server.router.slots.own_requests().sum()))


@pytest.mark.parametrize("kind", SERVICES)
async def test_what_a_service_has_no_word_for(kind: type[TokenService]) -> None:
    asked = prompt("r1", 8)
    asked.cache_salt_id = 7
    async with kind(says) as engine, serving(workers=[engine.url]) as ports:
        with pytest.raises(grpc.aio.AioRpcError, match="a cache salt is not supported") as error:
            await ports.answers(asked)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT and not engine.requests


async def test_a_handoff_that_tensorrt_llm_does_not_know() -> None:
    async with FakeEngine() as engine, serving(health=EAGER) as ports:
        ports.server.monitor.add(f"{engine.url}?handoff=nixl")
        entries = ports.server.router.registry.entries
        await until(lambda: entries()[0].state is WorkerState.REFUSED)
        assert "handoff=nixl of its URL" in entries()[0].reason


@pytest.mark.parametrize("kind", SERVICES)
async def test_the_index_has_what_the_engine_says_it_has(kind: type[TokenService]) -> None:
    engine = kind(says)
    batch = common_pb.KvEventBatch(sequence_number=0)
    event = batch.events.add(event_id=1)
    for place in range(0, len(PROMPT), BLOCK):
        block = event.stored.blocks.add(block_hash=100 + place, block_size=BLOCK)
        block.token_ids.extend(PROMPT[place : place + BLOCK])
    engine.events = [batch]
    router = KvRouterConfig(block_size=BLOCK, seed=1)
    async with engine, serving(workers=[f"{engine.url}?id=5"], router=router) as ports:
        worker = WorkerWithDpRank(5, 0)
        blocks = len(PROMPT) // BLOCK
        await until(lambda: ports.server.router.overlaps(PROMPT).get(worker) == blocks)
        (entry,) = ports.server.router.registry.entries()
        assert entry.event_source == "grpc"
