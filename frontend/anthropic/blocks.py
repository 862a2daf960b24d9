"""Content of Anthropic's messages, as messages of a chat; blocks of kinds that cannot be had are
refused by name."""

from typing import Any, Literal

import msgspec

from ..openai import Turns, as_type, read_entry, refused_field, wrong_field

FAILED = "Error: "
"""Begins the result of a tool that failed: a chat has no other place for that."""


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """Where a cached prefix may end. All prefixes are cached, and found again."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Direct(msgspec.Struct, forbid_unknown_fields=True):
    """Who called: the model itself."""

    type: Literal["direct"]


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    text: str
    cache_control: CacheControl | None = None
    citations: Any = None


class _Thinking(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    thinking: str
    signature: str | None = None


class _ToolUse(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: _Direct | None = None
    toolset_name: Any = None


class _ToolResult(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    tool_use_id: str
    content: str | list[Any] | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None
    toolset_name: Any = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Any]


def add_message(turns: Turns, at: int, raw: bytes) -> None:
    """Add the message of this number. ApiError 400 if it makes no sense."""
    where = f"messages[{at}]"
    message = as_type(read_entry(raw, where), _Message, where)
    where, turns.ends_with_answer = f"{where}.content", message.role == "assistant"
    if message.role == "system":
        turns.add_system(text_of(message.content, where))
    elif message.role == "user":
        _add_user(turns, message.content, where)
    else:
        _add_assistant(turns, message.content, where)


def check_end(turns: Turns) -> None:
    """ApiError 400 if an answer is to go on."""
    if turns.ends_with_answer:
        text = "ends with the assistant's: to go on from there is not supported"
        raise wrong_field("messages", text)


def text_of(content: str | list[Any], where: str) -> str:
    """Of content that has nothing but text."""
    if isinstance(content, str):
        return content
    return "\n".join(_text(block, f"{where}[{at}]") for at, block in enumerate(content))


def _add_user(turns: Turns, content: str | list[Any], where: str) -> None:
    if isinstance(content, str):
        turns.add_user(content)
        return
    texts = []
    for at, block in enumerate(content):
        if _kind(block) != "tool_result":
            texts.append(_text(block, f"{where}[{at}]"))
            continue
        if texts:
            turns.add_user("\n".join(texts))
            texts = []
        result = as_type(block, _ToolResult, f"{where}[{at}]")
        if result.toolset_name is not None:
            raise refused_field(f"{where}[{at}].toolset_name")
        text = text_of(result.content or "", f"{where}[{at}].content")
        if result.is_error and not text.startswith(FAILED):
            text = FAILED + text
        turns.add_result(f"{where}[{at}].tool_use_id", result.tool_use_id, text)
    if texts:
        turns.add_user("\n".join(texts))


def _add_assistant(turns: Turns, content: str | list[Any], where: str) -> None:
    if isinstance(content, str):
        turns.answer["content"] += content
        return
    for at, block in enumerate(content):
        kind, place = _kind(block), f"{where}[{at}]"
        if kind == "thinking":
            turns.add_reasoning(as_type(block, _Thinking, place).thinking)
        elif kind == "tool_use":
            call = as_type(block, _ToolUse, place)
            if call.toolset_name is not None:
                raise refused_field(f"{place}.toolset_name")
            turns.add_call(call.id, call.name, call.input)
        else:
            turns.answer["content"] += _text(block, place)


def _text(block: Any, where: str) -> str:
    if (kind := _kind(block)) != "text":
        raise refused_field(f"{where}.type", kind)
    text = as_type(block, _Text, where)
    if text.citations:
        raise refused_field(f"{where}.citations")
    return text.text


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None
