"""Each field of a request to /v1/messages, as Anthropic's package has them: served, or refused by
name; and whatever stands in it, no 5xx."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from anthropic.types import message_count_tokens_params as count_params
from anthropic.types import message_create_params as params
from anthropic.types.content_block_param import ContentBlockParam
from anthropic.types.tool_param import ToolParam
from anthropic.types.tool_union_param import ToolUnionParam
from support.api_clients.hostile_values import HOSTILE, answer_to
from support.api_clients.parameter_types import fields_of, kinds_of
from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.anthropic.requests import CountRequest, MessagesRequest, Tool
from dynamo_router.frontend.config import FrontendConfig

PATH = "/v1/messages"
ASK = [{"role": "user", "content": "a"}]
CACHED = {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "a", "input_schema": {"type": "object"}, "cache_control": CACHED}
SERVED: dict[str, list[Any]] = {
    "cache_control": [CACHED, None],
    "container": [None],
    "context_management": [None],
    "mcp_servers": [None, []],
    "max_tokens": [1],
    "messages": [ASK],
    "metadata": [{"user_id": "a"}],
    "model": ["tiny"],
    "output_config": [{"effort": "low"}],
    "service_tier": ["auto", "standard_only"],
    "speed": ["standard", None],
    "stop_sequences": [["x"], []],
    "stream": [False],
    "system": ["a", [{"type": "text", "text": "a", "cache_control": CACHED}]],
    "temperature": [0.5],
    "thinking": [{"type": "disabled"}, {"type": "adaptive"}],
    "tool_choice": [{"type": "auto"}, {"type": "none"}],
    "tools": [[TOOL]],
    "top_k": [5],
    "top_p": [0.5],
    "user_profile_id": ["a"],
    "workspace_id": ["a"],
}
REFUSED: dict[str, list[Any]] = {
    "container": ["c", {"id": "c"}],
    "context_management": [{"edits": []}],
    "diagnostics": [{"previous_message_id": None}],
    "inference_geo": ["eu"],
    "max_tokens": [0, -1],
    "mcp_servers": [[{"type": "url", "url": "https://a", "name": "a"}]],
    "output_config": [{"format": {"type": "xml"}}],
    "speed": ["fast"],
    "thinking": [{"type": "enabled", "budget_tokens": 1}, {"type": "between_tools"}],
    "tool_choice": [{"type": "tool"}, {"type": "tool", "name": "b"}, {"type": "b"}],
}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    config = FrontendConfig(http_frontend=0, tool_call_parser="hermes")
    async with openai_serving(FakeEngine(worker_id=7), frontend=config, context=2000) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 2, "messages": ASK, **fields}


def test_all_fields_of_the_package_are_here() -> None:
    theirs = fields_of(params.MessageCreateParamsNonStreaming)
    assert theirs <= SERVED.keys() | REFUSED.keys()
    assert theirs <= set(MessagesRequest.__struct_encode_fields__)
    counted = fields_of(count_params.MessageCountTokensParams)
    assert counted <= set(CountRequest.__struct_encode_fields__)
    assert fields_of(ToolParam) <= set(Tool.__struct_encode_fields__)


async def test_what_is_served_and_what_is_refused(served: Served) -> None:
    for field, values in SERVED.items():
        for value in values:
            more = {"tools": [TOOL]} if field == "tool_choice" else {}
            status, answer = await served.post(PATH, body(**{**more, field: value}))
            assert status == 200 and answer["type"] == "message", (field, value, answer)
    for field, values in REFUSED.items():
        for value in values:
            more = {"tools": [TOOL]} if field == "tool_choice" else {}
            status, answer = await served.post(PATH, body(**{**more, field: value}))
            assert status == 400 and answer["type"] == "error", (field, value, answer)
            assert answer["error"]["type"] == "invalid_request_error"
            assert field in answer["error"]["message"], (value, answer)


async def test_tools_and_blocks_of_other_kinds_are_refused(served: Served) -> None:
    for kind in kinds_of(ToolUnionParam) - {"custom"}:
        status, answer = await served.post(PATH, body(tools=[{"type": kind, "name": "a"}]))
        assert status == 400 and f"tools[0].type '{kind}'" in answer["error"]["message"], answer
    ours = {"text", "tool_use", "tool_result", "thinking"}
    kinds = kinds_of(ContentBlockParam)
    assert ours < kinds and {"image", "document"} < kinds
    for role in ("user", "assistant"):
        for kind in kinds - ours:
            given = [{"role": role, "content": [{"type": kind}]}, *ASK]
            status, answer = await served.post(PATH, body(messages=given))
            text = f"messages[0].content[0].type '{kind}'"
            assert status == 400 and text in answer["error"]["message"], answer
    for block, name in (
        ({"type": "tool_result", "tool_use_id": "c", "content": "a"}, "tool_use_id"),
        ({"type": "tool_use", "id": "c", "name": "a", "input": {}}, "type"),
        ({"type": "text"}, "text"),
    ):
        given = [{"role": "user", "content": [block]}]
        status, answer = await served.post(PATH, body(messages=given))
        assert status == 400 and name in answer["error"]["message"], answer
    assert len(get_args(ContentBlockParam)) > 10


@pytest.mark.parametrize("field", [*sorted(MessagesRequest.__struct_encode_fields__)])
async def test_whatever_stands_in_a_field(served: Served, field: str) -> None:
    """Answered or refused, and the frontend goes on."""
    ask = json.dumps(ASK).encode()
    plain = {"model": b'"tiny"', "messages": ask, "max_tokens": b"2"}
    for value in HOSTILE:
        status, answer = await answer_to(served, PATH, {**plain, field: value})
        assert status in (200, 400, 404), (value[:60], answer)
        if status != 200:
            assert json.loads(answer)["type"] == "error"
    assert (await served.post(PATH, body()))[0] == 200
