"""Requests in OpenAI's form: what is taken, what is refused, and which field is blamed."""

import json
from typing import Any

import msgspec
import pytest

from dynamo_router.frontend.embeddings import EmbeddingRequest
from dynamo_router.frontend.epp.requests import ChatBody, read_chat
from dynamo_router.frontend.openai import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    read_request,
)
from dynamo_router.frontend.openai.guides import MOST_GUIDE_CHARS
from dynamo_router.frontend.openai.requests import LONG_BODY

HI = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": HI, **fields}
    found: ChatRequest = read_request(json.dumps(body).encode(), ChatRequest)
    return found


def completion(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "prompt": "a", **fields}
    found: CompletionRequest = read_request(json.dumps(body).encode(), CompletionRequest)
    return found


def test_a_large_chat_is_read_in_pieces_and_is_the_same() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(3)]
    small, large = (chat(tools=tools, user=user, n=2) for user in ("", "x" * LONG_BODY))
    assert type(large) is not type(small)
    names = ChatRequest.__struct_fields__
    assert [getattr(large, each) for each in names] == [getattr(small, each) for each in names]
    for wrong, field in (
        ({"tools": [tools[0], 5]}, "tools[1]"),
        ({"messages": ["x"]}, "messages[0]"),
    ):
        with pytest.raises(ApiError) as found:
            chat(**{"user": "x" * LONG_BODY, **wrong})
        assert (found.value.status, found.value.param) == (400, field)


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    body = {"model": "m", "messages": HI}
    del body[field]
    with pytest.raises(ApiError, match=f"missing required field `{field}`") as found:
        read_request(json.dumps(body).encode(), ChatRequest)
    assert found.value.param == field


def test_defaults_and_unknown_fields() -> None:
    request = chat(user="u", store=True, metadata={"a": "b"})
    assert not request.wants_stream and request.choices == 1 and request.output_limit is None
    assert chat(max_tokens=3, max_completion_tokens=5).output_limit == 5
    assert chat(stop="a").stop_strings == ["a"]
    both = completion(stop=["a", "", 7], stop_token_ids=[9])
    assert both.stop_strings == ["a"] and both.stop_ids == [9, 7]
    assert chat(logprobs=True).logprobs_wanted == 0 and chat().logprobs_wanted is None
    assert completion(logprobs=3).logprobs_wanted == 3


def test_null_asks_for_nothing_in_any_field() -> None:
    """Clients write all fields of their own form, those that nobody set as null."""
    nothing = chat(max_tokens=4), completion(max_tokens=4)
    for made, bare in zip((chat, completion), nothing, strict=True):
        given = {"model", "messages", "prompt", "max_tokens"}
        fields = dict.fromkeys(set(bare.__struct_encode_fields__) - given)
        assert made(**fields, max_tokens=4) == bare
        options = {"include_usage": None, "continuous_usage_stats": None}
        assert not made(stream=True, stream_options=options).stream_options.include_usage


def test_null_asks_for_nothing_where_envoy_asks() -> None:
    fields = dict.fromkeys(set(ChatBody.__struct_fields__) - {"model", "messages"})
    body = {"model": "m", "messages": HI}
    asked = read_chat(json.dumps({**fields, **body}).encode())
    assert asked == read_chat(json.dumps(body).encode())


def test_null_asks_for_nothing_of_an_embedding() -> None:
    fields = dict.fromkeys(set(EmbeddingRequest.__struct_encode_fields__) - {"model", "input"})
    body = json.dumps({**fields, "model": "m", "input": "a"})
    assert msgspec.json.decode(body, type=EmbeddingRequest).encoding_format is None


@pytest.mark.parametrize("field", ["guided_json", "guided_regex", "guided_grammar"])
def test_a_guide_has_a_length(field: str) -> None:
    def text(chars: int) -> str:
        return '{"a":"' + "x" * (chars - 8) + '"}'

    found = chat(**{field: text(MOST_GUIDE_CHARS)}).guide
    assert found is not None and len(found.guide) == MOST_GUIDE_CHARS
    with pytest.raises(ApiError, match=f"{field} has more than {MOST_GUIDE_CHARS} characters"):
        chat(**{field: text(MOST_GUIDE_CHARS + 1)})
    with pytest.raises(ApiError, match="has more than"):
        chat(structured_outputs={field.removeprefix("guided_"): text(MOST_GUIDE_CHARS + 1)})


@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"temperature": 2.1}, "temperature", "in 0..2"),
        ({"stop_token_ids": [3, -1]}, "stop_token_ids", "-1 is no token id"),
        ({"stop": [3, -1]}, "stop", "-1 is no token id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": "f()"}]},
            "messages[0].tool_calls",
            "no list",
        ),
        ({"temperature": "hot"}, "temperature", "Expected `float"),
        ({"response_format": {}}, "response_format.type", "missing required field"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.1}, "top_p", "in 0..1"),
        ({"min_p": -0.1}, "min_p", "in 0..1"),
        ({"top_k": -2}, "top_k", "in -1"),
        ({"presence_penalty": 3}, "presence_penalty", "in -2..2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "in -2..2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"seed": -(2**63) - 1}, "seed", "in -9"),
        ({"bad_words": [""]}, "bad_words", "none of them empty"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "neither"),
        ({"guided_json": "{"}, "guided_json", "no JSON schema"),
        ({"guided_json": "[1]"}, "guided_json", "no JSON schema"),
        ({"guided_choice": []}, "guided_choice", "1 to"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
        ({"guided_choice": "a"}, "guided_choice", "Expected `array"),
        ({"guided_regex": ""}, "guided_regex", "empty"),
        ({"guided_regex": "a", "guided_grammar": "b"}, "guided_grammar", "exclude each other"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"pattern": "a"}}, "structured_outputs", "unknown field"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        ({"functions": []}, "functions", "use tools"),
        ({"function_call": "auto"}, "function_call", "use tool_choice"),
        ({"return_token_ids": True}, "return_token_ids", "not supported"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "not supported"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"length_penalty": 1.5}, "length_penalty", "not supported"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "not supported"),
        ({"prompt_logprobs": 0}, "prompt_logprobs", "not supported"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"verbosity": "low"}, "verbosity", "not supported"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params", "not supported"),
        ({"bootstrap_room": 0}, "bootstrap_room", "not supported"),
        ({"continue_final_message": True}, "continue_final_message", "not supported"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "not supported"),
        ({"max_tokens": 0}, "max_tokens", "in 1"),
        ({"max_tokens": 1.5}, "max_tokens", "Expected `int"),
        ({"n": 0}, "n", "in 1..128"),
        ({"n": 129}, "n", "in 1..128"),
        ({"n": 2, "temperature": 0}, "n", "temperature above 0"),
        ({"best_of": 3}, "best_of", "best_of"),
        ({"stop": ["a"] * 33}, "stop", "more than 32"),
        ({"stop": [-1]}, "stop", "no token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "in -100..100"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "no text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "image_url",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "in 0..20"),
        ({"tools": [{}], "tool_choice": "auto"}, "tools[0]", "no function"),
        ({"model": None}, "model", "Expected `str`"),
        (
            {"nvext": {"backend_instance_id": 0, "decode_worker_id": 1}},
            "nvext.decode_worker_id",
            "different workers",
        ),
    ],
)
def test_chat_requests_out_of_range(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as found:
        chat(**fields)
    assert found.value.status == 400 and found.value.param == param
    assert words in str(found.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"skip_special_tokens": True},
        {"use_beam_search": False, "length_penalty": 1.0, "priority": 0},
        {"return_token_ids": False, "modalities": ["text"], "echo": False, "verbosity": "medium"},
        {"response_format": {"type": "text"}, "guided_json": None},
        {"logits_processors": [], "vllm_xargs": {}, "prompt_logprobs": None},
    ],
)
def test_values_that_ask_for_nothing(fields: dict[str, Any]) -> None:
    assert chat(**fields).guide is None


SCHEMA = {"type": "object"}


def test_a_forced_list_of_calls_has_one_where_only_one_is_wanted() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    many = chat(tools=tools, tool_choice="required").tools_asked.guide
    one = chat(tools=tools, tool_choice="required", parallel_tool_calls=False).tools_asked.guide
    assert many is not None and "maxItems" not in many.guide
    assert one is not None and '"maxItems":1' in one.guide


@pytest.mark.parametrize(
    "fields, guide",
    [
        ({"guided_json": SCHEMA}, ("guided_json", "JSON_SCHEMA", '{"type":"object"}')),
        ({"guided_json": '{"a": 1}'}, ("guided_json", "JSON_SCHEMA", '{"a":1}')),
        ({"guided_regex": "a+"}, ("guided_regex", "REGEX", "a+")),
        ({"guided_grammar": "root ::= x"}, ("guided_grammar", "EBNF_GRAMMAR", "root ::= x")),
        (
            {"guided_choice": ["yes", 'a "b"\\\n']},
            ("guided_choice", "EBNF_GRAMMAR", r'root ::= "yes" | "a \"b\"\\\n"'),
        ),
        (
            {"structured_outputs": {"choice": ["é"]}},
            ("structured_outputs.choice", "EBNF_GRAMMAR", 'root ::= "é"'),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            ("structured_outputs.json_object", "JSON_SCHEMA", '{"type":"object"}'),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            (
                "response_format",
                "STRUCTURAL_TAG",
                '{"type":"structural_tag","format":{"type":"any_text"}}',
            ),
        ),
    ],
)
def test_guides(fields: dict[str, Any], guide: tuple[str, str, str]) -> None:
    request = chat(**fields)
    assert request.guide == guide and request.guide is request.guide  # made once
    assert completion(**fields).guide == guide


@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"logprobs": 21}, "logprobs", "in 0..20"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"max_tokens": 0}, "max_tokens", "in 1.."),
        ({"max_tokens": 5, "max_completion_tokens": 0}, "max_completion_tokens", "in 1.."),
        ({"echo": True, "max_tokens": -1}, "max_tokens", "in 0.."),
    ],
)
def test_completion_requests_out_of_range(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as found:
        completion(**fields)
    assert found.value.param == param


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": "m"}', b'{"model": "\xff"}', b"[" * 9999]
)
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(ApiError) as found:
        read_request(body, ChatRequest)
    assert found.value.status == 400
    assert found.value.body["error"]["type"] == "invalid_request_error"
