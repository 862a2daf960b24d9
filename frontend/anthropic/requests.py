"""Requests to /v1/messages and /v1/messages/count_tokens: their fields, and the chat that each
asks for.

All fields of Anthropic's are here, served or refused by name; see docs/frontend.md.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from ..openai import (
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
from .blocks import CacheControl, add_messages, text_of

MESSAGES_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice",
}
"""What fields of a chat are called here."""


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """`adaptive`: the model thinks as it does by itself."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized"] | None = None


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    user_id: str | None = None


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None
    format: OutputFormat | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """One that the client runs. The last ones are refused, but for their defaults."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    # ----
    allowed_callers: Any = None
    defer_loading: Any = None
    input_examples: Any = None


class CountRequest(ChatFields, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: list[msgspec.Raw]
    system: str | list[Any] | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Nothing of an answer depends on these.
    cache_control: CacheControl | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    # Refused, but for the values in _harmless.
    speed: Any = None
    context_management: Any = None
    mcp_servers: Any = None

    def to_chat(self) -> ChatRequest:
        """ApiError 400, naming the field, for the first that cannot be had."""
        self.refuse(self._harmless)
        turns = Turns()
        if self.system:
            turns.add_system(text_of(self.system, "system"))
        add_messages(turns, self.messages)
        if not self.messages:
            raise wrong_field("messages", "is empty")
        choice, parallel = _tool_choice(self.tool_choice)
        output = self.output_config or OutputConfig()
        form = None
        if output.format is not None:
            schema = JsonSchema("output", output.format.schema)
            form = ResponseFormat("json_schema", schema)
        return self.chat(
            messages=turns.messages,
            tools=_tools(self.tools),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            response_format=form,
            reasoning_effort=output.effort,
            **self._limits(),
        )

    @property
    def _harmless(self) -> dict[str, tuple[Any, ...]]:
        """Values that ask for what happens anyway, of fields that are refused."""
        return {"speed": ("standard",), "context_management": (), "mcp_servers": ([],)}

    def _limits(self) -> dict[str, Any]:
        """Of the answer, as a chat has them."""
        return {}


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    # Nothing of an answer depends on these.
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # Refused, but for null.
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None

    @property
    def _harmless(self) -> dict[str, tuple[Any, ...]]:
        return {**super()._harmless, "container": (), "diagnostics": (), "inference_geo": ()}

    def _limits(self) -> dict[str, Any]:
        if self.max_tokens < 1:
            raise wrong_field("max_tokens", "must be at least 1")
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and not 0 < budget < self.max_tokens:
            text = "must be at least 1, and less than max_tokens"
            raise wrong_field("thinking.budget_tokens", text)
        stops = self.stop_sequences
        return {"max_completion_tokens": self.max_tokens, "stop": stops or None}


class ReadMessages(NamedTuple):
    """A request and its chat."""

    asked: CountRequest
    chat: ChatRequest


_MESSAGES, _COUNT = map(msgspec.json.Decoder, (MessagesRequest, CountRequest))


def read_messages(body: bytes) -> ReadMessages:
    """ApiError 400 if it is none."""
    asked: CountRequest = read_json(_MESSAGES.decode, body)
    return ReadMessages(asked, asked.to_chat())


def read_count(body: bytes) -> ReadMessages:
    """ApiError 400 if it is none."""
    asked: CountRequest = read_json(_COUNT.decode, body)
    return ReadMessages(asked, asked.to_chat())


def _tool_choice(choice: ToolChoice | None) -> tuple[str | dict[str, Any] | None, bool | None]:
    """As a chat has it, and whether several calls may come at once."""
    if choice is None:
        return None, None
    parallel = False if choice.disable_parallel_tool_use else None
    if choice.type != "tool":
        if choice.name is not None:
            raise refused_field("tool_choice.name")
        return {"any": "required"}.get(choice.type, choice.type), parallel
    if choice.name is None:
        raise wrong_field("tool_choice.name", "is missing")
    return {"type": "function", "function": {"name": choice.name}}, parallel


def _tools(given: list[msgspec.Raw] | None) -> list[dict[str, Any]] | None:
    """As a chat has them."""
    if given is None:
        return None
    found = []
    for at, raw in enumerate(given):
        where = f"tools[{at}]"
        entry = read_entry(raw, where)
        if entry.get("type") not in (None, "custom"):
            raise refused_field(f"{where}.type", entry["type"])
        tool = as_type(entry, Tool, where)
        for name, values in _HARMLESS_TOOL.items():
            if (value := getattr(tool, name)) is not None and value not in values:
                raise refused_field(f"{where}.{name}")
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        if tool.strict is not None:
            function["strict"] = tool.strict
        found.append({"type": "function", "function": function})
    return found


_HARMLESS_TOOL: dict[str, list[Any]] = {
    "allowed_callers": [["direct"]],
    "defer_loading": [False],
    "input_examples": [[]],
}
