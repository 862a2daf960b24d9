"""Requests to /v1/responses: their fields, and the chat that each asks for.

All fields of OpenAI's are here, served or refused by name; see docs/frontend.md.
"""

from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from ..openai import (
    ChatApart,
    ChatFields,
    ChatRequest,
    JsonSchema,
    ResponseFormat,
    Turns,
    as_type,
    read_entry,
    read_json,
    refused_field,
    wrong_field,
)
from .items import add_input

MOST_METADATA, MOST_KEY, MOST_VALUE = 16, 64, 512
"""Entries, and characters of each: OpenAI's."""
LOGPROBS, SEALED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"
RESPONSES_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""What fields of a chat are called here."""


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Any = None


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    allowed_callers: Any = None
    defer_loading: Any = None
    output_schema: Any = None
    is_async: Any = msgspec.field(name="async", default=None)


class ResponsesRequest(ChatFields, kw_only=True, dict=True):
    """POST /v1/responses."""

    input: msgspec.Raw
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    # Nothing of an answer depends on these.
    store: bool | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # Refused, but for the values in _HARMLESS.
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    background_options: Any = None
    prompt: Any = None
    truncation: Any = None
    stream_options: Any = None
    prompt_cache_options: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None

    @property
    def seals_reasoning(self) -> bool:
        """Whether reasoning is to come with a text that later requests can have in its place."""
        return SEALED_REASONING in (self.include or ())

    @cached_property
    def shown_tools(self) -> bytes:
        """As an answer repeats them; worked out once, where the request is read."""
        names = {"parameters": None, "strict": None}
        return _encode([{**names, **msgspec.json.decode(each)} for each in self.tools or ()])

    def to_chat(self, kind: type[ChatRequest]) -> ChatRequest:
        """ApiError 400, naming the field, for the first that cannot be had. A ChatApart has the
        instructions alone."""
        self.refuse(_HARMLESS)
        _check_metadata(self.metadata)
        for wanted in self.include or ():
            if wanted not in (LOGPROBS, SEALED_REASONING):
                raise refused_field("include", wanted)
        with_logprobs = LOGPROBS in (self.include or ())
        if self.top_logprobs and not with_logprobs:
            raise wrong_field("top_logprobs", f"needs {LOGPROBS} in include")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise wrong_field("max_output_tokens", "must be at least 1")
        effort = None
        if self.reasoning is not None:
            _check("reasoning", self.reasoning, _HARMLESS_REASONING)
            effort = self.reasoning.effort
        turns = Turns()
        if self.instructions is not None:
            turns.add_system(self.instructions)
        if kind is not ChatApart:
            add_input(turns, self.input)
            if not turns.messages:
                raise wrong_field("input", "is empty")
        tools, choice = _tools(self.tools), self.tool_choice
        if isinstance(choice, dict):
            tools, choice = _chosen(tools, choice)
        return self.chat(
            kind,
            messages=turns.messages,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_completion_tokens=self.max_output_tokens,
            response_format=_response_format(self.text),
            reasoning_effort=effort,
            logprobs=with_logprobs or None,
            top_logprobs=self.top_logprobs if with_logprobs else None,
        )


_HARMLESS: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "background_options": ({},),
    "prompt": (),
    "truncation": ("disabled",),
    "stream_options": ({}, {"include_obfuscation": False}),
    "prompt_cache_options": (
        *({}, {"mode": "implicit"}),
        *({"ttl": ttl} for ttl in ("30m", "12h")),
        *({"mode": "implicit", "ttl": ttl} for ttl in ("30m", "12h")),
    ),
    "context_management": ([],),
    "moderation": (),
    "access_programs": ({},),
    "image": ({},),
}
"""Values that ask for what happens anyway."""
_HARMLESS_REASONING = {
    "summary": ("auto",),
    "generate_summary": ("auto",),
    "context": ("auto",),
    "mode": ("standard",),
}
_HARMLESS_TOOL = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "output_schema": (),
    "is_async": (False,),
}
_DECODER = msgspec.json.Decoder(ResponsesRequest)
_encode = msgspec.json.Encoder().encode


class ReadResponses(NamedTuple):
    """A request and its chat."""

    asked: ResponsesRequest
    chat: ChatRequest


def read_responses(body: bytes, kind: type[ChatRequest] = ChatRequest) -> ReadResponses:
    """ApiError 400 if it is none."""
    request = read_json(_DECODER.decode, body)
    chat, _ = request.to_chat(kind), request.shown_tools
    return ReadResponses(request, chat)


def _check(where: str, given: msgspec.Struct, harmless: dict[str, tuple[Any, ...]]) -> None:
    names = dict(zip(given.__struct_fields__, given.__struct_encode_fields__, strict=True))
    for field, values in harmless.items():
        value = getattr(given, field)
        if value is not None and not any(value == each for each in values):
            raise refused_field(f"{where}.{names[field]}")


def _check_metadata(given: dict[str, str] | None) -> None:
    for key, value in (given or {}).items():
        if len(key) > MOST_KEY or len(value) > MOST_VALUE:
            text = f"has keys of at most {MOST_KEY} characters and values of {MOST_VALUE}"
            raise wrong_field("metadata", text)
    if len(given or {}) > MOST_METADATA:
        raise wrong_field("metadata", f"has at most {MOST_METADATA} entries")


def _tools(given: list[msgspec.Raw] | None) -> list[dict[str, Any]] | None:
    """As a chat has them."""
    if given is None:
        return None
    found = []
    for at, raw in enumerate(given):
        where = f"tools[{at}]"
        entry = read_entry(raw, where)
        if entry.get("type") != "function":
            raise refused_field(f"{where}.type", entry.get("type"))
        tool = as_type(entry, FunctionTool, where)
        _check(where, tool, _HARMLESS_TOOL)
        function: dict[str, Any] = {"name": tool.name}
        for name in ("description", "parameters", "strict"):
            if (value := getattr(tool, name)) is not None:
                function[name] = value
        found.append({"type": "function", "function": function})
    return found


def _chosen(
    tools: list[dict[str, Any]] | None, choice: dict[str, Any]
) -> tuple[list[dict[str, Any]] | None, str | dict[str, Any]]:
    """The tools that the answer may call, and the choice as a chat has it."""
    kind = choice.get("type")
    if kind == "function":
        return tools, {"type": "function", "function": {"name": choice.get("name")}}
    if kind != "allowed_tools":
        raise refused_field("tool_choice.type", kind)
    allowed = choice.get("tools")
    if not isinstance(allowed, list):
        raise wrong_field("tool_choice.tools", "must be a list")
    names = []
    for at, each in enumerate(allowed):
        where = f"tool_choice.tools[{at}]"
        if not isinstance(each, dict) or each.get("type") != "function":
            raise wrong_field(where, "must be a function with a name")
        names.append(each.get("name"))
    known = [tool["function"]["name"] for tool in tools or ()]
    if not names or any(name not in known for name in names):
        raise wrong_field("tool_choice.tools", "must name some of the tools")
    mode = choice.get("mode")
    if mode not in ("auto", "required"):
        raise wrong_field("tool_choice.mode", "must be auto or required")
    return [tool for tool in tools or () if tool["function"]["name"] in names], mode


def _response_format(text: Text | None) -> ResponseFormat | None:
    if text is None:
        return None
    if text.verbosity not in (None, "medium"):
        raise refused_field(
            "text.verbosity", text.verbosity if isinstance(text.verbosity, str) else ""
        )
    form = text.format
    if form is None or form.type == "text":
        return None
    if form.type != "json_schema":
        return ResponseFormat(form.type)
    if form.schema is None or form.name is None:
        raise wrong_field("text.format", "needs a name and a schema")
    return ResponseFormat(form.type, JsonSchema(form.name, form.schema, form.strict))
