"""Real engines, llama.cpp's servers, behind the router: by gRPC and by OpenAI's API."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from grpc import aio
from support.calls import messages_of
from support.fake_engine import prompt
from support.polling import until
from support.processes import command, http_json
from support.servers.llama import LlamaServer
from support.servers.openai_serving import BLOCK, Served, openai_serving
from support.servers.tiny_model import write_tiny_model

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.dialects import OpenAiClient
from dynamo_router.workers.trtllm_proto import SERVICE, pb

ALTERNATIVES = 8
WORDS = "the quick brown fox jumps over the lazy dog and then "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def engines(tmp_path: Path, model: Path) -> Iterator[list[LlamaServer]]:
    servers = [LlamaServer(tmp_path / name, model) for name in ("a", "b")]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
async def served(engines: list[LlamaServer]) -> AsyncIterator[Served]:
    urls = tuple(engine.url for engine in engines)
    # The forecast goes by how long such engines take, which on a busy machine says nothing.
    router = KvRouterConfig(block_size=BLOCK, seed=1, policy="dynamo")
    async with openai_serving(workers=urls, router=router, event_sources="grpc") as made:
        yield made


def asked(request_id: str, first: int, count: int = 100, **more: Any) -> Any:
    """A request of `count` tokens that no request with another `first` shares a block with."""
    request = prompt(request_id, 0, **more)
    request.sampling_config.temperature = 0.0
    request.tokenized.input_token_ids.extend(range(first, first + count))
    return request


async def generated(served: Served, request: Any, at: int | None = None) -> tuple[list[Any], str]:
    """The chunks and the complete message, and the worker that made them: `at`, if given."""
    metadata = () if at is None else (("x-dynamo-worker-id", str(at)),)
    async with aio.insecure_channel(served.server.grpc_address) as channel:
        method = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        call = method(request.SerializeToString(), metadata=metadata)
        messages = [pb.GenerateResponse.FromString(m) for m in await messages_of(call)]
        trailing = {key: value for key, value in await call.trailing_metadata()}
        return messages, trailing["x-dynamo-worker-id"]


async def all_predicted(served: Served) -> None:
    """Until both caches are predicted: before that nothing is believed of them."""
    entries = served.server.router.registry.entries
    await until(lambda: {entry.event_source for entry in entries()} == {"predicted"})


async def test_prompts_go_to_whom_has_their_prefix(served: Served) -> None:
    await all_predicted(served)
    views = served.server.router.workers()
    assert {view.dialect for view in views} == {"openai"}
    assert served.server.monitor.facts.model_id.endswith("tiny.gguf")
    homes = {300 + 1000 * n: view.worker.worker_id for n, view in enumerate(views)}
    for first, worker_id in homes.items():
        answer, _ = await generated(served, asked(f"first-{first}", first), worker_id)
        assert answer[-1].complete.cached_tokens == 0
    for turn in range(6):
        first, worker_id = list(homes.items())[turn % 2]
        (*chunks, last), again = await generated(served, asked(f"again-{turn}", first))
        assert again == str(worker_id)
        # llama.cpp computes the last token of a prompt again.
        assert chunks[0].chunk.cached_tokens == last.complete.cached_tokens == 99
        told = [token for each in chunks for token in each.chunk.token_ids]
        assert told == list(last.complete.output_token_ids)
        assert last.complete.prompt_tokens == 100 and last.complete.finish_reason == "length"


async def test_an_openai_client(served: Served) -> None:
    await all_predicted(served)
    client, ask = served.client, [{"role": "user", "content": WORDS * 8}]
    name = (await client.models.list()).data[0].id
    more: Any = {"model": name, "messages": ask, "max_tokens": 12, "temperature": 0}
    whole = await client.chat.completions.create(**more)
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    stream = await client.chat.completions.create(
        **more, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None and usage.prompt_tokens_details is not None
    # It went to the engine that has it, and that says so.
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


async def test_a_schema_and_what_is_refused(served: Served) -> None:
    name = (await served.client.models.list()).data[0].id
    more: Any = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
    schema = {"name": "flag", "schema": {"type": "boolean"}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    found = await served.client.chat.completions.create(**more, response_format=form)
    assert found.choices[0].message.content in ("true", "false")
    with pytest.raises(openai.BadRequestError, match="cache salt"):
        await served.client.chat.completions.create(**more, extra_body={"cache_salt": "tenant"})


async def likeliest(engine: LlamaServer, context: list[int]) -> list[tuple[int, float]]:
    """(id, logprob) of the tokens that may come next, as the engine itself says."""
    asked = {"prompt": context, "n_predict": 1, "n_probs": ALTERNATIVES, "temperature": 0.0}
    told = await http_json(engine.address, "/completion", asked)
    (only,) = told["completion_probabilities"]
    return [(each["id"], each["logprob"]) for each in only["top_logprobs"]]


async def test_loglikelihoods_are_those_of_the_engine(
    served: Served, engines: list[LlamaServer]
) -> None:
    """As lm-eval scores a continuation where an engine has no logprobs of prompts: the logprob of
    each of its tokens behind all before it. Likely and unlikely continuations of contexts."""
    name = (await served.client.models.list()).data[0].id
    through, direct = [], []
    for context in ([5, 9, 60, 3], list(range(300, 340)), [7] * 90):
        for ranks in ((0, 0, 0), (1, 0, 2), (4, 4, 4)):
            prompt, here, there = list(context), 0.0, 0.0
            for rank in ranks:
                found = await likeliest(engines[0], prompt)
                answer = await served.client.completions.create(
                    model=name, prompt=prompt, max_tokens=1, temperature=0, logprobs=ALTERNATIVES
                )
                logprobs = answer.choices[0].logprobs
                assert logprobs is not None and logprobs.top_logprobs and logprobs.token_logprobs
                ours = sorted(logprobs.top_logprobs[0].values(), reverse=True)
                assert logprobs.token_logprobs[0] == ours[0]  # the likeliest one is chosen
                here, there = here + ours[rank], there + found[rank][1]
                prompt.append(found[rank][0])
            through.append(here)
            direct.append(there)
    assert through == pytest.approx(direct, abs=1e-3)
    assert len({round(each, 2) for each in direct}) > 6  # they tell continuations apart


async def test_loglikelihoods_of_prompts_are_refused_by_name(served: Served) -> None:
    """llama.cpp takes `echo` and has no logprobs of the prompt."""
    name = (await served.client.models.list()).data[0].id
    with pytest.raises(openai.BadRequestError) as caught:
        await served.client.completions.create(
            model=name, prompt=[5, 9, 60, 3], max_tokens=1, temperature=0, echo=True, logprobs=1
        )
    assert caught.value.param == "echo" and "logprobs of the prompt" in str(caught.value)


async def test_a_prompt_that_is_too_long(served: Served) -> None:
    name = (await served.client.models.list()).data[0].id
    with pytest.raises(openai.BadRequestError, match="1024"):
        await served.client.completions.create(model=name, prompt=[5] * 2000, max_tokens=4)


async def busy_slots(engine: LlamaServer) -> int:
    return sum(slot["is_processing"] for slot in await http_json(engine.address, "/slots"))


async def test_a_client_that_leaves_frees_its_engine(
    served: Served, engines: list[LlamaServer]
) -> None:
    async def all_busy() -> int:
        return sum([await busy_slots(engine) for engine in engines])

    request = asked("long", 300)
    request.max_tokens, request.ignore_eos = 900, True
    async with aio.insecure_channel(served.server.grpc_address) as channel:
        for end in ("cancel", "abort"):
            request.request_id = end
            method = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
            call = method(request.SerializeToString())
            messages = aiter(call)
            assert pb.GenerateResponse.FromString(await anext(messages)).HasField("chunk")
            if end == "cancel":
                call.cancel()
            else:
                assert (await served.server.dispatcher.abort(end))[0]
                *_, last = [message async for message in messages]
                complete = pb.GenerateResponse.FromString(last).complete
                assert complete.finish_reason == "cancelled"
            async with asyncio.timeout(60):
                while await all_busy():
                    pass


async def test_an_engine_is_killed(served: Served, engines: list[LlamaServer]) -> None:
    monitor = served.server.monitor
    engines[0].kill()
    for turn in range(6):  # no request is lost, whichever it was meant for
        request = asked(f"r{turn}", 300 + 100 * turn)
        request.streaming = False
        answer, _ = await generated(served, request)
        assert len(answer[-1].complete.output_token_ids) == 4
    await until(lambda: len(monitor.ready_clients()) == 1)
    await engines[0].come_back()
    await until(lambda: len(monitor.ready_clients()) == 2)


async def test_every_token_of_a_stream_is_told(engines: list[LlamaServer]) -> None:
    """Characters of several tokens, of which llama.cpp's stream tells the last one alone."""
    client = OpenAiClient(engines[0].address)
    await client.describe(timeout=10)
    request = asked("r", 300)
    request.max_tokens = 60
    request.guided_decoding.guide_type = pb.GuidedDecodingParams.GUIDE_TYPE_EBNF_GRAMMAR
    request.guided_decoding.guide = 'root ::= "a\u00e4\u6f22\U0001f600z"'
    call = client.generate(request.SerializeToString(), timeout=30)
    *chunks, last = [pb.GenerateResponse.FromString(message) async for message in call]
    ids = [token for chunk in chunks for token in chunk.chunk.token_ids]
    assert ids == list(last.complete.output_token_ids)
    said = await http_json(engines[0].address, "/detokenize", {"tokens": ids})
    assert said["content"].removesuffix("<|end|>") == "a\u00e4\u6f22\U0001f600z"
    await client.close()


async def test_the_command(tmp_path: Path, engines: list[LlamaServer]) -> None:
    workers = [word for engine in engines for word in ("--worker", engine.url)]
    words = ("--port", "0", "--http-port", "0", "--http-frontend", "0", "--mode", "kv")
    async with command(tmp_path / "serve", "serve", *words, *workers) as router:
        line = (await router.says("dynamo-router ready")).split()
        http = line[line.index("http") + 1]
        views = await http_json(http, "/workers")
        assert [view["dialect"] for view in views["workers"]] == ["openai"] * 2
        assert {view["state"] for view in views["workers"]} == {"ready"}
        address = line[line.index("openai") + 1]
        listed = await http_json(address, "/v1/models")
        body = {"model": listed["data"][0]["id"], "prompt": [5] * 20, "max_tokens": 2}
        found = await http_json(address, "/v1/completions", body)
        assert found["usage"]["completion_tokens"] == 2
