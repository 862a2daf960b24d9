"""Chats over OpenAI's API: single messages, and conversations that grow."""

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .http_client import HttpClient
from .way import Ask, Timing

_DONE = b"data: [DONE]"
SAMPLE_CHARS = 20_000
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

    def turns(self, first_chars: int, turn_chars: int, output_tokens: int) -> tuple[Ask, Ask]:
        """Asks that begin a conversation, and that send the next turn of the one that was begun
        longest ago."""
        rng = np.random.default_rng([first_chars, turn_chars])
        begun: deque[list[dict[str, str]]] = deque()

        def first() -> Iterator[list[dict[str, str]]]:
            for messages in self._messages(rng, first_chars):
                begun.append(messages)
                yield messages

        def following() -> Iterator[list[dict[str, str]]]:
            while True:
                answered = {"role": "assistant", "content": "Yes."}
                turn = {"role": "user", "content": new_text(rng, turn_chars)}
                yield [*begun.popleft(), answered, turn]

        return self._ask(first(), output_tokens), self._ask(following(), output_tokens)

    def close(self) -> None:
        self._http.close()

    @staticmethod
    def _messages(rng: np.random.Generator, chars: int) -> Iterator[list[dict[str, str]]]:
        while True:
            yield [{"role": "user", "content": new_text(rng, chars)}]

    def _ask(self, chats: Iterator[list[dict[str, str]]], output_tokens: int) -> Ask:
        async def ask() -> Timing:
            asked = {
                "model": self._model,
                "messages": next(chats),
                "max_tokens": output_tokens,
                "stream": True,
                "ignore_eos": True,
            }
            body = json.dumps(asked).encode()
            return await self._http.send(self._http.request("/v1/chat/completions", body))

        return ask
