"""Prompts as clients give them, conversations, texts or token ids, as token ids of a model."""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..base.errors import InvalidRequestError
from ..router.prompt import Prompt
from ..server.dispatch import RequestReader
from .openai import BAD_BODY, ApiError, ChatRequest, CompletionRequest, Sampling
from .processor import ModelText

Tokens = Sequence[int] | npt.NDArray[np.uint32]
"""Of a prompt."""
MOST_PROMPTS = 128


class HashedPrompt(NamedTuple):
    """A prompt's tokens for engines, and for the router: hashed once, for all of its answers."""

    tokens: "npt.NDArray[np.uint32] | array[int]"
    prompt: Prompt


class PromptReader:
    """Of one model. ApiError 400 for what is no prompt."""

    def __init__(self, text: ModelText, reader: RequestReader) -> None:
        self._text = text
        self._reader = reader

    async def of_chat(self, request: ChatRequest) -> Tokens:
        """A conversation's prompt."""
        return _given_ids(request) or await self.render(request.messages, request)

    async def of_completion(
        self, request: CompletionRequest, ids: Tokens | None = None
    ) -> list[Tokens]:
        """The prompts of a completion; `ids`: they were taken out of it."""
        given = _given_ids(request)
        if given is None and ids is not None:
            return [ids]
        return [given] if given else await self.read(bytes(request.prompt), "prompt")

    async def hashed(self, tokens: Tokens, adapter: int | None, salt: int | None) -> HashedPrompt:
        """For requests to this LoRA adapter, in this cache namespace. InvalidRequestError if it is
        longer than prompts may be."""
        made = tokens if isinstance(tokens, np.ndarray) else array("I", tokens)
        names = (None if name is None else str(name) for name in (adapter, salt))
        return HashedPrompt(made, await self._reader.prompt(made, *names))

    async def render(
        self, messages: list[dict[str, Any]], request: ChatRequest | None
    ) -> list[int]:
        """A conversation by the model's template; `request` has what else the template is told."""
        template = self._text.template
        if template is None:
            raise ApiError(400, "this model has no chat template", param="messages")
        variables: dict[str, Any] = {}
        if request is not None:
            variables = {
                **(request.chat_template_args or {}),
                **(request.chat_template_kwargs or {}),
            }
            if "messages" in variables:
                text = "chat_template_kwargs must not have messages"
                raise ApiError(400, text, param="chat_template_kwargs")
            # Without its tools a model cannot call any, which is what "none" wants.
            variables["tools"] = None if request.tool_choice == "none" else request.tools
            variables["add_generation_prompt"] = request.add_generation_prompt
        text = template.render(with_read_arguments(messages), **variables)
        # The template has written the special tokens itself.
        return await self._text.encode(text, add_special_tokens=False)

    async def read(self, raw: bytes, field: str) -> list[Tokens]:
        """What a field of a body has: a text, token ids, or a list of either."""
        given = raw.strip()
        if given[:1] == b"[" and given[1:].lstrip()[:1].isdigit():
            return [await self._token_ids(raw)]
        try:
            found = msgspec.json.decode(raw, type=str | list[str | list[int]])
        except BAD_BODY:
            text = f"{field} must be a text, a list of token ids, or a list of either"
            raise ApiError(400, text, param=field) from None
        if isinstance(found, str):
            return [await self._text_ids(found)]
        if not found or len(found) > MOST_PROMPTS:
            raise ApiError(400, f"{field} must have 1 to {MOST_PROMPTS} entries", param=field)
        return [
            await self._text_ids(each) if isinstance(each, str) else _checked_ids(each)
            for each in found
        ]

    async def _text_ids(self, text: str) -> list[int]:
        return await self._text.encode(text, add_special_tokens=True)

    async def _token_ids(self, raw: bytes) -> npt.NDArray[np.uint32]:
        try:
            tokens, _ = await self._reader.json_tokens(b'{"prompt":' + raw + b"}", b"prompt")
        except InvalidRequestError as error:
            raise ApiError(400, str(error), param="prompt") from None
        return np.ascontiguousarray(tokens, np.uint32)


def with_read_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the arguments of earlier calls as objects: OpenAI has them as JSON text, and
    templates write objects. ApiError 400 if one is no JSON."""
    told = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            read = [_with_read_arguments(f"messages[{at}].tool_calls", call) for call in calls]
            message = {**message, "tool_calls": read}
        told.append(message)
    return told


def _with_read_arguments(where: str, call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ApiError(400, f"{where} has a call without a function", param=where)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        read = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError as error:
        raise ApiError(400, f"{where}: the arguments are no JSON: {error}", param=where) from None
    return {**call, "function": {**function, "arguments": read}}


def _given_ids(request: Sampling) -> Tokens | None:
    """The prompt's token ids, where its client has tokenized it."""
    return None if request.nvext is None else request.nvext.token_data


def _checked_ids(ids: list[int]) -> list[int]:
    for token_id in ids:
        if not 0 <= token_id < 1 << 32:
            raise ApiError(400, f"{token_id} is no token id", param="prompt")
    return ids
