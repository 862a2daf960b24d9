"""TensorRT-LLM's LLM behind trtllm.TrtllmService: the library is a small one of the same shape."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.places import ROOT
from support.polling import until

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.adapters import TrtllmConfig
from dynamo_router.engines.adapters.trtllm import TrtllmEngine
from dynamo_router.engines.serving import EngineServer
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Stored
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.workers.trtllm_proto import common_pb, pb

EVENTS = "namespace.dynamo.component.backend.endpoint.generate.kv-events"
CONFIG = TrtllmConfig(model="tiny", port=0, block_size=4, max_model_len=256, heartbeat_s=0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library's module."""
    monkeypatch.syspath_prepend(str(Path(ROOT) / "tests" / "support" / "libraries"))
    import tensorrt_llm

    yield tensorrt_llm
    tensorrt_llm.LLM.made.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


class Worker:
    def __init__(self, server: EngineServer, llm: Any, stub: Any) -> None:
        self.server, self.llm, self.stub = server, llm, stub

    async def ask(self, request: Any, **more: Any) -> list[Any]:
        return await messages_of(self.stub.Generate(request, **more))

    async def refused(self, request: Any, **more: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            await self.ask(request, **more)
        return caught.value.code(), caught.value.details()


@asynccontextmanager
async def serving(
    library: Any, config: TrtllmConfig = CONFIG, plane: LocalPlane | None = None
) -> AsyncIterator[Worker]:
    server = EngineServer(config, TrtllmEngine(config), plane=plane)
    try:
        await server.start()
        async with aio.insecure_channel(server.address) as channel:
            yield Worker(server, library.LLM.made[-1], TrtllmServiceStub(channel))
    finally:
        await server.stop()
    assert library.LLM.made[-1].stopped


def request(request_id: str, first: int = 0, count: int = 10, **more: Any) -> Any:
    message = pb.GenerateRequest(request_id=request_id, max_tokens=4, streaming=True)
    message.MergeFrom(pb.GenerateRequest(**more))
    message.tokenized.input_token_ids.extend(range(first, first + count))
    return message


def completes(messages: list[Any]) -> list[Any]:
    return [message.complete for message in messages if message.HasField("complete")]


async def test_tokens_as_they_come_and_then_all_of_them(library: Any) -> None:
    async with serving(library) as worker:
        *chunks, last = await worker.ask(request("a"))
        tokens = [token for each in chunks for token in each.chunk.token_ids]
        assert tokens == list(last.complete.output_token_ids) and len(tokens) == 4
        assert (last.complete.finish_reason, last.complete.cached_tokens) == ("length", 0)
        again = request("b")
        again.streaming = False
        (whole,) = await worker.ask(again)
        assert list(whole.complete.output_token_ids) == tokens
        assert whole.complete.cached_tokens == 8 and whole.complete.prompt_tokens == 10
        assert not worker.llm.requests[0][0].detokenize


async def test_several_answers_stop_tokens_and_logprobs(library: Any) -> None:
    async with serving(library) as worker:
        several = request("a", sampling_config={"num_return_sequences": 3, "seed": 5})
        messages = await worker.ask(several)
        outputs = {each.sequence_index: each.output_token_ids for each in completes(messages)}
        assert sorted(outputs) == [0, 1, 2] and len({tuple(each) for each in outputs.values()}) == 3
        streamed: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for message in messages:
            streamed[message.chunk.sequence_index] += message.chunk.token_ids
        assert streamed == {index: list(each) for index, each in outputs.items()}
        stop = outputs[0][1]
        stopping = request("b", stop_token_ids=[stop], sampling_config={"seed": 5})
        (last,) = completes(await worker.ask(stopping))
        assert (last.finish_reason, last.matched_token_id) == ("stop", stop)
        assert list(last.output_token_ids) == outputs[0][:1]
        *chunks, end = await worker.ask(request("c", output_config={"logprobs": 2}))
        assert [p.token_id for m in chunks for p in m.chunk.logprobs] == [
            p.token_id for p in end.complete.logprobs
        ]
        assert all(p.logprob == -0.5 and len(p.top_logprobs) == 2 for p in end.complete.logprobs)


async def test_what_the_engine_says_of_itself(library: Any) -> None:
    async with serving(library) as worker:
        health = worker.stub.HealthCheck(pb.HealthCheckRequest())
        assert dict(await health.initial_metadata())["x-dynamo-dp-size"] == "1"
        assert (await health).status == "OK"
        model = await worker.stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (model.model_id, model.max_seq_len, model.max_batch_size) == ("tiny", 256, 8)
        assert {"kv_block_size=4", "total_kv_blocks=64"} <= set(model.supported_features)
        said = await worker.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert (said.version, said.backend) == ("1.3.0rc29", "tensorrt-llm")
        cache = worker.llm.kwargs["kv_cache_config"]
        assert cache.enable_block_reuse and cache.event_buffer_max_size == 100_000


async def test_the_event_plane_and_a_subscriber_hear_what_the_cache_holds(library: Any) -> None:
    plane, held = LocalPlane(), set[int]()

    def on_message(_: str, payload: bytes) -> None:
        for event in decode_event_message(payload):
            if isinstance(event.data, Stored):
                held.update(block.block_hash for block in event.data.blocks)
            else:
                held.difference_update(getattr(event.data, "block_hashes", held.copy()))

    await plane.subscribe(EVENTS, on_message)
    async with serving(library, plane=plane) as worker:
        for number in range(12):  # more than the cache takes
            await worker.ask(request(str(number), 100 * number, 30))
        blocks = worker.llm.blocks()
        truth = {hash(chain) % 2**64 for chain in blocks}
        assert len(truth) == 64
        await until(lambda: held == truth)
        call = worker.stub.SubscribeKvEvents(common_pb.SubscribeKvEventsRequest())
        snapshot = await call.read()
        stored = [block for event in snapshot.events for block in event.stored.blocks]
        assert {block.block_hash % 2**64 for block in stored} == truth
        assert {tuple(block.token_ids) for block in stored} == {chain[-4:] for chain in blocks}
        assert snapshot.load.token_usage == 1.0
        await worker.ask(request("more", 5000, 4))
        changed = await call.read()
        assert [event.WhichOneof("data") for event in changed.events] == ["removed"]
        call.cancel()
        worker.llm.loses_events = True
        await worker.ask(request("lost", 6000, 4))
        worker.llm.loses_events = False
        await worker.ask(request("seen", 7000, 4))
        seen = hash(tuple(range(7000, 7004))) % 2**64
        await until(lambda: held == {seen})
    await until(lambda: not held)
    await plane.close()


async def test_salts_and_ranks_go_along(library: Any) -> None:
    config = TrtllmConfig(
        model="tiny", port=0, block_size=4, tensor_parallel_size=2, attention_dp=True
    )
    async with serving(library, config) as worker:
        metadata = (("x-dynamo-dp-rank", "1"),)
        await worker.ask(request("a", cache_salt_id=7), metadata=metadata)
        ((_, more),) = worker.llm.requests
        assert more["cache_salt"] == "7" and more["scheduling_params"].attention_dp_rank == 1
        assert more["scheduling_params"].attention_dp_relax is False
        code, text = await worker.refused(request("b"), metadata=(("x-dynamo-dp-rank", "2"),))
        assert (
            code is grpc.StatusCode.INVALID_ARGUMENT and "there is no data-parallel rank 2" in text
        )
    async with serving(library) as worker:
        await worker.ask(request("a"), metadata=(("x-dynamo-dp-rank", "0"),))
        assert worker.llm.requests[0][1]["scheduling_params"] is None


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"max_tokens": 300}, "exceed max_seq_len"),
        ({"sampling_config": {"beam_width": 2}}, "beam search is not supported"),
        ({"sampling_config": {"temperature": -1.0}}, "require temperature > 0"),
        ({"sampling_config": {"num_return_sequences": 9}}, "9 answers are more than the 8"),
        ({"sampling_config": {"top_p_decay": 0.5}}, "top_p_decay is not supported"),
    ],
)
async def test_what_it_cannot_do_is_refused_with_a_reason(
    library: Any, wanted: dict[str, Any], text: str
) -> None:
    async with serving(library) as worker:
        code, said = await worker.refused(request("a", **wanted))
        assert code is grpc.StatusCode.INVALID_ARGUMENT and text in said
        assert len(await worker.ask(request("b"))) == 5


async def test_an_abort_and_a_client_that_leaves_end_the_engines_work(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "STEP_S", 0.01)
    async with serving(library) as worker:
        engine = worker.server.engine
        call = worker.stub.Generate(request("a", max_tokens=200))
        messages = aiter(call)
        await anext(messages)
        code, _ = await worker.refused(request("a"))
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert (await worker.stub.Abort(pb.AbortRequest(request_id="a"))).success
        *_, last = [message async for message in messages]
        assert last.complete.finish_reason == "cancelled"
        assert not (await worker.stub.Abort(pb.AbortRequest(request_id="a"))).success
        call = worker.stub.Generate(request("b", max_tokens=200))
        await call.read()
        assert engine.load(0).running == 1
        call.cancel()
        await until(lambda: engine.load(0).running == 0)


async def test_requests_of_an_engine_that_dies_may_go_elsewhere(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "STEP_S", 0.01)
    monkeypatch.setattr("dynamo_router.engines.adapters.trtllm.HEALTH_INTERVAL_S", 0.01)
    async with serving(library) as worker:
        lost = asyncio.ensure_future(worker.server.engine.lost())
        call = worker.stub.Generate(request("a", max_tokens=200))
        messages = aiter(call)
        await anext(messages)
        worker.llm.die()
        with pytest.raises(grpc.RpcError) as caught:
            _ = [message async for message in messages]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "its executor has stopped" in await lost
        assert (await worker.refused(request("b")))[0] is grpc.StatusCode.UNAVAILABLE
        assert "failed" in (await worker.stub.HealthCheck(pb.HealthCheckRequest())).status


async def test_a_model_that_cannot_be_run_is_one_clear_error(library: Any) -> None:
    config = TrtllmConfig(model="broken", port=0)
    server = EngineServer(config, TrtllmEngine(config))
    with pytest.raises(ConfigError, match="TensorRT-LLM cannot run broken: .*out of memory"):
        await server.start()
    await server.stop()


async def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'dynamo-router\[trtllm\]'"):
        await TrtllmEngine(CONFIG).start(lambda rank, events: None)
