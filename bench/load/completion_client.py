"""A lean client of OpenAI's completions."""

import json
from collections.abc import Iterator

from .http_client import HttpClient
from .way import Ask, Timing

_DONE = b"data: [DONE]"


class CompletionClient:
    """Streams completions of prompts of token ids. Close it in the end.

    RouterError if there is no parser for answers.
    """

    def __init__(self, address: str, model: str) -> None:
        self._http = HttpClient(address, _DONE)
        self._model = model

    def asks(self, prompts: Iterator[list[int]], output_tokens: int) -> Ask:
        """Sends a prompt; RouterError if the answer is not a whole one."""

        async def ask() -> Timing:
            return await self._http.send(self._request(next(prompts), output_tokens))

        return ask

    def close(self) -> None:
        self._http.close()

    def _request(self, prompt: list[int], output_tokens: int) -> bytes:
        asked = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        return self._http.request("/v1/completions", json.dumps(asked).encode())
