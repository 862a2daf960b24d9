"""Chats over OpenAI's API: single messages, and conversations that grow."""

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .http_client import HttpClient
from .way import Ask, Timing

_DONE = b"data: [DONE]"
SAMPLE_CHARS = 20_000
RESULT_CHARS = 2_700
"""Of a tool's result in the chat of an agent, which has as many as its length asks for."""
Messages = list[dict[str, Any]]
WORDS = (
    "the of and to in is it you that he was for on are with as his they be at one have this from"
    " or had by hot but some what there we can out other were all your when up use word how said"
    " each she which do their time if will way about many then them would write like so these her"
).split()


def new_text(rng: np.random.Generator, chars: int) -> str:
    """Words of at least `chars` characters."""
    words: list[str] = []
    while chars > 0:
        words.append(WORDS[rng.integers(len(WORDS))])
        chars -= len(words[-1]) + 1
    return " ".join(words)


def chars_per_token(model_path: str) -> float:
    """Of such text, by the tokenizer of a model's folder."""
    from tokenizers import Tokenizer  # not for a command that only prints its help

    text = new_text(np.random.default_rng(0), SAMPLE_CHARS)
    tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))
    return len(text) / len(tokenizer.encode(text, add_special_tokens=False).ids)


class ChatClient:
    """Streams chats, one request at a time on a connection. Close it in the end."""

    def __init__(self, address: str, model: str) -> None:
        self._http = HttpClient(address, _DONE)
        self._model = model

    def asks(self, chars: int, output_tokens: int) -> Ask:
        """Sends a message that was not sent before; RouterError if the answer is not whole."""
        rng = np.random.default_rng([chars, output_tokens])
        return self._ask(self._messages(rng, chars), output_tokens)

    def turns(
        self, first_chars: int, turn_chars: int, output_tokens: int, tools: int = 0
    ) -> tuple[Ask, Ask]:
        """Asks that begin a conversation, and that send the next turn of the one that was begun
        longest ago. With tools it is an agent's: calls of them, and their results."""
        rng = np.random.default_rng([first_chars, turn_chars, tools])
        begun: deque[Messages] = deque()

        def first() -> Iterator[Messages]:
            chats = self._messages(rng, first_chars)
            for messages in chats if not tools else _agents_messages(rng, first_chars, tools):
                begun.append(messages)
                yield messages

        def following() -> Iterator[Messages]:
            while True:
                messages = begun.popleft()
                if tools:
                    yield [*messages, *_call_and_result(rng, len(messages) % tools, turn_chars)]
                    continue
                answered = {"role": "assistant", "content": "Yes."}
                yield [*messages, answered, {"role": "user", "content": new_text(rng, turn_chars)}]

        shown = [_tool(number) for number in range(tools)]
        return (
            self._ask(first(), output_tokens, shown),
            self._ask(following(), output_tokens, shown),
        )

    def close(self) -> None:
        self._http.close()

    @staticmethod
    def _messages(rng: np.random.Generator, chars: int) -> Iterator[Messages]:
        while True:
            yield [{"role": "user", "content": new_text(rng, chars)}]

    def _ask(
        self, chats: Iterator[Messages], output_tokens: int, tools: Messages | None = None
    ) -> Ask:
        async def ask() -> Timing:
            asked = {
                "model": self._model,
                "messages": next(chats),
                "max_tokens": output_tokens,
                "stream": True,
                "ignore_eos": True,
                **({"tools": tools} if tools else {}),
            }
            body = json.dumps(asked).encode()
            return await self._http.send(self._http.request("/v1/chat/completions", body))

        return ask


def _agents_messages(rng: np.random.Generator, chars: int, tools: int) -> Iterator[Messages]:
    """Chats of an agent with results of tools of about `chars` characters together."""
    while True:
        question = {"role": "user", "content": new_text(rng, RESULT_CHARS)}
        messages = [{"role": "system", "content": f"Help. {rng.integers(1 << 62)}"}, question]
        for number in range(max(chars // RESULT_CHARS, 1)):
            messages += _call_and_result(rng, number % tools, RESULT_CHARS)
        yield messages


def _call_and_result(rng: np.random.Generator, tool: int, chars: int) -> Messages:
    call_id = f"call_{rng.integers(1 << 62):x}"
    arguments = {"path": f"src/module_{rng.integers(1000)}.py", "limit": int(rng.integers(1000))}
    function = {"name": f"tool_{tool}", "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": new_text(rng, chars)},
    ]


def _tool(number: int) -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": "The file, from the root of the project."},
        "limit": {"type": "integer", "description": "Most lines of it."},
        "mode": {"type": "string", "enum": ["text", "binary"]},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    text = f"Reads a file of the project as tool number {number} does, line by line."
    function = {"name": f"tool_{number}", "description": text, "parameters": parameters}
    return {"type": "function", "function": function}
