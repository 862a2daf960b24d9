"""Bodies of conversations as clients of each API send them: OpenAI's chat, Anthropic's Messages as
Claude Code does, OpenAI's Responses as Codex does."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
INSTRUCTIONS = "You are an agent that works on a project with tools."
MARK = {"cache_control": {"type": "ephemeral"}}
MARKED = 2
"""Messages at the end that have a mark: with each turn it moves on."""


class Turn(NamedTuple):
    """A part of a conversation: a question, or an answer to one, or with `call_id` a tool's call,
    as JSON, or its result."""

    role: str
    text: str
    call_id: str = ""
    tool: str = ""
    thought: str = ""


class Api(NamedTuple):
    """How a conversation is asked to be gone on with, and what a whole answer's last bytes have."""

    path: str
    ends: bytes
    body: Callable[[str, Sequence[Turn], Sequence[Json], int], Json]
    """of a model's name, turns, tools and the number of tokens that are to come"""


def _chat(model: str, turns: Sequence[Turn], tools: Sequence[Json], tokens: int) -> Json:
    messages: list[Json] = []
    for role, text, call_id, tool, _ in turns:
        if role == "tool":
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        elif call_id:
            function = {"name": tool, "arguments": text}
            call = {"id": call_id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        else:
            messages.append({"role": role, "content": text})
    shown = [{"type": "function", "function": tool} for tool in tools]
    asked = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}
    return {**asked, "ignore_eos": True, **({"tools": shown} if shown else {})}


def _messages(model: str, turns: Sequence[Turn], tools: Sequence[Json], tokens: int) -> Json:
    messages: list[Json] = []
    system = INSTRUCTIONS
    for role, text, call_id, tool, thought in turns:
        blocks: list[Json] = []
        if role == "system":
            system = text
            continue
        if role == "tool":
            blocks.append({"tool_use_id": call_id, "type": "tool_result", "content": text})
        elif call_id:
            if thought:
                signed = b64encode(thought.encode()).decode()
                blocks.append({"type": "thinking", "thinking": thought, "signature": signed})
            use = {"id": call_id, "name": tool, "input": json.loads(text)}
            blocks.append({"type": "tool_use", **use})
        else:
            blocks.append({"type": "text", "text": text})
        messages.append({"role": "user" if role == "tool" else role, "content": blocks})
    for message in messages[-MARKED:]:
        last = message["content"][-1]
        message["content"][-1] = {**last, **MARK}
    shown = [
        {"name": tool["name"], "description": tool["description"], "input_schema": schema}
        for tool in tools
        for schema in (tool["parameters"],)
    ]
    return {
        "model": model,
        "messages": messages,
        "system": [{"type": "text", "text": system, **MARK}],
        **({"tools": shown} if shown else {}),
        "metadata": {"user_id": "user_account_session"},
        "max_tokens": tokens,
        "stream": True,
    }


def _responses(model: str, turns: Sequence[Turn], tools: Sequence[Json], tokens: int) -> Json:
    items: list[Json] = []
    system = INSTRUCTIONS
    for role, text, call_id, tool, thought in turns:
        if role == "system":
            system = text
        elif role == "tool":
            items.append({"type": "function_call_output", "call_id": call_id, "output": text})
        elif call_id:
            if thought:
                sealed = f"dynamo-router:{b64encode(thought.encode()).decode()}"
                reasoning = {"id": f"rs_{call_id}", "summary": [], "encrypted_content": sealed}
                items.append({"type": "reasoning", **reasoning})
            call = {"name": tool, "arguments": text, "call_id": call_id}
            items.append({"type": "function_call", **call})
        else:
            kind = "input_text" if role == "user" else "output_text"
            part = {"type": kind, "text": text}
            items.append({"type": "message", "role": role, "content": [part]})
    return {
        "model": model,
        "instructions": system,
        "input": items,
        "tools": [{"type": "function", **tool, "strict": False} for tool in tools],
        **({"tool_choice": "auto", "parallel_tool_calls": False} if tools else {}),
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": tokens,
    }


APIS = {
    "chat": Api("/v1/chat/completions", b"data: [DONE]", _chat),
    "messages": Api("/v1/messages", b'"message_stop"}', _messages),
    "responses": Api("/v1/responses", b"}}\n\n", _responses),
}
