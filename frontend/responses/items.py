"""The items of a response's `input`, as messages of a chat; those of kinds that need a server of
OpenAI's are refused by name."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Any, Literal

import msgspec

from ..openai import Turns, as_type, read_entry, read_json, refused_field, wrong_field

_SEALED = "dynamo-router:"
"""Begins an `encrypted_content` of ours: the text in base64. Nothing in it is secret: its client
has the same text beside it."""
_TEXT_KINDS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_STRING = msgspec.json.Decoder(str)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    type: str = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class _Direct(msgspec.Struct, forbid_unknown_fields=True):
    """Who called: the model itself."""

    type: Literal["direct"]


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    caller: _Direct | None = None


class _CallOutput(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    call_id: str
    output: str | list[Any]
    id: str | None = None
    status: str | None = None
    name: str | None = None
    caller: _Direct | None = None


class _Text(msgspec.Struct):
    text: str


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    id: str | None = None
    summary: list[_Text] | None = None
    content: list[_Text] | None = None
    encrypted_content: str | None = None
    status: str | None = None


def add_input(turns: Turns, given: msgspec.Raw) -> None:
    """Add what a request's `input` has, a text or items; ApiError 400 if it makes no sense."""
    first = bytes(given).lstrip()[:1]
    if first == b'"':
        turns.add_user(read_json(_STRING.decode, given, "input"))
        return
    if first != b"[":
        raise wrong_field("input", "must be a text or a list of items")
    for at, raw in enumerate(read_json(_ITEMS.decode, given, "input")):
        _add(turns, f"input[{at}]", read_entry(raw, f"input[{at}]"))


def _add(turns: Turns, where: str, item: dict[str, Any]) -> None:
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        _add_message(turns, where, as_type(item, _Message, where))
    elif kind == "function_call":
        call = as_type(item, _Call, where)
        arguments = read_json(
            _ARGUMENTS.decode, call.arguments.encode() or b"{}", f"{where}.arguments"
        )
        turns.add_call(call.call_id, call.name, arguments)
    elif kind == "function_call_output":
        output = as_type(item, _CallOutput, where)
        text = _text(output.output, f"{where}.output", "\n")
        turns.add_result(f"{where}.call_id", output.call_id, text)
    elif kind == "reasoning":
        if turns.answer.get("content") or turns.answer.get("tool_calls"):
            turns.new_answer()
        turns.add_reasoning(_thought(as_type(item, _Reasoning, where), where))
    else:
        raise refused_field(f"{where}.type", kind)


def _add_message(turns: Turns, where: str, message: _Message) -> None:
    role = message.role
    if role != "assistant":
        text = _text(message.content, f"{where}.content", "\n")
        (turns.add_user if role == "user" else turns.add_system)(text)
        return
    text = _text(message.content, f"{where}.content", "")
    turn = turns.answer
    if turn["content"] and not turn.get("tool_calls"):
        turns.new_answer()
    turns.answer["content"] += text


def _text(content: str | list[Any], where: str, between: str) -> str:
    if isinstance(content, str):
        return content
    found = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        key = _TEXT_KINDS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise refused_field(f"{where}[{at}].type", kind)
        text = part.get(key)
        if not isinstance(text, str):
            raise wrong_field(f"{where}[{at}].{key}", "must be a text")
        found.append(text)
    return between.join(found)


def _thought(item: _Reasoning, where: str) -> str:
    """The text of earlier reasoning, or else its summary."""
    if item.content:
        return "".join(each.text for each in item.content)
    if item.encrypted_content is None:
        return "\n".join(each.text for each in item.summary or ())
    text = unsealed(item.encrypted_content)
    if text is None:
        raise wrong_field(f"{where}.encrypted_content", "was not made here and cannot be read")
    return text


def sealed(text: str) -> str:
    """The `encrypted_content` of reasoning, from which a later request has its text."""
    return _SEALED + b64encode(text.encode()).decode()


def unsealed(given: str) -> str | None:
    """None: it was not made here."""
    if not given.startswith(_SEALED):
        return None
    try:
        return b64decode(given[len(_SEALED) :], validate=True).decode()
    except (Base64Error, UnicodeError, ValueError):
        return None
