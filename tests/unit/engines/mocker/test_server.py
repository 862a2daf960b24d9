"""The mock engine as a client of trtllm.TrtllmService meets it, over real gRPC."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.polling import until

from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.base.identity import address_worker_id
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.engines.mocker.tiers import TierConfig
from dynamo_router.engines.serving import kv_feed
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.trtllm_client import TrtllmClient
from dynamo_router.workers.trtllm_proto import common_pb, pb

ENGINE = EngineConfig(block_size=4, num_gpu_blocks=32, max_waiting=2, max_num_seqs=2)
FAST = MockerConfig(port=0, speedup_ratio=1e6, engine=ENGINE)
# A step of this one outlasts every test.
FROZEN = MockerConfig(port=0, speedup_ratio=1e-6, engine=ENGINE)


@asynccontextmanager
async def serving(config: MockerConfig = FAST) -> AsyncIterator[tuple[MockServer, Any]]:
    """A fleet of one, and a stub for it."""
    async with (
        MockFleet(config) as fleet,
        aio.insecure_channel(fleet.addresses[0]) as channel,
    ):
        yield fleet.engines[0], TrtllmServiceStub(channel)


def generate(request_id: str, tokens: Any, max_tokens: int = 4, **more: Any) -> Any:
    tokenized = pb.TokenizedInput(input_token_ids=list(tokens))
    return pb.GenerateRequest(
        request_id=request_id, tokenized=tokenized, max_tokens=max_tokens, **more
    )


async def test_streaming_brings_each_token_once_and_then_all_of_them():
    async with serving() as (_, stub):
        first = await messages_of(stub.Generate(generate("a", range(10), 5, streaming=True)))
        *chunks, last = first
        assert [m.WhichOneof("response") for m in first] == ["chunk"] * 5 + ["complete"]
        assert {m.request_id for m in first} == {"a"}
        tokens = [token for m in chunks for token in m.chunk.token_ids]
        assert tokens == list(last.complete.output_token_ids)
        assert len(tokens) == 5 and all(token < 32000 for token in tokens)
        assert [m.chunk.completion_tokens for m in chunks] == [1, 2, 3, 4, 5]
        complete = last.complete
        assert complete.finish_reason == "length" and complete.WhichOneof("matched_stop") is None
        assert (complete.prompt_tokens, complete.completion_tokens) == (10, 5)
        assert complete.cached_tokens == 0
        again = await messages_of(stub.Generate(generate("b", range(10), 5, streaming=True)))
        assert {m.chunk.cached_tokens for m in again[:-1]} == {8}
        assert {m.chunk.prompt_tokens for m in again[:-1]} == {10}
        assert again[-1].complete.cached_tokens == 8
        assert again[-1].complete.output_token_ids == complete.output_token_ids


async def test_without_streaming_there_is_one_answer():
    async with serving() as (_, stub):
        (whole,) = await messages_of(stub.Generate(generate("a", range(10), 5)))
        assert len(whole.complete.output_token_ids) == 5


async def test_a_stop_token_ends_the_answer_without_being_shown():
    async with serving() as (_, stub):
        (whole,) = await messages_of(stub.Generate(generate("a", range(10), 9)))
        tokens = list(whole.complete.output_token_ids)
        stop = generate("b", range(10), 9, stop_token_ids=[tokens[3]], streaming=True)
        *chunks, last = await messages_of(stub.Generate(stop))
        shown = tokens[: tokens.index(tokens[3])]
        assert [m.chunk.token_ids[0] for m in chunks] == shown
        assert list(last.complete.output_token_ids) == shown
        assert (last.complete.finish_reason, last.complete.matched_token_id) == ("stop", tokens[3])


async def test_log_probabilities_come_when_they_are_asked_for():
    async with serving() as (_, stub):
        wanted = generate("a", range(10), 3, streaming=True, output_config={"logprobs": 1})
        *chunks, last = await messages_of(stub.Generate(wanted))
        said = [(p.token_id, p.logprob) for m in chunks for p in m.chunk.logprobs]
        assert said == [(p.token_id, p.logprob) for p in last.complete.logprobs]
        assert [token for token, _ in said] == list(last.complete.output_token_ids)
        assert said[0][1] == pytest.approx(-np.log(31999))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (pb.GenerateRequest(request_id="a", max_tokens=1), "tokenized input is missing"),
        (generate("a", []), "the prompt is empty"),
        (generate("a", [1, 32000]), "token id 32000 is not below the vocabulary size 32000"),
        (generate("a", range(128)), "128 tokens, the limit is 127"),
        (generate("a", range(8), 0), "max_tokens must be at least 1"),
        (generate("a", range(8), 121), "exceed the limit of 128"),
        (
            generate("a", range(8), sampling_config={"num_return_sequences": 3}),
            "3 answers are more than the 2 requests",
        ),
        (generate("a", range(8), sampling_config={"beam_width": 2}), "beam search"),
        (generate("a", range(8), multimodal_input={"image_data": [b"x"]}), "multimodal input"),
        (
            generate("a", range(8), prompt_tuning_config={"embedding_table": b"x"}),
            "prompt tuning is not supported",
        ),
        (generate("a", range(8), disaggregated_params={"request_type": 1}), "disaggregated"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_a_reason(request_, text):
    async with serving() as (engine, stub):
        with pytest.raises(grpc.RpcError) as caught:
            await messages_of(stub.Generate(request_))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in caught.value.details()
        assert not engine.busy


async def test_an_id_in_use_and_a_full_queue_are_refused():
    async with serving(FROZEN) as (engine, stub):
        calls = [stub.Generate(generate("0", range(8), streaming=True))]
        await until(lambda: engine.engine.running == 1)  # in a step that takes in nobody else
        calls.append(stub.Generate(generate("1", range(8), streaming=True)))
        with pytest.raises(grpc.RpcError) as caught:
            await messages_of(stub.Generate(generate("0", range(8))))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        calls.append(stub.Generate(generate("2", range(8))))
        await until(lambda: engine.engine.waiting == 2)
        with pytest.raises(grpc.RpcError) as caught:
            await messages_of(stub.Generate(generate("3", range(8))))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


async def test_abort_ends_the_stream_and_of_an_unknown_id_is_no_error():
    async with serving(FROZEN) as (engine, stub):
        call = asyncio.create_task(
            messages_of(stub.Generate(generate("a", range(8), streaming=True)))
        )
        await until(lambda: engine.engine.running)
        assert (await stub.Abort(pb.AbortRequest(request_id="a"))).success
        (last,) = await call
        assert last.complete.finish_reason == "cancelled"
        assert engine.engine.active_blocks == 0
        answer = await stub.Abort(pb.AbortRequest(request_id="a"))
        assert not answer.success and answer.message == "'a' not found"


async def test_a_client_that_goes_away_frees_its_request():
    async with serving(FROZEN) as (engine, stub):
        call = stub.Generate(generate("a", range(8), streaming=True))
        await until(lambda: engine.engine.running)
        call.cancel()
        await until(lambda: not engine.busy and not engine.engine.has_work)
        assert engine.engine.active_blocks == 0


async def test_an_engine_tells_who_and_what_it_is():
    async with serving() as (engine, stub):
        assert engine.worker_id == address_worker_id(engine.address)
        identity = {"x-dynamo-worker-id": str(engine.worker_id), "x-dynamo-dp-size": "1"}
        for method, request_ in (
            (stub.HealthCheck, pb.HealthCheckRequest()),
            (stub.GetModelInfo, pb.GetModelInfoRequest()),
            (stub.GetServerInfo, pb.GetServerInfoRequest()),
        ):
            call = method(request_)
            assert dict(await call.initial_metadata()) == identity
            await call
        assert (await stub.HealthCheck(pb.HealthCheckRequest())).status == "OK"
        model = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (model.model_id, model.vocab_size) == ("mock-model", 32000)
        assert (model.max_input_len, model.max_seq_len, model.max_batch_size) == (127, 128, 2)
        assert {"kv_block_size=4", "total_kv_blocks=32"} <= set(model.supported_features)
        server = await stub.GetServerInfo(pb.GetServerInfoRequest())
        assert (server.backend, server.world_size) == ("tensorrt-llm", 1)


async def test_what_an_engine_without_a_tokenizer_cannot_do_is_unimplemented():
    async with serving() as (_, stub):
        for call in (
            stub.Embed(pb.EmbedRequest()),
            stub.GetTokenizer(common_pb.GetTokenizerRequest()).read(),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_engine_that_failed_reports_it(monkeypatch):
    async with serving() as (engine, stub):
        monkeypatch.setattr(engine.engine, "step", lambda idle_s=None: 1 / 0)
        with pytest.raises(grpc.RpcError) as caught:
            await messages_of(stub.Generate(generate("a", range(8))))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "division by zero" in (await stub.HealthCheck(pb.HealthCheckRequest())).status
        with pytest.raises(grpc.RpcError) as caught:
            await messages_of(stub.Generate(generate("a", range(8))))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class ToldCache:
    """What a subscriber of SubscribeKvEvents knows."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}  # block hash -> tokens of its whole prefix
        self.sequence = 0
        self.event_id = None

    def apply(self, batch: Any) -> None:
        assert self.sequence in (0, batch.sequence_number - 1), "a gap"
        self.sequence = batch.sequence_number
        for event in batch.events:
            if event.WhichOneof("data") == "cleared":
                self.tokens.clear()
            elif event.WhichOneof("data") == "removed":
                for block_hash in event.removed.block_hashes:
                    del self.tokens[block_hash & (2**64 - 1)]
            else:
                self._store(event.stored)
            if event.event_id:
                assert self.event_id in (None, event.event_id - 1)
                self.event_id = event.event_id

    def _store(self, stored: Any) -> None:
        prefix: list[int] = []
        if stored.HasField("parent_block_hash"):
            prefix = self.tokens[stored.parent_block_hash & (2**64 - 1)]
        for block in stored.blocks:
            assert len(block.token_ids) == block.block_size == 4
            prefix = prefix + list(block.token_ids)
            block_hash = block.block_hash & (2**64 - 1)
            assert sequence_hashes(block_hashes(prefix, 4))[-1] == block_hash
            self.tokens[block_hash] = prefix


async def busy_requests(stub: Any, seed: int, count: int = 12) -> None:
    """Prompts with common prefixes, more than the cache holds."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        prompt = [*range(int(rng.integers(0, 40))), *rng.integers(0, 32000, 30).tolist()]
        await messages_of(stub.Generate(generate(f"{seed}-{i}", prompt, 6)))


def subscribe(stub: Any, start: int = 0, **more: Any) -> Any:
    return stub.SubscribeKvEvents(
        common_pb.SubscribeKvEventsRequest(start_sequence_number=start, **more)
    )


async def follow(call: Any, told: ToldCache, engine: MockServer) -> None:
    """Apply batches until what was told is what is cached."""

    def cached() -> set[int]:
        return {block.block_hash for block in engine.engine.cached_blocks()}

    while not told.sequence or set(told.tokens) != cached():
        told.apply(await asyncio.wait_for(call.read(), 60))


async def test_a_subscriber_learns_the_cache_and_then_its_changes(monkeypatch):
    monkeypatch.setattr(kv_feed, "BLOCKS_PER_CHUNK", 5)
    async with serving() as (engine, stub):
        await busy_requests(stub, 1)
        early = subscribe(stub)
        told = ToldCache()
        await follow(early, told, engine)
        assert len(told.tokens) > 20
        await busy_requests(stub, 2)
        await follow(early, told, engine)
        assert told.event_id is not None
        late, told_late = subscribe(stub), ToldCache()
        chunk = await late.read()
        assert chunk.snapshot.count > 1 and chunk.snapshot.blocks == len(told.tokens)
        told_late.apply(chunk)
        while set(told_late.tokens) != set(told.tokens):
            told_late.apply(await late.read())
        assert told_late.tokens == told.tokens
        assert told_late.sequence == told.sequence
        early.cancel(), late.cancel()


async def test_a_subscriber_of_an_empty_cache_hears_at_once_and_one_who_was_away_goes_on():
    async with serving() as (engine, stub):
        call, told = subscribe(stub, load_records_before_first_batch=True), ToldCache()
        assert dict(await call.initial_metadata())["x-dynamo-worker-id"] == str(engine.worker_id)
        load = await call.read()
        assert (load.sequence_number, load.load.load_only) == (0, True)
        told.apply(await call.read())
        assert told.tokens == {}
        await busy_requests(stub, 3, 2)
        await follow(call, told, engine)
        call.cancel()
        await busy_requests(stub, 4, 2)
        again = subscribe(stub, told.sequence + 1)
        first = await again.read()
        assert not first.HasField("snapshot")
        told.apply(first)
        await follow(again, told, engine)
        again.cancel()
        # From a future that this engine has not seen: it must have been another one.
        other = subscribe(stub, told.sequence + 1000)
        assert (await other.read()).HasField("snapshot")
        other.cancel()


async def test_a_subscriber_too_slow_is_cut_off_and_does_not_grow(monkeypatch):
    monkeypatch.setattr(kv_feed, "MOST_BEHIND", 3)
    async with serving() as (engine, stub):
        feed = engine._feed
        subscription = feed.subscribe(0)
        await busy_requests(stub, 5, 4)
        batches = []
        while (batch := await subscription.next()) is not None:
            batches.append(batch)
        assert len(batches) == 3 and subscription.overrun


async def test_a_port_in_use_is_an_error_and_leaves_nothing_running():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fleet = MockFleet(MockerConfig(port=0, engine=ENGINE), MockerConfig(port=port))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            await fleet.start()
    await until(lambda: len(asyncio.all_tasks()) == 1)
    with pytest.raises(OSError):
        socket.create_connection(tuple(fleet.addresses[0].split(":")), timeout=1)


async def test_engines_that_are_given_ids_and_a_name_use_them():
    config = MockerConfig(port=0, workers=2, worker_id=2**64 - 2, advertise_host="somewhere")
    async with MockFleet(config, MockerConfig(port=0, engine=ENGINE)) as fleet:
        assert fleet.worker_ids[:2] == [2**64 - 2, 2**64 - 1]
        assert fleet.addresses[0].startswith("somewhere:")
        assert len(fleet.engines) == 3 == len(set(fleet.addresses))


async def test_a_killed_engine_breaks_its_streams_and_no_other():
    config = MockerConfig(port=0, workers=2, speedup_ratio=1e-6, engine=ENGINE)
    async with MockFleet(config) as fleet:
        async with aio.insecure_channel(fleet.addresses[0]) as channel:
            call = TrtllmServiceStub(channel).Generate(generate("a", range(8), streaming=True))
            await until(lambda: fleet.engines[0].engine.running)
            await fleet.kill(0)
            with pytest.raises(grpc.RpcError) as caught:
                await messages_of(call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with aio.insecure_channel(fleet.addresses[1]) as channel:
            stub = TrtllmServiceStub(channel)
            assert (await stub.HealthCheck(pb.HealthCheckRequest())).status == "OK"


async def test_stopping_lets_requests_finish_within_the_grace():
    async with serving(MockerConfig(port=0, speedup_ratio=4, engine=ENGINE)) as (engine, stub):
        call = asyncio.create_task(messages_of(stub.Generate(generate("a", range(8), 9))))
        await until(lambda: engine.engine.running)
        await engine.stop(10)
        (whole,) = await call
        assert len(whole.complete.output_token_ids) == 9
        assert whole.complete.finish_reason == "length"
    await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.mark.parametrize("knows", [True, False])
async def test_blocks_in_host_memory_are_loaded_ahead_of_a_request(knows: bool) -> None:
    tiers = TierConfig(host_blocks=64, prefetch=knows)
    engine = EngineConfig(block_size=4, num_gpu_blocks=8, tiers=tiers)
    config = MockerConfig(port=0, speedup_ratio=1e6, engine=engine)
    async with serving(config) as (server, stub):
        client = TrtllmClient(server.address)
        for first in (0, 100, 200):
            await messages_of(stub.Generate(generate("a", range(first, first + 17), 1)))
        expected = generate("b", range(17)).SerializeToString()
        assert len([*server.engine.cached_blocks("host_pinned")]) >= 4
        assert await client.prefetch(expected, timeout=20.0) == (4 if knows else None)
        if knows:
            on_device = {block.token_ids[0] for block in server.engine.cached_blocks()}
            assert on_device >= {0, 4, 8, 12}
            assert await client.prefetch(expected, timeout=20.0) == 0
            with pytest.raises(EngineCallError) as refused:
                await client.prefetch(generate("b", ()).SerializeToString(), timeout=20.0)
            assert refused.value.code() is StatusCode.INVALID_ARGUMENT
        await client.close()
