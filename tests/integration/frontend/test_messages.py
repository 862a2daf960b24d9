"""Anthropic's Messages as Anthropic's own client sees them, streamed and not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import grpc
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message
from support.api_clients.said import last_prompt, say
from support.fake_engine import FakeEngine, chunk, complete, fail
from support.frontend.tool_serving import SAID, SCHEMA, tool_serving
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.workers.trtllm_proto import pb

MODEL = "tiny"
ASK: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {"name": "weather", "description": "Of a city", "input_schema": SCHEMA}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(worker_id=7)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with tool_serving(engine, context=2000) as made:
        yield made


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_client(served.url) as made:
        yield made


@asynccontextmanager
async def anthropic_client(url: str, key: str = "none") -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as made:
        yield made


async def test_a_whole_message(client: AsyncAnthropic, served: Served, engine: FakeEngine) -> None:
    await say(served, engine, SAID)
    found = await client.messages.create(
        model=MODEL, max_tokens=100, messages=ASK, tools=[TOOL], system="Be brief."
    )
    Message.model_validate(found.model_dump(), strict=False)
    thought, text, call = found.content
    assert thought.type == "thinking" and thought.thinking == "hm" and thought.signature
    assert text.type == "text" and text.text == "Look."
    assert call.type == "tool_use" and call.input == {"city": "Ulm"} and call.name == "weather"
    assert found.stop_reason == "tool_use" and found.id.startswith("msg_")
    assert found.usage.input_tokens > 5 and found.usage.output_tokens > 5
    details = found.usage.output_tokens_details
    assert details is not None and 0 < details.thinking_tokens < found.usage.output_tokens
    assert (await last_prompt(served, engine)).startswith("system\nBe brief.")
    assert engine.requests[-1].max_tokens == 100


async def test_a_stream_says_the_same(
    client: AsyncAnthropic, served: Served, engine: FakeEngine
) -> None:
    await say(served, engine, SAID)
    kinds = []
    async with client.messages.stream(
        model=MODEL, max_tokens=100, messages=ASK, tools=[TOOL]
    ) as stream:
        async for event in stream:
            kinds.append(event.type)
        found = await stream.get_final_message()
    whole = await client.messages.create(model=MODEL, max_tokens=100, messages=ASK, tools=[TOOL])
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert found.stop_reason == whole.stop_reason == "tool_use"
    assert found.usage.model_dump() == whole.usage.model_dump()
    shown = [[(each.type, _said(each)) for each in message.content] for message in (found, whole)]
    assert (
        shown[0]
        == shown[1]
        == [
            ("thinking", "hm"),
            ("text", "Look."),
            ("tool_use", {"city": "Ulm"}),
        ]
    )


def _said(block: Any) -> Any:
    return getattr(block, "input" if block.type == "tool_use" else block.type)


async def test_a_turn_goes_back_with_its_results(
    client: AsyncAnthropic, served: Served, engine: FakeEngine
) -> None:
    await say(served, engine, SAID)
    first = await client.messages.create(model=MODEL, max_tokens=9, messages=ASK, tools=[TOOL])
    result: Any = {
        "type": "tool_result",
        "tool_use_id": first.content[-1].id,  # type: ignore[union-attr]
        "content": [{"type": "text", "text": "no such city"}],
        "is_error": True,
        "cache_control": {"type": "ephemeral"},
    }
    more: Any = {"type": "text", "text": "Well?"}
    turn: Any = [*ASK, first.to_param(), {"role": "user", "content": [result, more]}]
    await client.messages.create(model=MODEL, max_tokens=9, messages=turn, tools=[TOOL])
    prompt = await last_prompt(served, engine)
    assert prompt.endswith(
        "Hello\nassistant\nLook.\ntool\nError: no such city\nuser\nWell?\nassistant\n"
    ), prompt
    counted = await client.messages.count_tokens(model=MODEL, messages=turn, tools=[TOOL])
    assert counted.input_tokens == len(engine.requests[-1].tokenized.input_token_ids)


async def test_why_it_stopped(client: AsyncAnthropic, served: Served, engine: FakeEngine) -> None:
    create = client.messages.create
    await say(served, engine, "Look here")
    assert (await create(model=MODEL, max_tokens=9, messages=ASK)).stop_reason == "end_turn"
    found = await create(model=MODEL, max_tokens=9, messages=ASK, stop_sequences=["he", "xx"])
    assert found.stop_reason == "stop_sequence" and found.stop_sequence == "he"
    (text,) = found.content
    assert text.type == "text" and text.text == "Look "
    await say(served, engine, "Look here", reason="length")
    assert (await create(model=MODEL, max_tokens=9, messages=ASK)).stop_reason == "max_tokens"


async def test_tools_that_must_be_called_and_formats_hold_the_engine(
    client: AsyncAnthropic, served: Served, engine: FakeEngine
) -> None:
    await say(served, engine, '{"city": "Ulm"}')
    create = client.messages.create
    named: Any = {"type": "tool", "name": "weather"}
    found = await create(model=MODEL, max_tokens=9, messages=ASK, tools=[TOOL], tool_choice=named)
    (call,) = found.content
    assert call.type == "tool_use" and call.input == {"city": "Ulm"}
    guided = engine.requests[-1].guided_decoding
    assert guided.guide_type == pb.GuidedDecodingParams.GUIDE_TYPE_JSON_SCHEMA
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    await create(model=MODEL, max_tokens=9, messages=ASK, tools=[TOOL], tool_choice=choice)
    assert '"maxItems":1' in engine.requests[-1].guided_decoding.guide
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    await create(model=MODEL, max_tokens=9, messages=ASK, output_config=form)
    assert '"city"' in engine.requests[-1].guided_decoding.guide


async def test_errors_in_anthropics_shape(
    client: AsyncAnthropic, served: Served, engine: FakeEngine
) -> None:
    async def breaks(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 64)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no more")

    engine.script = breaks
    with pytest.raises(anthropic.APIStatusError, match="no more"):
        async with client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as stream:
            async for _ in stream:
                pass

    async def early(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        last = complete(request, 64)
        last.complete.finish_reason = "cancelled"
        yield last

    engine.script = early
    with pytest.raises(anthropic.InternalServerError, match="ended the answer before its end"):
        await client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
    engine.script = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    with pytest.raises(anthropic.RateLimitError) as full:
        await client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
    assert full.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index,call-overload]
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        await client.messages.create(model="other", max_tokens=9, messages=ASK)
    long: Any = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        await client.messages.create(model=MODEL, max_tokens=9, messages=long)
    status, body = await served.get("/v1/messages/batches")
    assert status == 404 and body["type"] == "error"


async def test_thinking_is_refused_where_it_cannot_be_had(engine: FakeEngine) -> None:
    enabled: Any = {"type": "enabled", "budget_tokens": 5}
    disabled: Any = {"type": "disabled"}
    adaptive: Any = {"type": "adaptive"}
    async with (
        openai_serving(engine, context=2000) as served,
        anthropic_client(served.url) as client,
    ):
        create = client.messages.create
        for thinking in (disabled, adaptive):
            await create(model=MODEL, max_tokens=9, messages=ASK, thinking=thinking)
        with pytest.raises(anthropic.BadRequestError, match="thinking.*reasoning parser"):
            await create(model=MODEL, max_tokens=9, messages=ASK, thinking=enabled)
        with pytest.raises(anthropic.BadRequestError, match="may call tools"):
            await create(model=MODEL, max_tokens=9, messages=ASK, tools=[TOOL])


async def test_a_model_that_cannot_stop_thinking(client: AsyncAnthropic) -> None:
    disabled: Any = {"type": "disabled"}
    enabled: Any = {"type": "enabled", "budget_tokens": 5}
    await client.messages.create(model=MODEL, max_tokens=9, messages=ASK, thinking=enabled)
    with pytest.raises(anthropic.BadRequestError, match="cannot turn it off"):
        await client.messages.create(model=MODEL, max_tokens=9, messages=ASK, thinking=disabled)


async def test_the_key_is_a_bearer_token(engine: FakeEngine, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    entry = '[[caller]]\nname = "ann"\ntoken = "secret-of-a-client-1"\nroles = ["client"]\n'
    tokens.write_text(entry)
    tokens.chmod(0o600)
    async with openai_serving(engine, context=2000, auth_tokens=str(tokens)) as served:
        async with anthropic_client(served.url, "secret-of-a-client-1") as client:
            await client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
        async with anthropic_client(served.url, "another") as client:
            with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
                await client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
