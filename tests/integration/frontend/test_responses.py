"""OpenAI's Responses as OpenAI's own client sees them, streamed and not."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.api_clients.said import last_prompt, say
from support.fake_engine import FakeEngine, chunk, complete, fail
from support.frontend.tool_serving import CALLED, SCHEMA, tool_serving
from support.servers.openai_serving import Served

from dynamo_router.workers.trtllm_proto import pb

MODEL = "tiny"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "parameters": SCHEMA,
    "strict": False,
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(worker_id=7)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with tool_serving(engine, context=2000) as made:
        yield made


async def events_of(served: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream, each checked by the client's types."""
    url = f"{served.url}/v1/responses"
    async with served.session.post(url, json={"model": MODEL, "stream": True, **body}) as answer:
        assert answer.status == 200, await answer.text()
        written = (await answer.text()).removesuffix("\n\n").split("\n\n")
    found = []
    for number, each in enumerate(written):
        name, data = each.split("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENT.validate_python(event, strict=False)
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        found.append(event)
    return found


async def test_a_whole_response(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, f"<think>hm</think>Look.{CALLED}")
    found = await served.client.responses.create(
        model=MODEL, input="Hello", instructions="Be brief.", tools=[TOOL], metadata={"a": "b"}
    )
    Response.model_validate(found.model_dump(), strict=False)
    assert found.status == "completed" and found.output_text == "Look."
    thought, message, call = found.output
    assert thought.type == "reasoning" and thought.content is not None
    assert thought.content[0].text == "hm" and thought.summary == []
    assert message.type == "message" and message.status == "completed"
    assert call.type == "function_call" and call.name == "weather"
    assert call.arguments == '{"city": "Ulm"}' and call.call_id.startswith("call_")
    assert len({each.id for each in found.output}) == 3
    assert found.metadata == {"a": "b"} and found.model_dump()["store"] is False
    assert found.usage is not None and found.usage.input_tokens_details.cached_tokens == 0
    assert 0 < found.usage.output_tokens_details.reasoning_tokens < found.usage.output_tokens


async def test_a_stream_ends_with_the_same_response(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, f"<think>hm</think>Look.{CALLED}")
    body = {"input": "Hello", "tools": [TOOL]}
    whole = (await served.post("/v1/responses", {"model": MODEL, **body}))[1]
    events = await events_of(served, body)
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    order = list(dict.fromkeys(kinds))
    assert order.index("reasoning_text.delta") < order.index("output_text.delta")
    assert order[-3:] == [
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    last = events[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    for kind, name in (("reasoning", "reasoning_text"), ("message", "output_text")):
        (item,) = [each for each in last["output"] if each["type"] == kind]
        said = [e["delta"] for e in events if e["type"] == f"response.{name}.delta"]
        assert "".join(said) == item["content"][0]["text"]
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == last["output"]


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    fields = dict.fromkeys(("id", "created_at", "completed_at"))
    items = [{**each, "id": None, "call_id": None} for each in response["output"]]
    return {**response, **fields, "output": items}


async def test_the_clients_helper_reads_a_stream(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, f"<think>hm</think>Look.{CALLED}")
    ask: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    async with served.client.responses.stream(model=MODEL, input=ask, tools=[TOOL]) as stream:
        async for _ in stream:
            pass
        found = await stream.get_final_response()
    assert found.output_text == "Look." and found.output[-1].type == "function_call"


async def test_output_goes_back_as_input(served: Served, engine: FakeEngine) -> None:
    """Reasoning, text and calls are one turn of the assistant's, however they come back."""
    await say(served, engine, f"<think>hm</think>Look.{CALLED}")
    create = served.client.responses.create
    first = await create(
        model=MODEL, input="Hello", tools=[TOOL], include=["reasoning.encrypted_content"]
    )
    prompt = await last_prompt(served, engine)
    items: list[Any] = [each.model_dump(exclude_none=True) for each in first.output]
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "warm"}
    ask = {"role": "user", "content": "Hello"}
    await create(model=MODEL, input=[ask, *items, result], tools=[TOOL])
    again = await last_prompt(served, engine)
    assert again.startswith(prompt[: prompt.rindex("Hello") + 5])
    assert again.endswith("Look.\ntool\nwarm\nassistant\n"), again
    del items[0]["content"]
    await create(model=MODEL, input=[ask, *items, result], tools=[TOOL])
    assert await last_prompt(served, engine) == again
    items[0]["encrypted_content"] = "gAAAA"
    with pytest.raises(openai.BadRequestError, match=r"input\[1\].encrypted_content"):
        await create(model=MODEL, input=[ask, *items, result], tools=[TOOL])


async def test_a_tool_that_must_be_called_and_formats_hold_the_engine(
    served: Served, engine: FakeEngine
) -> None:
    await say(served, engine, '{"city": "Ulm"}')
    create = served.client.responses.create
    named: Any = {"type": "function", "name": "weather"}
    plain: Any = {"format": {"type": "text"}}
    found = await create(model=MODEL, input="a", tools=[TOOL], tool_choice=named, text=plain)
    (call,) = found.output
    assert call.type == "function_call" and call.arguments == '{"city": "Ulm"}'
    guided = engine.requests[-1].guided_decoding
    assert guided.guide_type == pb.GuidedDecodingParams.GUIDE_TYPE_JSON_SCHEMA
    other = {**TOOL, "name": "time"}
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    await create(model=MODEL, input="a", tools=[TOOL, other], tool_choice=allowed)
    guide = engine.requests[-1].guided_decoding.guide
    assert '"const":"weather"' in guide and '"const":"time"' not in guide
    form: Any = {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}
    found = await create(model=MODEL, input="a", text={"format": form})
    assert '"city"' in engine.requests[-1].guided_decoding.guide
    assert found.text is not None and found.text.format is not None
    assert found.text.format.model_dump(by_alias=True, exclude_none=True) == form
    await create(model=MODEL, input="a", text={"format": {"type": "json_object"}})
    assert engine.requests[-1].guided_decoding.guide == '{"type":"object"}'


async def test_an_answer_that_is_cut(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, "<think>hm</think>Look", reason="length")
    found = await served.client.responses.create(model=MODEL, input="a", max_output_tokens=1)
    assert engine.requests[-1].max_tokens == 1
    assert found.status == "incomplete" and found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert [each.status for each in found.output if each.type == "message"] == ["incomplete"]
    events = await events_of(served, {"input": "a"})
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_errors_before_and_after_the_first_token(served: Served, engine: FakeEngine) -> None:
    async def breaks(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 64)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no more")

    engine.script = breaks
    events = await events_of(served, {"input": "a"})
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed" and "no more" in response["error"]["message"]
    assert response["output"][0]["status"] == "incomplete"
    engine.script = fail(grpc.StatusCode.INVALID_ARGUMENT, "not at all")
    status, body = await served.post(
        "/v1/responses", {"model": MODEL, "input": "a", "stream": True}
    )
    assert status == 400 and "not at all" in body["error"]["message"]
    status, body = await served.post("/v1/responses", {"model": MODEL, "input": "word " * 3000})
    assert status == 400 and body["error"]["param"] == "input"
    assert body["error"]["code"] == "context_length_exceeded"


async def test_logprobs(served: Served, engine: FakeEngine) -> None:
    async def script(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        last = complete(request, 64)
        last.complete.finish_reason = "stop"
        each = last.complete.logprobs.add(token_id=64, logprob=-0.5)
        each.top_logprobs.add(token_id=65, logprob=-1.5)
        yield last

    engine.script = script
    include: Any = ["message.output_text.logprobs"]
    found = await served.client.responses.create(
        model=MODEL, input="a", include=include, top_logprobs=1
    )
    assert engine.requests[-1].output_config.logprobs == 1
    (message,) = found.output
    assert message.type == "message" and message.content[0].type == "output_text"
    (shown,) = message.content[0].logprobs or ()
    assert shown.logprob == -0.5 and shown.top_logprobs[0].logprob == -1.5
    (delta,) = [
        each
        for each in await events_of(served, {"input": "a", "include": include, "top_logprobs": 1})
        if each["type"] == "response.output_text.delta"
    ]
    assert delta["logprobs"][0]["logprob"] == -0.5


async def test_what_it_shows_of_its_way(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, "Look")
    headers = {"x-dynamo-explain": "1"}
    body = {"model": MODEL, "input": "a"}
    _, whole = await served.post("/v1/responses", body, headers=headers)
    assert whole["nvext"]["worker_id"]["decode_worker_id"] == 7
    events = await events_of(served, {"input": "a", "nvext": {"extra_fields": ["worker_id"]}})
    assert events[-1]["response"]["nvext"]["worker_id"]["decode_worker_id"] == 7
