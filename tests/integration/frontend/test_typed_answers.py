"""OpenAI's own package: its typed answers hold for every route, and errors raise its own types."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from support.engines.scoring_engine import scoring_engine
from support.fake_engine import FakeEngine, complete, fail, stall
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.workers.trtllm_proto import pb

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK: Any = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def check(kind: type[BaseModel], told: Any) -> None:
    """ValidationError where a field is missing or of another type; nothing is converted."""
    kind.model_validate_json(json.dumps(told), strict=True)


async def answers(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    last = complete(request, 64, 65)
    if request.output_config.logprobs:
        for token in (64, 65):
            added = last.complete.logprobs.add(token_id=token, logprob=-0.5)
            added.top_logprobs.add(token_id=token, logprob=-0.5)
    yield last


async def embed(body: bytes, context: Any) -> bytes:
    request = pb.EmbedRequest.FromString(body)
    answer = pb.EmbedResponse(request_id=request.request_id, embedding=[0.5, 1], prompt_tokens=1)
    return bytes(answer.SerializeToString())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with openai_serving(FakeEngine(answers)) as made:
        yield made


@pytest.mark.parametrize(
    "path, more, kind",
    [
        (CHAT, {}, ChatCompletion),
        (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 1}, ChatCompletion),
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, ChatCompletion),
        (CHAT, {"nvext": {"extra_fields": ["worker_id", "timing"]}}, ChatCompletion),
        (CHAT, USAGE, ChatCompletionChunk),
        (CHAT, {**USAGE, "logprobs": True, "top_logprobs": 1, "n": 2}, ChatCompletionChunk),
        (CHAT, {**USAGE, "nvext": {"extra_fields": ["worker_id"]}}, ChatCompletionChunk),
        (COMPLETIONS, {}, Completion),
        (COMPLETIONS, {"prompt": ["a", "b"], "echo": True, "logprobs": None}, Completion),
        (COMPLETIONS, {"logprobs": 1}, Completion),
        (COMPLETIONS, USAGE, Completion),
        (COMPLETIONS, {**USAGE, "logprobs": 1, "n": 2}, Completion),
        (COMPLETIONS, {"echo": True, "max_tokens": 0}, Completion),
    ],
)
async def test_answers_have_all_fields_of_openais_types(
    served: Served, path: str, more: Any, kind: type[BaseModel]
) -> None:
    prompt = {"messages": ASK} if path == CHAT else {"prompt": "a"}
    body = {"model": "tiny", "max_tokens": 2, **prompt, **more}
    async with served.session.post(served.url + path, json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    if "stream" not in more:
        check(kind, json.loads(text))
        return
    events = [line[6:] for line in text.split("\n\n") if line.startswith("data: {")]
    assert len(events) > 1 and text.endswith("data: [DONE]\n\n")
    for event in events:
        check(kind, json.loads(event))


async def test_scores_of_a_prompt_are_of_openais_type() -> None:
    """The type has numbers alone; the first token's null is what OpenAI's API itself sends."""
    async with scoring_engine() as engine, openai_serving(workers=(engine.url,)) as served:
        body = {"model": "tiny", "prompt": [1, 2, 3], "echo": True, "logprobs": 1, "max_tokens": 1}
        _, told = await served.post(COMPLETIONS, body)
        logprobs = told["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"].pop(0) is logprobs["top_logprobs"].pop(0) is None
        check(Completion, told)


async def test_models_are_of_openais_type(served: Served) -> None:
    told = (await served.get("/v1/models"))[1]
    assert told["object"] == "list"
    for each in (*told["data"], (await served.get("/v1/models/tiny"))[1]):
        check(Model, each)


async def test_an_error_of_a_stream_is_one_too(served: Served) -> None:
    for body in ({"model": "tiny"}, {"model": "other", "messages": ASK}, {"messages": 1}):
        status, told = await served.post(CHAT, {**body, "stream": True})
        assert status in (400, 404) and set(told["error"]) == {"message", "type", "param", "code"}


# Errors


async def ask(served: Served, **more: Any) -> Any:
    return await served.client.completions.create(
        **{"model": "tiny", "prompt": "a", "max_tokens": 2, **more}
    )


async def test_a_bad_request(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(served, temperature=9)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", "temperature", None)
    assert error.request_id


async def test_an_unknown_model(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(served, model="other")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        await served.client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        await served.client.files.list()


async def test_callers_without_a_token_or_a_role(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[caller]]\nname = "m"\ntoken = "{"m" * 20}"\nroles = ["metrics"]\n')
    tokens.chmod(0o600)
    async with openai_serving(FakeEngine(answers), auth_tokens=str(tokens)) as served:
        with pytest.raises(openai.AuthenticationError) as unknown:
            await ask(served)
        assert (unknown.value.type, unknown.value.code) == (
            "authentication_error",
            "invalid_api_key",
        )
        known = served._replace(client=served.client.with_options(api_key="m" * 20))
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await ask(known)
        assert refused.value.type == "permission_error"


async def test_more_requests_than_there_is_room_for() -> None:
    engine = FakeEngine(stall)
    peers = CallerLimits(max_requests=1, max_share_per_caller=1.0)
    async with openai_serving(engine, peers=peers) as served:
        stream = await ask(served, stream=True)
        await until(lambda: bool(engine.requests))
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(served)
        error = caught.value
        assert (error.type, error.code) == ("rate_limit_error", "rate_limit_exceeded")
        assert error.response.headers["retry-after"] == "1"
        engine.go.set()
        assert [part async for part in stream]


@pytest.mark.parametrize(
    "code, status",
    [
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.UNIMPLEMENTED, 501),
        (grpc.StatusCode.DATA_LOSS, 500),
    ],
)
async def test_an_engine_that_fails(code: grpc.StatusCode, status: int) -> None:
    async with openai_serving(FakeEngine(fail(code, "oh"))) as served:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(served)
        error = caught.value
        assert error.status_code == status
        assert error.type == ("invalid_request_error" if status == 501 else "server_error")
        again = error.response.headers.get("x-should-retry")
        assert again == ("false" if status == 501 else None)


async def test_a_fleet_without_an_engine() -> None:
    engine = FakeEngine(answers)
    async with openai_serving(engine) as served:
        await engine.stop()
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(served)
        assert (caught.value.status_code, caught.value.type) == (503, "server_error")
        assert caught.value.response.headers["retry-after"] == "1"


async def test_vectors_are_of_openais_type() -> None:
    engine = FakeEngine(answers)
    engine.embed = embed
    async with openai_serving(engine) as served:
        for form in ("float", "base64"):
            body = {"model": "tiny", "input": ["a", "b"], "encoding_format": form}
            status, told = await served.post("/v1/embeddings", body)
            assert status == 200
            if form == "float":
                check(CreateEmbeddingResponse, told)
        found = await served.client.embeddings.create(model="tiny", input="a")
        assert found.data[0].embedding == [0.5, 1]
