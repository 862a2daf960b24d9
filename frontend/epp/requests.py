"""Bodies of requests as a picker reads them: what decides where they go, and the model's name.

The engine checks the rest, and may know more fields than we do: nothing else is looked at.
"""

from typing import Any

import msgspec
import numpy as np

from ...workers.trtllm_proto import pb
from ..openai import BAD_BODY, ApiError, bad_body, check_messages

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
LONGEST_NAME = 256
"""Bytes of a model's name that a header gives."""


class _Read(msgspec.Struct, kw_only=True):
    """What both kinds of request have. None: the engine's own choice."""

    model: str
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    prompt_logprobs: Any = None

    @property
    def output_limit(self) -> int:
        """Most tokens of an answer; 0: it does not say."""
        newer = self.max_completion_tokens
        return max(0, (self.max_tokens if newer is None else newer) or 0)


class CompletionBody(_Read, kw_only=True):
    """POST /v1/completions."""

    prompt: msgspec.Raw
    echo: Any = None
    logprobs: Any = None


class ChatBody(_Read, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class _Named(msgspec.Struct):
    model: msgspec.Raw


_CHAT, _COMPLETION = msgspec.json.Decoder(ChatBody), msgspec.json.Decoder(CompletionBody)
_NAMED = msgspec.json.Decoder(_Named)


def read_chat(body: bytes) -> ChatBody:
    """ApiError 400 if it is no request of a chat."""
    request: ChatBody = _decoded(body, _CHAT)
    if not request.messages:
        raise ApiError(400, "messages is empty", param="messages")
    check_messages(request.messages)
    return request


def read_completion(body: bytes) -> CompletionBody:
    """ApiError 400 if it is no request for a completion."""
    request: CompletionBody = _decoded(body, _COMPLETION)
    return request


def pairing_facts(read: ChatBody | CompletionBody) -> bytes:
    """Of a request, as a GenerateRequest: what two workers could not share it for."""
    message = pb.GenerateRequest()
    if read.n is not None and read.n > 1:
        message.sampling_config.num_return_sequences = read.n
    echoed = isinstance(read, CompletionBody) and bool(read.echo) and read.logprobs is not None
    if read.prompt_logprobs is not None or echoed:
        message.output_config.prompt_logprobs = 1
    data: bytes = message.SerializeToString()
    return data


def with_model(body: bytes, name: str) -> bytes:
    """The body with another name of the model, all other bytes as they are.

    Of a key that comes twice the last one counts, as for those who decode it.
    """
    raw = _NAMED.decode(body).model
    # A Raw is a view of the bytes it was read from.
    begin = _address(raw) - _address(body)
    end = begin + len(bytes(raw))
    assert body[begin:end] == bytes(raw)
    return b"".join((body[:begin], msgspec.json.encode(name), body[end:]))


def _address(data: Any) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _decoded(body: bytes, decoder: Any) -> Any:
    try:
        return decoder.decode(body)
    except BAD_BODY as error:
        raise bad_body(error) from None
