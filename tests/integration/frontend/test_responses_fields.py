"""Each field of a request to /v1/responses, as OpenAI's package has them: served, or refused by
name; and whatever stands in it, no 5xx."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from openai.types.responses import response_create_params as params
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_input_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from openai.types.shared_params.reasoning import Reasoning
from support.api_clients.hostile_values import HOSTILE, answer_to
from support.api_clients.parameter_types import fields_of, kinds_of
from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.responses.requests import (
    FunctionTool,
    ResponsesRequest,
)
from dynamo_router.frontend.responses.requests import Reasoning as OurReasoning

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "a", "parameters": {"type": "object"}, "strict": True}
SERVED: dict[str, list[Any]] = {
    "background": [False],
    "background_options": [{}],
    "context_management": [[]],
    "include": [["message.output_text.logprobs", "reasoning.encrypted_content"]],
    "input": ["a", [{"role": "user", "content": "a"}]],
    "instructions": ["a"],
    "max_output_tokens": [1],
    "max_tool_calls": [1],
    "metadata": [{"a": "b"}],
    "model": ["tiny"],
    "parallel_tool_calls": [True, False],
    "prompt_cache_key": ["a"],
    "prompt_cache_options": [{"mode": "implicit", "ttl": "12h"}],
    "prompt_cache_retention": ["24h"],
    "reasoning": [{"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"}],
    "safety_identifier": ["a"],
    "service_tier": ["auto"],
    "store": [True, False],
    "stream": [False],
    "stream_options": [{"include_obfuscation": False}],
    "temperature": [0.5],
    "text": [{"format": {"type": "text"}, "verbosity": "medium"}],
    "tool_choice": ["auto", "none"],
    "tools": [[TOOL]],
    "top_logprobs": [0],
    "top_p": [0.5],
    "truncation": ["disabled"],
    "user": ["a"],
}
"""Values that are served. `null` is, for each but model and input."""
REFUSED: dict[str, list[Any]] = {
    "access_programs": [{"cyber": "standard"}],
    "background": [True],
    "background_options": [{"completion_window": "2h"}],
    "context_management": [[{"type": "compaction"}]],
    "conversation": ["conv_1", {"id": "conv_1"}],
    "image": [{"context_compression": "auto"}],
    "max_output_tokens": [0, -1],
    "metadata": [{"a" * 65: "b"}, {"a": "b" * 513}, {str(n): "b" for n in range(17)}],
    "moderation": [{"model": "omni-moderation-latest"}],
    "previous_response_id": ["resp_1"],
    "prompt": [{"id": "pmpt_1"}],
    "prompt_cache_options": [{"mode": "explicit"}, {"prewarm": True}],
    "stream_options": [{"include_obfuscation": True}],
    "text": [{"verbosity": "low"}, {"format": {"type": "json_schema", "name": "a"}}],
    "tool_choice": ["any", {"type": "web_search"}, {"type": "function", "name": "b"}],
    "top_logprobs": [2],
    "truncation": ["auto"],
}


@pytest.fixture(scope="module")
def config() -> FrontendConfig:
    return FrontendConfig(http_frontend=0, tool_call_parser="hermes")


@pytest.fixture
async def served(config: FrontendConfig) -> AsyncIterator[Served]:
    async with openai_serving(FakeEngine(worker_id=7), frontend=config, context=2000) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "a", "max_output_tokens": 2, **fields}


def test_all_fields_of_the_package_are_here() -> None:
    theirs = fields_of(params.ResponseCreateParamsNonStreaming)
    assert theirs <= SERVED.keys() | REFUSED.keys()
    assert theirs <= set(ResponsesRequest.__struct_encode_fields__)
    assert fields_of(Reasoning) <= set(OurReasoning.__struct_encode_fields__)
    function = {"type", "name", "parameters", "strict", "description", "allowed_callers"}
    function |= {"defer_loading", "output_schema", "async"}
    (tool,) = [each for each in get_args(ToolParam) if "FunctionToolParam" in each.__name__]
    assert fields_of(tool) <= set(FunctionTool.__struct_encode_fields__) == function


async def test_what_is_served(served: Served) -> None:
    for field, values in SERVED.items():
        nothing = [] if field in ("model", "input") else [None]
        for value in [*values, *nothing]:
            more = {"tools": [TOOL]} if field == "tool_choice" else {}
            status, answer = await served.post(PATH, body(**{**more, field: value}))
            assert status == 200, (field, value, answer)
            assert answer["object"] == "response" and answer["store"] is False


async def test_what_is_refused_is_named(served: Served) -> None:
    unknown: dict[str, list[Any]] = {"wrong_field": [1], "max_tokens": [1]}
    for field, values in (REFUSED | unknown).items():
        for value in values:
            more = {"tools": [TOOL]} if field == "tool_choice" else {}
            status, answer = await served.post(PATH, body(**{**more, field: value}))
            assert status == 400, (field, value, answer)
            error = answer["error"]
            assert error["param"].startswith(field) and field in error["message"], (value, error)


async def test_tools_items_and_includes_of_other_kinds_are_refused(served: Served) -> None:
    tools = kinds_of(ToolParam) - {"function"}
    assert {"web_search", "file_search", "mcp", "custom", "shell"} <= tools
    for kind in tools:
        status, answer = await served.post(PATH, body(tools=[TOOL, {"type": kind}]))
        assert status == 400 and answer["error"]["param"] == "tools[1].type", answer
        assert kind in answer["error"]["message"]
    ours = {"message", "function_call", "function_call_output", "reasoning"}
    items = kinds_of(ResponseInputItemParam)
    assert ours < items and len(items) > 20
    for kind in items - ours:
        status, answer = await served.post(PATH, body(input=[{"type": kind}]))
        assert status == 400 and answer["error"]["param"] == "input[0].type", answer
        assert kind in answer["error"]["message"]
    for name in get_args(ResponseIncludable):
        status, answer = await served.post(PATH, body(include=[name]))
        if status == 400:
            assert name in answer["error"]["message"] and answer["error"]["param"] == "include"
        else:
            assert status == 200 and ("logprobs" in name or "encrypted" in name)
    for part in ("input_image", "input_file", "input_audio", "nonsense"):
        content = [{"type": "input_text", "text": "a"}, {"type": part}]
        status, answer = await served.post(PATH, body(input=[{"role": "user", "content": content}]))
        assert status == 400 and answer["error"]["param"] == "input[0].content[1].type", answer


CALL = {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "b"}
ITEMS: list[tuple[Any, str]] = [
    ([OUTPUT], "input[0].call_id"),
    ([OUTPUT, CALL], "input[0].call_id"),
    ([{**CALL, "arguments": "{no"}], "input[0].arguments"),
    ([{**CALL, "arguments": "[]"}], "input[0].arguments"),
    ([{**CALL, "namespace": "a"}], "input[0].namespace"),
    ([{**CALL, "async": True}], "input[0].async"),
    ([{**CALL, "caller": {"type": "program", "caller_id": "p"}}], "input[0].caller.type"),
    ([CALL, {**OUTPUT, "output": [{"type": "input_image"}]}], "input[1].output[0].type"),
    ([{"role": "tool", "content": "a"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ([{}], "input[0].type"),
    ([5], "input[0]"),
    ([], "input"),
    (5, "input"),
    ({"role": "user", "content": "a"}, "input"),
]


async def test_items_that_make_no_sense(served: Served) -> None:
    for given, param in ITEMS:
        status, answer = await served.post(PATH, body(input=given))
        assert status == 400 and answer["error"]["param"] == param, (given, answer)
        if not isinstance(given, list):
            assert answer["error"]["message"] == "input must be a text or a list of items"


@pytest.mark.parametrize("field", [*sorted(ResponsesRequest.__struct_encode_fields__)])
async def test_whatever_stands_in_a_field(served: Served, field: str) -> None:
    """Answered or refused, and the frontend goes on."""
    plain = {"model": b'"tiny"', "input": b'"a"', "max_output_tokens": b"2"}
    for value in HOSTILE:
        status, answer = await answer_to(served, PATH, {**plain, field: value})
        assert status in (200, 400, 404), (value[:60], answer)
        if status != 200:
            assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}
    assert (await served.post(PATH, body()))[0] == 200
