"""Chats over the APIs of conversations: single messages, and such that grow."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .chat_bodies import APIS, INSTRUCTIONS, Json, Turn
from .http_client import HttpClient
from .way import Ask, Timing

SAMPLE_CHARS = 20_000
RESULT_CHARS = 2_700
"""Of a tool's result in the chat of an agent, which has as many as its length asks for."""
THOUGHT_CHARS = 200
"""Of what a model thought before a call, where the API has that."""
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
    """Streams chats, one request at a time on a connection. Close it in the end.

    `api`: one of APIS.
    """

    def __init__(self, address: str, model: str, api: str = "chat") -> None:
        self._api = APIS[api]
        self._http = HttpClient(address, self._api.ends)
        self._model = model

    def asks(self, chars: int, output_tokens: int) -> Ask:
        """Sends a message that was not sent before; RouterError if the answer is not whole."""
        rng = np.random.default_rng([chars, output_tokens])
        return self._ask(_questions(rng, chars), output_tokens)

    def turns(
        self, first_chars: int, turn_chars: int, output_tokens: int, tools: int = 0
    ) -> tuple[Ask, Ask]:
        """Asks that begin a conversation, and that send the next turn of the one that was begun
        longest ago. With tools it is an agent's: calls of them, and their results."""
        rng = np.random.default_rng([first_chars, turn_chars, tools])
        begun: deque[list[Turn]] = deque()

        def first() -> Iterator[list[Turn]]:
            chats = _agents_chats(rng, first_chars, tools) if tools else None
            for turns in chats or _questions(rng, first_chars):
                begun.append(turns)
                yield turns

        def following() -> Iterator[list[Turn]]:
            while True:
                turns = begun.popleft()
                if tools:
                    yield [*turns, *_call_and_result(rng, len(turns) % tools, turn_chars)]
                    continue
                answered = Turn("assistant", "Yes.")
                yield [*turns, answered, Turn("user", new_text(rng, turn_chars))]

        shown = [_tool(number) for number in range(tools)]
        return (
            self._ask(first(), output_tokens, shown),
            self._ask(following(), output_tokens, shown),
        )

    def close(self) -> None:
        self._http.close()

    def _ask(
        self, chats: Iterator[list[Turn]], output_tokens: int, tools: Sequence[Json] = ()
    ) -> Ask:
        api = self._api

        async def ask() -> Timing:
            asked = api.body(self._model, next(chats), tools, output_tokens)
            # As clients do, which write UTF-8 and no blanks.
            body = json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
            return await self._http.send(self._http.request(api.path, body))

        return ask


def _questions(rng: np.random.Generator, chars: int) -> Iterator[list[Turn]]:
    while True:
        yield [Turn("user", new_text(rng, chars))]


def _agents_chats(rng: np.random.Generator, chars: int, tools: int) -> Iterator[list[Turn]]:
    """Chats of an agent with results of tools of about `chars` characters together."""
    while True:
        system = Turn("system", f"{INSTRUCTIONS} {rng.integers(1 << 62)}")
        turns = [system, Turn("user", new_text(rng, RESULT_CHARS))]
        for number in range(max(chars // RESULT_CHARS, 1)):
            turns += _call_and_result(rng, number % tools, RESULT_CHARS)
        yield turns


def _call_and_result(rng: np.random.Generator, tool: int, chars: int) -> list[Turn]:
    call_id = f"call_{rng.integers(1 << 62):x}"
    arguments = {"path": f"src/module_{rng.integers(1000)}.py", "limit": int(rng.integers(1000))}
    thought = new_text(rng, THOUGHT_CHARS)
    return [
        Turn("assistant", json.dumps(arguments), call_id, f"tool_{tool}", thought),
        Turn("tool", new_text(rng, chars), call_id),
    ]


def _tool(number: int) -> Json:
    properties = {
        "path": {"type": "string", "description": "The file, from the root of the project."},
        "limit": {"type": "integer", "description": "Most lines of it."},
        "mode": {"type": "string", "enum": ["text", "binary"]},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    text = f"Reads a file of the project as tool number {number} does, line by line."
    return {"name": f"tool_{number}", "description": text, "parameters": parameters}
