"""Fields of OpenAI's requests with what no client should send: a mistake of theirs, never ours."""

import json
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.parsers import TOOL_CALL_PARSERS
from dynamo_router.frontend.parsers.call_formats import TOOL_CALL_FORMATS

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SAMPLING = (
    "model", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "min_p",
    "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "n", "stop",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "stream", "stream_options",
    "stream_options.include_usage", "stream_options.continuous_usage_stats", "logit_bias",
    "logit_bias.5",
    "response_format", "response_format.type", "response_format.json_schema",
    "response_format.json_schema.schema", "response_format.json_schema.name", "best_of",
    "cache_salt", "user", "metadata", "nvext", "nvext.backend_instance_id",
    "nvext.decode_worker_id", "nvext.dp_rank", "nvext.token_data", "nvext.greed_sampling",
    "nvext.cache_salt", "nvext.agent_hints", "nvext.agent_hints.priority",
    "nvext.agent_hints.strict_priority", "nvext.agent_hints.osl", "nvext.extra_fields",
    "nvext.request_timestamp_ms", "nvext.session_control", "nvext.session_control.session_id",
    "nvext.session_control.action", "nvext.session_control.timeout", "nvext.router",
    "nvext.annotations",
)  # fmt: skip
FIELDS = {
    CHAT: (
        *SAMPLING, "messages", "messages.0", "messages.0.role", "messages.0.content",
        "messages.0.content.0", "messages.0.content.0.text", "messages.0.tool_calls",
        "messages.0.tool_calls.0", "messages.0.tool_calls.0.function",
        "messages.0.tool_calls.0.function.arguments", "messages.0.name", "messages.0.tool_call_id",
        "logprobs", "top_logprobs", "tools", "tools.0", "tools.0.type", "tools.0.function",
        "tools.0.function.name", "tools.0.function.parameters",
        "tools.0.function.parameters.properties", "tools.0.function.parameters.properties.k",
        "tools.0.function.parameters.properties.k.type", "tools.0.function.description",
        "tool_choice", "tool_choice.function", "tool_choice.function.name",
        "chat_template_kwargs", "chat_template_args", "add_generation_prompt",
    ),
    COMPLETIONS: (*SAMPLING, "prompt", "prompt.0", "prompt.0.0", "logprobs", "echo", "suffix"),
    EMBEDDINGS: ("model", "input", "input.0", "input.0.0", "encoding_format", "dimensions", "user"),
    "/tokenize": (
        "model", "prompt", "messages", "messages.0", "messages.0.role", "messages.0.content",
        "messages.0.content.0", "messages.0.content.0.text", "messages.0.tool_calls",
        "messages.0.tool_calls.0", "add_special_tokens",
    ),
    "/detokenize": ("model", "tokens", "tokens.0"),
    "/v1/rerank": ("model", "query", "documents", "documents.0", "top_n"),
    "/score": ("model", "text_1", "text_2", "text_2.0"),
}  # fmt: skip
VALUES = [
    b"null", b"true", b"false", b"-1", b"0", b"1", b"1.5", b"-0.0", b"NaN", b"-Infinity", b"1e999",
    b"2147483648", b"4294967296", b"9223372036854775808", b"18446744073709551616",
    b"-9223372036854775809", b"1" + b"0" * 400, b"1" + b"0" * 5000, b'""', b'"a"', b'"\\u0000"',
    b'"\\ud800"', b'"\xff"', b'"' + b"x" * (1 << 20) + b'"', b"[]", b"{}", b"[null]", b"[[]]",
    b'["a", 1]', b'{"self": 1}', b'{"": null}', b"[" * 1000 + b"]" * 1000,
    b'{"a":' * 1000 + b"1" + b"}" * 1000, b"[" * 100_000,
]  # fmt: skip
HOLE = "\x00hole"


def body_with(path: str, field: str, value: bytes) -> bytes:
    """A request that is right but for one field, which may be one within others."""
    made: Any = {"model": "tiny", "max_tokens": 1}
    if path == CHAT or (path == "/tokenize" and field.startswith("messages")):
        made["messages"] = [{"role": "user", "content": "a"}]
    if path in (COMPLETIONS, "/tokenize") and "messages" not in made:
        made["prompt"] = "a"
    if path == COMPLETIONS and field in ("logprobs", "max_tokens", "n", "prompt"):
        made |= {"echo": True, "logprobs": 1}
    if path == EMBEDDINGS:
        made["input"] = "a"
    if path == "/detokenize":
        made["tokens"] = [1]
    if field.startswith(("tools", "tool_choice")):
        made["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    *outer, last = field.split(".")
    at = made
    for name, after in zip(outer, (*outer, last)[1:], strict=True):
        key: Any = int(name) if name.isdecimal() else name
        if isinstance(at, list):
            at += [None] * (key + 1 - len(at))
        known = at[key] if isinstance(at, list) else at.get(key)
        if not isinstance(known, list if after.isdecimal() else dict):
            at[key] = [] if after.isdecimal() else {}
        at = at[key]
    if isinstance(at, list):
        at[:] = [HOLE]
    else:
        at[last] = HOLE
    return json.dumps(made).encode().replace(json.dumps(HOLE).encode(), value)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    config = FrontendConfig(http_frontend=0, tool_call_parser="qwen3_coder")
    async with openai_serving(FakeEngine(worker_id=7), frontend=config) as made:
        yield made


@pytest.mark.parametrize("path", FIELDS)
async def test_no_field_of_a_request_is_our_failure(path: str, served: Served) -> None:
    for field in FIELDS[path]:
        for value in VALUES:
            if len(value) > 500_000 and "." in field:
                continue  # once for each field of the outermost level
            sent = body_with(path, field, value)
            async with served.session.post(served.url + path, data=BytesIO(sent)) as answer:
                text = await answer.text()
            assert answer.status < 500 or answer.status == 501, (field, value[:50], text[:500])
            if answer.status != 200:
                assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
                assert len(text) < 4000, (field, value[:50], text[:500])
    assert (await served.post(COMPLETIONS, {"model": "tiny", "prompt": "a"}))[0] == 200


RESERVED = (
    "self", "messages", "tools", "documents", "add_generation_prompt", "context", "environment",
    "loop", "super", "caller", "varargs", "kwargs", "True", "None", "range", "raise_exception",
    "strftime_now", "bos_token", "eos_token", "__class__", "_", "", "a b", "variables", "template",
)  # fmt: skip


@pytest.mark.parametrize("field", ["chat_template_kwargs", "chat_template_args"])
async def test_a_templates_variable_may_have_any_name(field: str, served: Served) -> None:
    for name in RESERVED:
        for value in (None, 1, "x", [], {}):
            asked = {"model": "tiny", "max_tokens": 1, field: {name: value}}
            asked["messages"] = [{"role": "user", "content": "a"}]
            status, told = await served.post(CHAT, asked)
            assert status == 400 or (name != "messages" and status == 200), (name, value, told)
            assert status != 400 or told["error"]["param"], (name, value, told)


SCHEMAS: list[Any] = [
    {}, {"properties": []}, {"properties": "x"}, {"properties": {"k": "x"}},
    {"properties": {"k": ["string"]}}, {"properties": {"k": None}}, {"properties": {"k": True}},
    {"properties": {"k": {"type": ["string", "null"]}}}, {"properties": {"k": {"type": {}}}},
    {"properties": 1}, {"properties": None}, {"type": []}, {"$ref": 5}, None,
]  # fmt: skip
WRITTEN = {
    "qwen3_coder": "<tool_call><function=f><parameter=k>1</parameter></function></tool_call>",
    "glm45": "<tool_call>f\n<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>",
    "glm47": "<tool_call>f\n<arg_key>k</arg_key><arg_value>1e999</arg_value></tool_call>",
    "pythonic": "[f(k=1)]",
    "llama3_json": '{"name": "f", "parameters": {"k": 1}}',
}


@pytest.mark.parametrize("name", TOOL_CALL_FORMATS)
@pytest.mark.parametrize("written", [None, "", "[", "{", "1", "null", '{"name": "f"}', "\ud800"])
def test_no_schema_of_a_tool_breaks_a_parser(name: str, written: str | None) -> None:
    """After the engine has worked for it."""
    from dynamo_router.frontend.parsers.tool_calls import ToolCallParser

    form = TOOL_CALL_FORMATS[name]
    text = WRITTEN.get(name, '{"name": "f", "arguments": {"k": 1}}')
    if written is not None:
        text = form.start + written + form.end
    for schema in SCHEMAS:
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        parser = ToolCallParser(form, tools)
        for piece in (text[:5], text[5:]):
            parser.feed(piece)
        parser.flush()


BOUNDS = [
    (CHAT, "messages", [{"role": "user", "content": "a"}] * 4097),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": ""}] * 4097}]),
    (CHAT, "messages", [{"role": "assistant", "tool_calls": [{"function": {}}] * 1025}]),
    (CHAT, "chat_template_kwargs", {str(n): n for n in range(257)}),
    (CHAT, "chat_template_args", {str(n): n for n in range(257)}),
    (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}] * 1537),
    (CHAT, "stop", ["a"] * 33),
    (COMPLETIONS, "stop_token_ids", [1] * 4097),
    (COMPLETIONS, "logit_bias", {str(n): 1 for n in range(4097)}),
    (COMPLETIONS, "prompt", ["a"] * 129),
    (COMPLETIONS, "metadata", {str(n): [] for n in range(40_000)}),
    (COMPLETIONS, "metadata", [0] * 300_000),
    (EMBEDDINGS, "input", [[1]] * 129),
    ("/tokenize", "messages", [{"role": "user", "content": "a"}] * 4097),
    ("/detokenize", "tokens", [1] * 140_000),
]


@pytest.mark.parametrize("path, field, value", BOUNDS)
async def test_what_there_may_be_of_a_thing_is_bounded(
    path: str, field: str, value: Any, served: Served
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    if path == CHAT:
        asked["messages"] = [{"role": "user", "content": "a"}]
    if path == COMPLETIONS:
        asked["prompt"] = "a"
    status, told = await served.post(path, {**asked, field: value})
    message = told["error"]["message"]
    assert status == 400 and ("more than" in message or "entries" in message), told
    named = str(told["error"]["param"] or "the body")
    assert named.startswith(field) or "the body" in message, told


def test_every_parser_is_tried() -> None:
    assert set(TOOL_CALL_PARSERS) == {*TOOL_CALL_FORMATS, "harmony"}
