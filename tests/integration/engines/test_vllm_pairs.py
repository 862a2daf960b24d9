"""A prompt computed by one real vLLM and decoded by another, which reads it by NIXL.

Needs vLLM's CPU build with NIXL, and its gRPC server: see support/servers/vllm.py. What the engines
say is tested always, from fakes (tests/integration/handoff).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.fake_engine import prompt
from support.polling import closed_after, until, wait_until
from support.processes import http_text
from support.servers.http_engine import answers_of
from support.servers.openai_serving import Served, openai_serving
from support.servers.vllm import BLOCK, BLOCKS, CONTEXT, PYTHON, VllmGrpcHalf, VllmHalf, write_model

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.workers.token_services.vllm import VllmClient, vllm_engine_pb2
from dynamo_router.workers.trtllm_proto import pb

pytestmark = pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no Python with vLLM")
PAIRS: dict[str, tuple[type[VllmHalf], str]] = {
    "http": (VllmHalf, "NixlConnector"),
    "grpc": (VllmGrpcHalf, "NixlConnector"),
    "grpc-push": (VllmGrpcHalf, "NixlPushConnector"),
}
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all day "


class Pair(NamedTuple):
    prefill: VllmHalf
    decode: VllmHalf


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, connector = PAIRS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    model = write_model(folder / "model")
    found = Pair(*(kind(folder / name, model, connector) for name in ("p", "d")))
    try:
        for each in found:
            each.launch()
        for each in found:
            wait_until(each.ready, each.start_s)
        yield found
    finally:
        for each in found:
            each.kill()


@asynccontextmanager
async def served(pair: Pair, disagg: str) -> AsyncIterator[Served]:
    """The decode engine alone, or behind the prefill engine."""
    async with openai_serving(
        workers=(pair.decode.url,),
        prefill_workers=() if disagg == "off" else (pair.prefill.url,),
        disagg=DisaggConfig(disagg=disagg),
        router=KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1),
    ) as made:
        pools: Any = made.server._server.pools
        if disagg != "off":
            await until(lambda: len(pools.prefill.monitor.ready_clients()) == 1)
        yield made


async def completed(served: Served, number: int, **more: Any) -> Any:
    asked: Any = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}} | more
    prompt = f"{number} {WORDS * 4}"
    return await served.client.completions.create(model="tiny", prompt=prompt, **asked)


async def metric(served: Served, line: str) -> float:
    text = await http_text(served.server.http_address, "/metrics")
    found = [each for each in text.splitlines() if each.startswith(line + " ")]
    return sum(float(each.split()[-1]) for each in found)


async def held(engine: VllmHalf) -> float:
    """The share of an engine's blocks that it cannot give to others."""
    if isinstance(engine, VllmGrpcHalf):
        client = VllmClient(engine.address)
        found = await client.ask("GetLoads", 5.0)
        await client.close()
        assert isinstance(found, vllm_engine_pb2.GetLoadsResponse)
        return sum(float(each.token_usage) for each in found.loads)
    text = await http_text(engine.address, "/metrics")
    lines = [each for each in text.splitlines() if each.startswith("vllm:kv_cache_usage_perc{")]
    return sum(float(each.split()[-1]) for each in lines)


async def nothing_is_held(pair: Pair) -> None:
    # What they say of it is as old as their last step: one more brings it up to date.
    for engine in pair:
        async with openai_serving(
            workers=(engine.url,),
            router=KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1),
        ) as made:

            async def is_free(made: Served = made, engine: VllmHalf = engine) -> bool:
                await completed(made, 0, max_tokens=2)
                return await held(engine) == 0

            await until(is_free, deadline_s=60)


async def test_the_text_is_that_of_one_engine(pair: Pair) -> None:
    async with served(pair, "off") as alone:
        # Its first prompt must not be a short one: that build breaks over it.
        expected = [await completed(alone, number) for number in range(3)]
    # Blocks of these prompts are on the decode engine now: the same ones elsewhere begin anew.
    async with served(pair, "always") as both:
        for number, whole in enumerate(expected):
            found = await completed(both, number)
            assert found.choices[0].text == whole.choices[0].text
            assert found.usage.prompt_tokens == whole.usage.prompt_tokens
            assert found.usage.completion_tokens == 8
        fresh = [await completed(both, 10 + number) for number in range(3)]
        remote = 'dynamo_router_disagg_decisions_total{prefill="remote",reason="always"}'
        assert await metric(both, remote) == 6
        assert await metric(both, "dynamo_router_disagg_handoff_seconds_count") == 6
    async with served(pair, "off") as alone:
        for number, found in enumerate(fresh):
            whole = await completed(alone, 10 + number)
            assert found.choices[0].text == whole.choices[0].text
    await nothing_is_held(pair)


async def test_ids_in_and_out_over_grpc(pair: Pair) -> None:
    engine = pair.decode
    if not isinstance(engine, VllmGrpcHalf):
        return  # see test_vllm.py
    async with closed_after(VllmClient(engine.address, block_size=BLOCK)) as client:
        _, facts = await client.describe(timeout=30)
        assert (facts.model_id, facts.max_seq_len, facts.backend) == ("tiny", CONTEXT, "vllm")
        assert facts.settings == {"total_kv_blocks": BLOCKS, "max_num_seqs": 4}

        async def generated(request: Any) -> tuple[list[int], Any]:
            # For its first logprobs it compiles something, which takes a minute or more.
            call = client.generate(request.SerializeToString(), timeout=300)
            return answers_of([message async for message in call])

        request = prompt("a", 0)
        request.tokenized.input_token_ids.extend(range(300, 400))
        request.ignore_eos = True
        request.sampling_config.temperature = 0.0
        request.output_config.logprobs = request.output_config.prompt_logprobs = 2
        tokens, last = await generated(request)
        assert tokens == list(last.output_token_ids) and len(tokens) == 4
        assert [each.token_id for each in last.logprobs] == tokens
        assert all(each.top_logprobs for each in last.logprobs)
        assert [each.token_id for each in last.prompt_logprobs] == [*range(300, 400)]
        request.output_config.ClearField("prompt_logprobs")
        request.streaming, request.request_id = False, "b"
        chunks, whole = await generated(request)
        assert chunks == [] and list(whole.output_token_ids) == tokens and whole.cached_tokens
        request.stop_token_ids.append(tokens[1])
        request.streaming, request.request_id = True, "c"
        _, stopped = await generated(request)
        assert (stopped.finish_reason, stopped.matched_token_id) == ("stop", tokens[1])
        del request.stop_token_ids[:]
        request.max_tokens, request.request_id = 600, "d"
        call = client.generate(request.SerializeToString(), timeout=60)
        messages = aiter(call)
        await anext(messages)
        assert (await client.abort("d", timeout=5))[0]
        *_, ended = [pb.GenerateResponse.FromString(message) async for message in messages]
        assert 0 < len(ended.complete.output_token_ids) < 600


async def test_clients_that_leave_leave_nothing(pair: Pair) -> None:
    async with served(pair, "always") as both:
        await completed(both, 20)
        for number in range(12):
            stream = await completed(both, 30 + number, stream=True, max_tokens=200)
            if number % 2:
                await anext(aiter(stream))
            await stream.close()
        pools: Any = both.server._server.pools
        for pool in pools.running:
            await until(lambda pool=pool: not int(pool.router.slots.own_requests().sum()))
        assert (await completed(both, 50)).usage.completion_tokens == 8
    await nothing_is_held(pair)
