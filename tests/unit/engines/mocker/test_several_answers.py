"""A mock engine that is asked for several answers to one prompt, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.polling import until

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.workers.trtllm_proto import pb

ENGINE = EngineConfig(block_size=4, num_gpu_blocks=64, max_num_seqs=4, dp_size=2)


@pytest.fixture
def speed() -> float:
    return 1e6


@pytest.fixture
async def fleet(speed: float) -> AsyncIterator[MockFleet]:
    async with MockFleet(MockerConfig(port=0, speedup_ratio=speed, engine=ENGINE)) as fleet:
        yield fleet


@pytest.fixture
async def stub(fleet: MockFleet) -> AsyncIterator[Any]:
    async with aio.insecure_channel(fleet.addresses[0]) as channel:
        yield TrtllmServiceStub(channel)


def generate(request_id: str, answers: int, *, seed: int = 0, **more: Any) -> Any:
    request = pb.GenerateRequest(request_id=request_id, max_tokens=4, **more)
    request.tokenized.input_token_ids.extend(range(10))
    request.sampling_config.num_return_sequences = answers
    request.sampling_config.seed = seed
    return request


def outputs(messages: list[Any]) -> dict[int, list[int]]:
    """The tokens of each answer, by its last message."""
    last = [m.complete for m in messages if m.HasField("complete")]
    return {each.sequence_index: list(each.output_token_ids) for each in last}


@pytest.mark.parametrize("streaming", [True, False])
async def test_each_answer_is_that_of_a_seed_of_its_own(stub: Any, streaming: bool) -> None:
    several = await messages_of(stub.Generate(generate("a", 3, seed=7, streaming=streaming)))
    assert {m.request_id for m in several} == {"a"}
    alone = {}
    for nth in range(3):
        single = await messages_of(stub.Generate(generate(f"b{nth}", 1, seed=7 + nth)))
        alone[nth] = outputs(single)[0]
    assert outputs(several) == alone and len({tuple(each) for each in alone.values()}) == 3
    streamed: dict[int, list[int]] = {}
    for message in several:
        if message.HasField("chunk"):
            chunk = message.chunk
            streamed.setdefault(chunk.sequence_index, []).extend(chunk.token_ids)
            assert chunk.completion_tokens == len(streamed[chunk.sequence_index])
    assert streamed == (alone if streaming else {})


async def test_they_run_on_one_rank(fleet: MockFleet, stub: Any) -> None:
    await messages_of(stub.Generate(generate("a", 3)))
    again = await messages_of(stub.Generate(generate("b", 1)))
    assert again[-1].complete.cached_tokens == 8  # the first rank, which is the least loaded again


@pytest.mark.parametrize("speed", [1e-6])
async def test_an_abort_ends_all_and_leaves_nothing(fleet: MockFleet, stub: Any) -> None:
    ranked = fleet.engines[0].ranks

    def present() -> int:
        return sum(live.engine.running + live.engine.waiting for live in ranked.ranks)

    task = asyncio.ensure_future(messages_of(stub.Generate(generate("a", 3, streaming=True))))
    await until(lambda: present() == 3)
    assert (await stub.Abort(pb.AbortRequest(request_id="a"))).success
    messages = await task
    assert [m.complete.finish_reason for m in messages] == ["cancelled"] * 3
    assert {m.complete.sequence_index for m in messages} == {0, 1, 2}
    await until(lambda: present() == 0 and not ranked.busy)
    assert not (await stub.Abort(pb.AbortRequest(request_id="a"))).success


@pytest.mark.parametrize("speed", [1e-6])
async def test_an_id_in_use_is_refused_for_all(fleet: MockFleet, stub: Any) -> None:
    task = asyncio.ensure_future(messages_of(stub.Generate(generate("a", 2))))
    await until(lambda: fleet.engines[0].ranks.busy)
    with pytest.raises(grpc.RpcError) as caught:
        await messages_of(stub.Generate(generate("a", 2)))
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert (await stub.Abort(pb.AbortRequest(request_id="a"))).success
    assert len(await task) == 2
