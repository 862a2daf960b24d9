"""`dynamo-router worker trtllm` with the real TensorRT-LLM, where there is one and a GPU.

TRTLLM_MODEL names a model's folder; its worker's answers and cache are asked for as a router does.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.calls import messages_of
from support.processes import command

from dynamo_router.workers.trtllm_proto import common_pb, pb

MODEL = os.environ.get("TRTLLM_MODEL")
pytestmark = pytest.mark.skipif(MODEL is None, reason="TRTLLM_MODEL names no model for a GPU here")
BLOCK = 32


def request(request_id: str, count: int = 100) -> Any:
    made = pb.GenerateRequest(request_id=request_id, max_tokens=8, streaming=True, ignore_eos=True)
    made.sampling_config.temperature = 0.0
    made.tokenized.input_token_ids.extend(range(1000, 1000 + count))
    return made


async def test_answers_and_the_cache(tmp_path: Path) -> None:
    assert MODEL is not None
    words = f"worker trtllm --port 0 --model {MODEL} --block-size {BLOCK} --max-model-len 2048"
    async with command(tmp_path, *words.split()) as running:
        await running.says("ready", 1800.0)
        address = (await running.says("engine: ")).split("grpc://")[1].split()[0]
        async with aio.insecure_channel(address) as channel:
            stub = TrtllmServiceStub(channel)
            *chunks, last = await messages_of(stub.Generate(request("a")))
            tokens = [token for each in chunks for token in each.chunk.token_ids]
            assert tokens == list(last.complete.output_token_ids) and len(tokens) == 8
            *_, again = await messages_of(stub.Generate(request("b")))
            assert list(again.complete.output_token_ids) == tokens
            call = stub.SubscribeKvEvents(common_pb.SubscribeKvEventsRequest())
            snapshot = await call.read()
            told = {tuple(b.token_ids) for e in snapshot.events for b in e.stored.blocks}
            prompt = list(request("c").tokenized.input_token_ids)
            blocks = {tuple(prompt[at : at + BLOCK]) for at in range(0, 96, BLOCK)}
            assert blocks <= told and again.complete.cached_tokens in (0, 96)
            call.cancel()
        assert await running.stop() == 0
