"""OpenAI's own client against a fleet of scripted engines, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from support.fake_engine import FakeEngine, chunk, complete, fail, hang, stall
from support.polling import until
from support.servers.openai_serving import BLOCK, Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.access import FRONTEND_RULES
from dynamo_router.server.caller_limits import CallerLimits

MODEL = "tiny"
WORD = {"model": MODEL, "prompt": "a"}
ASK: Any = [{"role": "user", "content": "Hello"}]


async def a_b(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    if request.streaming:
        yield chunk(request, 64)
        yield chunk(request, 65)
    yield complete(request, 64, 65)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a_b, worker_id=7)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with openai_serving(engine) as made:
        yield made


async def test_a_chat(served: Served, engine: FakeEngine) -> None:
    found = await served.client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)
    (choice,) = found.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert found.usage is not None and found.usage.completion_tokens == 2
    (asked,) = engine.requests
    assert found.usage.prompt_tokens == len(asked.tokenized.input_token_ids) > 5
    assert not asked.streaming and asked.max_tokens == 2


async def test_a_chat_streamed_says_the_same(served: Served) -> None:
    whole = await served.client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)
    stream = await served.client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [each async for each in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


async def test_completions_of_texts_ids_and_lists(served: Served, engine: FakeEngine) -> None:
    create = served.client.completions.create
    for prompt in ("some text", [5, 6, 7], ["a", "b"], [[5, 6], [7]]):
        found = await create(model=MODEL, prompt=prompt, max_tokens=2)
        many = isinstance(prompt, list) and not isinstance(prompt[0], int)
        assert [choice.index for choice in found.choices] == ([0, 1] if many else [0])
    sent = [list(request.tokenized.input_token_ids) for request in engine.requests]
    assert [5, 6, 7] in sent and [5, 6] in sent and [7] in sent


async def test_several_answers_are_several_requests(served: Served, engine: FakeEngine) -> None:
    found = await served.client.completions.create(
        model=MODEL, prompt=[[1], [2, 3]], n=2, seed=5, max_tokens=2
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.usage is not None
    assert found.usage.prompt_tokens == 3 and found.usage.completion_tokens == 8
    assert sorted(request.sampling_config.seed for request in engine.requests) == [5, 5, 6, 6]
    stream = await served.client.completions.create(
        model=MODEL, prompt="a", n=2, max_tokens=2, stream=True
    )
    seen = {each.choices[0].index async for each in stream}
    assert seen == {0, 1}


async def test_answers_that_share_a_prompt_go_where_it_was_computed() -> None:
    """`n`, and prompts of a list that begin alike, streamed and not."""
    engines = [FakeEngine(a_b, worker_id=number) for number in range(1, 5)]
    begin = [7] * 320
    async with openai_serving(*engines, context=1000) as served:
        for at, fields in enumerate(
            (
                {"prompt": begin, "n": 6},
                {"prompt": begin, "n": 6, "stream": True},
                {"prompt": [[*begin, number] for number in range(6)]},
            )
        ):
            begin[0] = at
            body = {"model": MODEL, "max_tokens": 2, "temperature": 1, **fields}
            async with served.session.post(f"{served.url}/v1/completions", json=body) as answer:
                assert answer.status == 200 and await answer.read()
            (asked,) = [engine for engine in engines if engine.requests]
            first, *others = asked.requests
            assert len(others) == 5
            assert first.streaming and all(
                other.streaming == bool(fields.get("stream")) for other in others
            )
            asked.requests.clear()


async def test_nobody_waits_for_a_prompt_that_no_policy_compares() -> None:
    engines = [FakeEngine(a_b, worker_id=number) for number in range(1, 5)]
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, mode="round-robin")
    async with openai_serving(*engines, context=1000, router=config) as served:
        body = {"model": MODEL, "max_tokens": 2, "temperature": 1, "prompt": [7] * 320, "n": 8}
        assert (await served.post("/v1/completions", body))[0] == 200
        assert [len(engine.requests) for engine in engines] == [2] * 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_first_answer_that_fails_ends_those_that_wait_for_it(stream: bool) -> None:
    engine = FakeEngine(fail(grpc.StatusCode.INVALID_ARGUMENT, "no"), worker_id=1)
    async with openai_serving(engine, context=1000) as served:
        body = {"model": MODEL, "temperature": 1, "prompt": [7] * 320, "n": 8, "stream": stream}
        assert (await served.post("/v1/completions", body))[0] == 400
        assert len(engine.requests) == 1


async def test_an_echo(served: Served) -> None:
    found = await served.client.completions.create(
        model=MODEL, prompt="say", echo=True, max_tokens=2
    )
    assert found.choices[0].text.startswith("say")


async def test_a_stop_string_ends_the_engines_work(served: Served, engine: FakeEngine) -> None:
    engine.script = stall
    text = (await served.post("/detokenize", {"tokens": [11]}))[1]["prompt"]
    found = await served.client.completions.create(
        model=MODEL, prompt="x", stop=text, stream=True, max_tokens=50
    )
    engine_aborted = until(lambda: engine.aborted)
    reading = asyncio.ensure_future(_texts(found))
    await engine_aborted
    engine.go.set()
    assert (await reading)[-1] == "stop"


async def _texts(stream: Any) -> list[str]:
    return [each.choices[0].finish_reason or each.choices[0].text async for each in stream]


async def test_models_and_tokens(served: Served) -> None:
    (model,) = (await served.client.models.list()).data
    assert model.id == MODEL and model.model_dump()["max_model_len"] == 200
    assert (await served.client.models.retrieve(MODEL)).id == MODEL
    status, told = await served.post("/tokenize", {"prompt": "hello world"})
    assert status == 200 and told["count"] == len(told["tokens"]) and told["max_model_len"] == 200
    back = await served.post("/detokenize", {"tokens": told["tokens"]})
    assert back == (200, {"prompt": "hello world"})
    chat = (await served.post("/tokenize", {"messages": ASK}))[1]
    assert chat["count"] > 5
    assert (await served.get("/live"))[0] == (await served.get("/health"))[0] == 200


async def test_why_this_worker(served: Served) -> None:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 2}
    told = (await served.post("/v1/chat/completions", body, headers={"x-dynamo-explain": "1"}))[1]
    assert told["nvext"]["worker_id"] == {"decode_worker_id": 7, "decode_dp_rank": 0}
    assert told["nvext"]["overlap_blocks"] == 0
    assert "nvext" not in (await served.post("/v1/chat/completions", body))[1]


async def test_request_ids_come_back_also_with_errors(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as found:
        await served.client.chat.completions.create(
            model="other", messages=ASK, extra_headers={"x-request-id": "mine-1"}
        )
    assert found.value.request_id == "mine-1"
    assert "tiny" in str(found.value) and found.value.code == "model_not_found"
    raw = await served.client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, extra_headers={"x-request-id": "bad id"}
    )
    assert raw.headers["x-request-id"] and " " not in raw.headers["x-request-id"]


@pytest.mark.parametrize(
    "code, error",
    [
        (grpc.StatusCode.INVALID_ARGUMENT, openai.BadRequestError),
        (grpc.StatusCode.INTERNAL, openai.InternalServerError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, openai.RateLimitError),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_refusal_before_the_first_token_has_its_status(
    served: Served, engine: FakeEngine, code: Any, error: Any, stream: bool
) -> None:
    engine.script = fail(code, "not this")
    with pytest.raises(error, match="not this"):
        await served.client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)


async def test_a_failure_after_it_is_an_error_in_the_stream(
    served: Served, engine: FakeEngine
) -> None:
    async def breaks(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 64)
        await context.abort(grpc.StatusCode.INTERNAL, "it broke")

    engine.script = breaks
    stream = await served.client.completions.create(model=MODEL, prompt="a", stream=True)
    with pytest.raises(openai.APIError, match="it broke"):
        await _texts(stream)


async def test_no_worker_is_503_with_a_time_to_come_back(
    served: Served, engine: FakeEngine
) -> None:
    await engine.stop()
    await until(lambda: not served.server.monitor.any_ready)
    with pytest.raises(openai.InternalServerError) as found:
        await served.client.chat.completions.create(model=MODEL, messages=ASK)
    assert found.value.status_code == 503 and found.value.response.headers["retry-after"] == "1"
    assert (await served.get("/health"))[0] == 503


async def test_a_prompt_too_long_says_what_and_by_how_much(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 200 tokens") as e:
        await served.client.completions.create(model=MODEL, prompt=[1] * 190, max_tokens=11)
    assert "requested 201 tokens (190 in the prompt, 11 in the completion)" in str(e.value)
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await served.client.completions.create(model=MODEL, prompt=[1] * 200)


async def test_an_answer_of_no_given_length_fits(served: Served, engine: FakeEngine) -> None:
    await served.client.completions.create(model=MODEL, prompt=[1] * 150)
    assert engine.requests[-1].max_tokens == 50


async def test_a_client_that_leaves_frees_its_worker(served: Served, engine: FakeEngine) -> None:
    engine.script = hang
    asking = asyncio.ensure_future(served.client.chat.completions.create(model=MODEL, messages=ASK))
    await until(lambda: engine.requests)
    asking.cancel()
    await until(lambda: engine.cancelled or engine.aborted)
    await until(lambda: served.server.dispatcher.in_flight == 0)


async def test_a_stream_without_tokens_is_kept_alive(engine: FakeEngine) -> None:
    engine.script = stall
    config = FrontendConfig(http_frontend=0, keep_alive_s=0.05)
    async with openai_serving(engine, frontend=config) as served:
        body = {"model": MODEL, "prompt": "a", "stream": True}
        async with served.session.post(f"{served.url}/v1/completions", json=body) as answer:
            seen = b""
            async for line in answer.content:
                seen += line
                if b": keep-alive" in seen:
                    break
            engine.go.set()
            seen += await answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert seen.endswith(b"data: [DONE]\n\n")
        events = [line for line in seen.splitlines() if line.startswith(b"data: {")]
        assert all(json.loads(line[6:])["object"] == "text_completion" for line in events)


@pytest.mark.parametrize(
    "path, body, status, words",
    [
        ("/v1/completions", b"{", 400, "not what it must be"),
        ("/v1/completions", {"model": MODEL}, 400, "prompt"),
        ("/v1/completions", {"model": MODEL, "prompt": 3}, 400, "prompt must be"),
        ("/v1/completions", {"model": MODEL, "prompt": []}, 400, "1 to 128 entries"),
        ("/v1/completions", {"model": MODEL, "prompt": [1, "a"]}, 400, "prompt"),
        ("/v1/completions", {"model": MODEL, "prompt": [-1]}, 400, "prompt"),
        ("/v1/completions", {"model": MODEL, "prompt": [[]]}, 400, "empty"),
        ("/v1/completions", {"model": MODEL, "prompt": ["a"] * 65, "n": 2}, 400, "more than 128"),
        ("/v1/completions", {"model": MODEL, "prompt": [5000]}, 400, "out of range"),
        ("/v1/chat/completions", {"model": MODEL, "messages": []}, 400, "empty"),
        ("/v1/completions", {**WORD, "prompt": ["a", 1]}, 400, "list of either"),
        ("/v1/completions", {**WORD, "prompt": [[1], 2]}, 400, "list of either"),
        ("/v1/completions", {**WORD, "stop": ["x"] * 33}, 400, "stop has more than 32 entries"),
        ("/v1/completions", {**WORD, "n": 129}, 400, "n must be in 1..128"),
        ("/v1/completions", {**WORD, "n": 2, "temperature": 0}, 400, "n above 1"),
        ("/v1/completions", {**WORD, "max_tokens": 0}, 400, "max_tokens must be in 1..2147483647"),
        ("/v1/completions", {**WORD, "logit_bias": {"5": 101}}, 400, "logit_bias must be in"),
        ("/v1/completions", {**WORD, "nvext": {"other": 1}}, 400, "other"),
        ("/v1/nothing", {}, 404, "there is no /v1/nothing"),
        ("/v1/models", {}, 405, "does not take POST"),
        ("/tokenize", {}, 400, "either prompt or messages"),
        ("/detokenize", {"tokens": [99999]}, 400, "no token id"),
    ],
)
async def test_bad_requests(served: Served, path: str, body: Any, status: int, words: str) -> None:
    found, told = await served.post(path, body)
    assert found == status and words in told["error"]["message"]
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert told["error"]["type"] == "invalid_request_error" and told["error"]["code"] is None


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
async def test_web_pages_are_kept_out(served: Served, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": "a"}
    status, told = await served.post("/v1/completions", body, headers=headers)
    assert status == 403 and told["error"]["type"] == "permission_error"


async def test_a_body_that_is_too_long(engine: FakeEngine) -> None:
    async with openai_serving(engine, peers=CallerLimits(max_body_bytes=1000)) as served:
        status, told = await served.post("/v1/completions", b" " * 2000)
        assert status == 413 and "longer than 1000 bytes" in told["error"]["message"]


async def test_every_route_asks_for_its_role(engine: FakeEngine, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    roles = {"client": "c" * 20, "metrics": "m" * 20}
    for role, token in roles.items():
        with tokens.open("a") as file:
            file.write(f'[[caller]]\nname = "{role}"\ntoken = "{token}"\nroles = ["{role}"]\n')
    tokens.chmod(0o600)
    async with openai_serving(engine, auth_tokens=str(tokens)) as served:
        for call, rule in FRONTEND_RULES.items():
            method, path = call.replace("{id}", MODEL).split()
            for token in (None, *roles.values()):
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                url = served.url + path
                async with served.session.request(method, url, headers=headers) as answer:
                    allowed = any(token == roles[role] for role in roles if role in rule.roles)
                    refused = 401 if token is None else 403
                    assert (answer.status == refused) is not allowed, (call, token)
        client = served.client.with_options(api_key=roles["client"])
        assert (await client.completions.create(model=MODEL, prompt="a", max_tokens=2)).choices
        with pytest.raises(openai.AuthenticationError):
            await served.client.completions.create(model=MODEL, prompt="a")
        assert (await served.get("/live"))[0] == 200
