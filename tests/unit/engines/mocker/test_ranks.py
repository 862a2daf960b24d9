"""Data-parallel ranks of a mock engine: caches and schedulers of their own, live and simulated."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.mock_requests import request
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import WorkerError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.dp_engine import DataParallelEngine
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.engines.mocker.virtual import VirtualFleet
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Stored
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.workers.trtllm_proto import common_pb, pb

ENGINE = EngineConfig(block_size=4, num_gpu_blocks=32, dp_size=2)
EVENTS = "namespace.dynamo.component.backend.endpoint.generate.kv-events"
RANK = "x-dynamo-dp-rank"


@asynccontextmanager
async def serving(speedup_ratio: float = 1e6) -> AsyncIterator[tuple[MockServer, Any, list[Any]]]:
    """A fleet of one engine with two ranks, a stub for it, and what it publishes."""
    plane = LocalPlane()
    told: list[Any] = []
    await plane.subscribe(EVENTS, lambda _, payload: told.extend(decode_event_message(payload)))
    config = MockerConfig(port=0, speedup_ratio=speedup_ratio, engine=ENGINE)
    async with (
        MockFleet(config, plane=plane) as fleet,
        aio.insecure_channel(fleet.addresses[0]) as channel,
    ):
        yield fleet.engines[0], TrtllmServiceStub(channel), told
    await plane.close()


def call(stub: Any, name: str, tokens: Any, rank: object = None, **more: Any) -> Any:
    tokenized = pb.TokenizedInput(input_token_ids=list(tokens))
    message = pb.GenerateRequest(request_id=name, tokenized=tokenized, max_tokens=2, **more)
    return stub.Generate(message, metadata=() if rank is None else ((RANK, str(rank)),))


async def cached_tokens(call: Any) -> int:
    answers = await messages_of(call)
    return int(answers[-1].complete.cached_tokens)


async def test_each_rank_caches_what_it_served_and_says_so():
    async with serving() as (server, stub, told):
        assert await cached_tokens(call(stub, "a", range(12), 1)) == 0
        assert await cached_tokens(call(stub, "b", range(12), 0)) == 0, "not in this rank's cache"
        assert await cached_tokens(call(stub, "c", range(12), 1)) == 8
        await until(lambda: {event.worker.dp_rank for event in told} == {0, 1})
        for rank in (0, 1):
            mine = [event for event in told if event.worker.dp_rank == rank]
            assert [event.event_id for event in mine] == list(range(1, len(mine) + 1))
            stored = {
                block.block_hash
                for event in mine
                if isinstance(event.data, Stored)
                for block in event.data.blocks
            }
            cached = server.ranks.engines[rank].cached_blocks()
            assert stored == {block.block_hash for block in cached}


async def test_subscribers_hear_of_both_ranks_and_each_ranks_events_are_numbered():
    async with serving() as (_, stub, _):
        await cached_tokens(call(stub, "a", range(12), 1))
        stream = stub.SubscribeKvEvents(common_pb.SubscribeKvEventsRequest())
        chunks = [await stream.read() for _ in range(2)]
        assert [chunk.dp_rank for chunk in chunks] == [0, 1]
        assert {(chunk.snapshot.count, chunk.snapshot.blocks) for chunk in chunks} == {(2, 3)}
        assert [event.WhichOneof("data") for event in chunks[0].events] == ["cleared"]
        assert [event.WhichOneof("data") for event in chunks[1].events] == ["cleared", "stored"]
        await cached_tokens(call(stub, "b", range(50, 58), 0))
        batch = await stream.read()
        assert batch.sequence_number == chunks[1].sequence_number + 1
        assert (batch.dp_rank, [event.event_id for event in batch.events]) == (0, [1])
        stream.cancel()


async def test_a_request_that_names_no_rank_goes_to_the_one_with_the_fewest():
    async with serving(1e-6) as (server, stub, _):
        calls = [call(stub, "0", range(8), 1), call(stub, "1", range(8))]
        engines = server.ranks.engines
        await until(lambda: [engine.running for engine in engines] == [1, 1])
        calls.append(call(stub, "2", range(8), 0))
        await until(lambda: engines[0].running + engines[0].waiting == 2)
        calls.append(call(stub, "3", range(8)))
        await until(lambda: engines[1].running + engines[1].waiting == 2)
        with pytest.raises(grpc.RpcError) as caught:
            await cached_tokens(call(stub, "1", range(8), 1))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS, "on whatever rank it is"
        for name in ("0", "1", "2", "3"):
            assert (await stub.Abort(pb.AbortRequest(request_id=name))).success
        assert not server.busy
        for each in calls:
            each.cancel()


@pytest.mark.parametrize("rank", [2, -1, "first"])
async def test_a_rank_that_there_is_not_is_refused(rank):
    async with serving() as (_, stub, _):
        with pytest.raises(grpc.RpcError) as caught:
            await cached_tokens(call(stub, "a", range(8), rank))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "rank" in caught.value.details()


async def test_an_engine_tells_how_many_ranks_it_has():
    async with serving() as (_, stub, _):
        health = stub.HealthCheck(pb.HealthCheckRequest())
        assert dict(await health.initial_metadata())["x-dynamo-dp-size"] == "2"
        await health
        assert (await stub.GetServerInfo(pb.GetServerInfoRequest())).world_size == 2


async def test_an_engine_takes_requests_when_its_start_up_time_is_over():
    clock = ManualClock()
    config = EngineConfig(block_size=4, num_gpu_blocks=32, startup_time_s=30)
    ranked = DataParallelEngine(config, speedup_ratio=10, clock=clock, on_events=lambda _, __: None)
    ranked.start()
    assert ranked.starting
    with pytest.raises(WorkerError, match="the engine is starting"):
        ranked.submit(request("a", range(8)), None)
    clock.advance(3)
    assert not ranked.starting
    stream = ranked.submit(request("a", range(8)), None)
    async with asyncio.timeout(60):
        while not stream.done:
            await stream.wait(stream.ready)
    await ranked.stop()


async def test_an_engine_that_starts_is_not_well_yet():
    config = MockerConfig(port=0, engine=EngineConfig(startup_time_s=3600))
    async with MockFleet(config) as fleet, aio.insecure_channel(fleet.addresses[0]) as channel:
        stub = TrtllmServiceStub(channel)
        assert (await stub.HealthCheck(pb.HealthCheckRequest())).status == "starting"
        with pytest.raises(grpc.RpcError) as caught:
            await cached_tokens(call(stub, "a", range(8)))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_simulated_ranks_have_caches_of_their_own_and_number_their_events_apart():
    fleet = VirtualFleet(ENGINE, 2)
    local = block_hashes(np.arange(16, dtype=np.uint32), 4)
    for number, (worker, rank) in enumerate([(0, 1), (1, 0), (1, 1)]):
        fleet.submit(
            worker,
            number,
            rank=rank,
            prompt_tokens=12,
            output_tokens=1,
            local_hashes=local,
            sequence_hashes=sequence_hashes(local),
            now=0.0,
        )
    fleet.advance(math.inf)
    message = fleet.collect(math.inf)
    assert message is not None
    told = [(event.worker, event.event_id) for event in decode_event_message(message)]
    assert told == [((0, 1), 1), ((1, 0), 1), ((1, 1), 1)]
    assert [len(fleet.cached_blocks(w, r)) for w in (0, 1) for r in (0, 1)] == [0, 3, 3, 3]
    assert fleet.pools(0, 1) == (0, 3) and fleet.collected_events(1, 1) == 1
    with pytest.raises(IndexError, match="no rank 2"):
        fleet.pools(0, 2)
