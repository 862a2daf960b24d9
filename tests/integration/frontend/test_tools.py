"""Reasoning and calls of tools as OpenAI's own client sees them, streamed and not."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.api_clients.said import say
from support.fake_engine import FakeEngine
from support.frontend.tool_serving import CALLED, SAID, SCHEMA, tool_serving
from support.servers.openai_serving import BLOCK, Served, openai_serving

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.workers.trtllm_proto import pb

MODEL = "tiny"
ASK: Any = [{"role": "user", "content": "Hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(worker_id=7)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with tool_serving(engine) as made:
        yield made


async def test_a_whole_answer(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, SAID)
    found = await served.client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Look."
    assert choice.message.model_dump()["reasoning_content"] == "hm"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    assert call.function.arguments == '{"city": "Ulm"}' and call.id.startswith("call_")


async def test_a_stream_says_the_same(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, SAID + CALLED)
    stream = await served.client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice="auto", stream=True
    )
    deltas, reasons = [], []
    async for each in stream:
        deltas.append(each.choices[0].delta.model_dump())
        reasons.append(each.choices[0].finish_reason)
    assert "".join(each["content"] or "" for each in deltas) == "Look."
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == "hm"
    calls = [call for each in deltas for call in each["tool_calls"] or ()]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}


async def test_what_was_called_goes_back_to_the_model(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, "It is warm.")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: Any = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    ]
    create = served.client.chat.completions.create
    found = await create(model=MODEL, messages=messages, tools=TOOLS)
    assert found.choices[0].message.content == "It is warm."
    assert found.choices[0].finish_reason == "stop"
    call["function"]["arguments"] = "{no"  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="arguments are no JSON"):
        await create(model=MODEL, messages=messages, tools=TOOLS)


async def test_a_tool_that_must_be_called_holds_the_engine_to_its_schema(
    served: Served, engine: FakeEngine
) -> None:
    await say(served, engine, '{"city": "Ulm"}')
    named: Any = {"type": "function", "function": {"name": "weather"}}
    found = await served.client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice=named
    )
    (call,) = found.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.arguments == '{"city": "Ulm"}'
    guided = engine.requests[-1].guided_decoding
    assert guided.guide_type == pb.GuidedDecodingParams.GUIDE_TYPE_JSON_SCHEMA
    assert '"city"' in guided.guide
    await served.client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice="required"
    )
    assert '"const":"weather"' in engine.requests[-1].guided_decoding.guide


async def test_response_formats(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, "{}")
    create = served.client.chat.completions.create
    await create(model=MODEL, messages=ASK, response_format={"type": "json_object"})
    assert engine.requests[-1].guided_decoding.guide == '{"type":"object"}'
    form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    await create(model=MODEL, messages=ASK, response_format=form)
    assert '"city"' in engine.requests[-1].guided_decoding.guide
    await create(model=MODEL, messages=ASK, response_format={"type": "text"})
    assert not engine.requests[-1].HasField("guided_decoding")


async def test_answers_of_gpt_oss(engine: FakeEngine) -> None:
    said = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.weather <|constrain|>json<|message|>{"city": "Ulm"}<|call|>'
    )
    config = FrontendConfig(http_frontend=0, reasoning_parser="gpt_oss", tool_call_parser="harmony")
    async with openai_serving(engine, frontend=config) as served:
        await say(served, engine, said)
        found = await served.client.chat.completions.create(
            model=MODEL, messages=ASK, tools=TOOLS, tool_choice="auto"
        )
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.model_dump()["reasoning_content"] == "hm"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.function.arguments == '{"city": "Ulm"}'


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS * 1537}, "tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "text"}},
            "response_format",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
async def test_what_is_refused(served: Served, fields: Any, param: str) -> None:
    body = {"model": MODEL, "messages": ASK, **fields}
    status, told = await served.post("/v1/chat/completions", body)
    assert status == 400 and told["error"]["param"] == param, told


async def test_without_a_parser_tools_are_refused_and_text_stays(engine: FakeEngine) -> None:
    async with openai_serving(engine) as served:
        await say(served, engine, SAID)
        create = served.client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="nor recognised") as refused:
            await create(model=MODEL, messages=ASK, tools=TOOLS)
        assert refused.value.param == "tools"
        found = await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="none")
        assert found.choices[0].message.content == SAID
        with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
            await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="auto")


async def test_a_parser_is_recognised_in_the_chat_template(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """As a model's own folder has it; the bundled template has no tools."""
    folder = tmp_path / "model"
    shutil.copytree(OWN_MODEL, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if false %}<tool_call>{% endif %}")
    config = FrontendConfig(http_frontend=0, model_path=str(folder))
    async with openai_serving(engine, frontend=config) as served:
        await say(served, engine, CALLED + CALLED)
        create = served.client.chat.completions.create
        for single in (False, True):
            found = await create(
                model=MODEL, messages=ASK, tools=TOOLS, parallel_tool_calls=not single
            )
            assert len(found.choices[0].message.tool_calls or ()) == (1 if single else 2)
            assert found.choices[0].finish_reason == "tool_calls"


async def test_guides_of_every_kind_reach_the_engine(served: Served, engine: FakeEngine) -> None:
    await say(served, engine, "yes")
    guides = pb.GuidedDecodingParams
    for fields, kind, guide in (
        ({"guided_choice": ["yes", "no"]}, guides.GUIDE_TYPE_EBNF_GRAMMAR, '"yes" | "no"'),
        ({"guided_regex": "[a-z]+"}, guides.GUIDE_TYPE_REGEX, "[a-z]+"),
        ({"structured_outputs": {"json": SCHEMA}}, guides.GUIDE_TYPE_JSON_SCHEMA, '"city"'),
    ):
        for route, more in (
            ("/v1/chat/completions", {"messages": ASK}),
            ("/v1/completions", {"prompt": "a"}),
        ):
            status, _ = await served.post(route, {"model": MODEL, **more, **fields})
            assert status == 200
            asked = engine.requests[-1].guided_decoding
            assert asked.guide_type == kind and guide in asked.guide


async def test_an_engine_that_cannot_hold_its_answer_names_the_field() -> None:
    config = MockerConfig(port=0, engine=EngineConfig(block_size=BLOCK))
    async with (
        MockFleet(config) as fleet,
        openai_serving(workers=[f"grpc://{fleet.addresses[0]}"]) as served,
    ):
        for fields, param in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"guided_choice": ["a"]}, "guided_choice"),
            ({"structured_outputs": {"regex": "a"}, "stream": True}, "structured_outputs.regex"),
            ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ):
            body = {"model": "mock-model", "messages": ASK, "max_tokens": 4, **fields}
            status, told = await served.post("/v1/chat/completions", body)
            assert status == 400 and told["error"]["param"] == param, told


@pytest.mark.parametrize("key", ["tool_call_parser", "reasoning_parser"])
def test_a_parser_that_nobody_knows(key: str) -> None:
    with pytest.raises(ConfigError, match="'nonsense' is none of"):
        FrontendConfig(**{key: "nonsense"})  # type: ignore[arg-type]


def test_parsers_of_forms_that_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="one form"):
        FrontendConfig(reasoning_parser="gpt_oss", tool_call_parser="hermes")
    with pytest.raises(ConfigError, match="one form"):
        FrontendConfig(reasoning_parser="qwen3", tool_call_parser="harmony")
