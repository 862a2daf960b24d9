"""Whatever stands in a field of a chat, a completion or an embedding: an answer below 500 in time,
and no constraint that is dropped without a word."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.api_clients.hostile_values import HOSTILE, answer_to
from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.embeddings import EmbeddingRequest
from dynamo_router.frontend.openai import ChatRequest, CompletionRequest
from dynamo_router.workers.trtllm_proto import pb

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
BASE: dict[str, dict[str, bytes]] = {
    COMPLETIONS: {"model": b'"tiny"', "prompt": b'"a"', "max_tokens": b"2"},
    CHAT: {
        "model": b'"tiny"', "max_tokens": b"2", "messages": b'[{"role": "user", "content": "a"}]',
    },
    EMBEDDINGS: {"model": b'"tiny"', "input": b'"a"'},
}  # fmt: skip
KINDS = {COMPLETIONS: CompletionRequest, CHAT: ChatRequest, EMBEDDINGS: EmbeddingRequest}
OF_ROUTER = {"prompt", "messages", "input", "model", "encoding_format", "stream", "stream_options",
             "echo", "include_stop_str_in_output", "nvext", "top_logprobs"}  # fmt: skip
"""What the router does itself, or is no constraint: engines do not see it."""
OF_TEMPLATES = {"chat_template_kwargs", "chat_template_args", "documents", "reasoning_effort"}
"""Variables of the chat template, which may have no use for them."""
NOTHING = {b"null", b"false", b"0", b'""', b"[]", b"{}"}
USUAL = {"seed": {b"-1"}, "top_k": {b"-1"}, "add_generation_prompt": {b"true"},
         "parallel_tool_calls": {b"true"}, "length_penalty": {b"true"},
         "separate_reasoning": {b"true"}, "stream_reasoning": {b"true"},
         "skip_special_tokens": {b"true"}, "spaces_between_special_tokens": {b"true"}}  # fmt: skip
"""Values of a field that ask for nothing; true equals 1."""


async def embed(message: bytes, context: Any) -> bytes:
    return bytes(pb.EmbedResponse(embedding=[1.0, 2.0]).SerializeToString())


@pytest.fixture
async def serving() -> AsyncIterator[tuple[Served, FakeEngine]]:
    engine = FakeEngine(worker_id=7)
    engine.embed = embed
    config = FrontendConfig(http_frontend=0, tool_call_parser="hermes")
    async with openai_serving(engine, frontend=config, context=2000) as served:
        yield served, engine


async def asked_of_engines(
    served: Served, engine: FakeEngine, path: str, fields: dict[str, bytes]
) -> tuple[int, bytes, list[Any]]:
    """(status, body, requests to engines without their ids)"""
    engine.requests.clear()
    async with asyncio.timeout(60):
        status, body = await answer_to(served, path, fields)
    for each in engine.requests:
        each.request_id = ""
    return status, body, list(engine.requests)


@pytest.mark.parametrize("path", KINDS)
async def test_any_value_has_an_answer(serving: tuple[Served, FakeEngine], path: str) -> None:
    served, engine = serving
    _, _, usual = await asked_of_engines(served, engine, path, BASE[path])
    for field in (*KINDS[path].__struct_encode_fields__, "unknown_field"):
        for value in HOSTILE:
            case = (field, value[:60])
            fields = {**BASE[path], field: value}
            status, body, asked = await asked_of_engines(served, engine, path, fields)
            assert status in (200, 400, 404), (case, status, body[:300])
            if status != 200:
                error = json.loads(body)["error"]
                assert error["message"] and set(error) == {"message", "type", "param", "code"}, case
            elif field not in OF_ROUTER | OF_TEMPLATES | {"unknown_field"} and asked == usual:
                harmless = NOTHING if field not in ("temperature", "n", "max_tokens") else {b"null"}
                assert value in harmless | USUAL.get(field, set()), (case, "was dropped")
        status, _, asked = await asked_of_engines(served, engine, path, BASE[path])
        assert (status, asked) == (200, usual)  # the next request is as before
    assert served.server.dispatcher.in_flight == 0
