"""Answers of services that return token ids as those of trtllm.TrtllmService. Pure.

Nothing that they say is trusted: what cannot be read, or is more than was asked for, is an error of
the engine's.
"""

from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE, WorkerError
from ..dialects import (
    TokenLogprob,
    TrtllmAnswer,
    by_logprob,
    check_length,
    set_cached,
    with_handoff,
)
from .asked import Asked


class AnswerReader:
    """Reads one answer, streamed or whole. `response` is the type of its messages.

    `counts_all`: `completion_tokens` of a message are those of the answer so far; if not, those of
    the message, and the last one of a stream repeats the tokens of the one before it.
    """

    def __init__(self, asked: Asked, response: Any, *, counts_all: bool) -> None:
        request = asked.message
        self.answer = TrtllmAnswer(request, asked.prompt_tokens)
        self.done = False
        """nothing more is to come"""
        self._response, self._counts_all = response, counts_all
        self._max_tokens: int = request.max_tokens
        self._wants_prompt: bool = request.output_config.prompt_logprobs > 0

    def read(self, data: bytes) -> list[bytes]:
        """The messages that one of the engine's makes. WorkerError if it cannot be read, or says
        that the engine failed."""
        try:
            message = self._response.FromString(data)
        except DecodeError:
            raise WorkerError("its answer cannot be read") from None
        which = message.WhichOneof("response")
        if which == "chunk":
            added = self._add(message.chunk, message.chunk.token_ids)
            return [] if added is None else [added]
        if which == "complete":
            return self._end(message.complete)
        return []

    def end(self) -> list[bytes]:
        return []

    def _add(self, part: Any, ids: Any) -> bytes | None:
        tokens, known = list(ids), self.answer.completion_tokens
        set_cached(self.answer, part.cached_tokens)
        if self._wants_prompt and part.HasField("input_logprobs"):
            self.answer.prompt_logprobs = _prompt_logprobs(part.input_logprobs)
        if self._counts_all:
            new = max(0, part.completion_tokens - known)
            if new > len(tokens):
                raise WorkerError("its answer has fewer token ids than tokens")
            tokens = tokens[-new:] if new else []
        check_length(known + len(tokens), self._max_tokens)
        if not tokens:
            return None
        return self.answer.add(tokens, _logprobs(part.output_logprobs, len(tokens)))

    def _end(self, last: Any) -> list[bytes]:
        if last.finish_reason == "error":
            raise WorkerError("the engine ended the request with an error")
        seen = self.answer.completion_tokens and not self._counts_all
        added = self._add(last, () if seen else last.output_ids)
        matched = last.WhichOneof("matched_stop")
        whole = self.answer.complete(
            last.finish_reason or "unknown", None if matched is None else getattr(last, matched)
        )
        handoff = getattr(last, "kv_transfer_params_json", "")
        if handoff:
            whole = with_handoff(whole, _parcel(handoff))
        self.done = True
        return [whole] if added is None else [added, whole]


def _parcel(params: str) -> bytes:
    """What the decode worker is sent, in the words of a leg."""
    try:
        return msgspec.json.encode({"kv_transfer_params": msgspec.json.decode(params, type=dict)})
    except UNREADABLE as error:
        raise WorkerError(f"what it hands over cannot be read: {error}") from None


def _logprobs(reported: Any, count: int) -> list[TokenLogprob]:
    """Of the last `count` tokens; none where there are none."""
    ids, values = list(reported.token_ids)[-count:], list(reported.token_logprobs)[-count:]
    tops = list(reported.top_logprobs)[-count:] or [None] * len(ids)
    return [
        TokenLogprob(token, value, _likeliest(top))
        for token, value, top in zip(ids, values, tops, strict=False)
    ]


def _prompt_logprobs(reported: Any) -> list[TokenLogprob]:
    """Of each token of the prompt; the first one's says nothing."""
    ids, tops = reported.token_ids, list(reported.top_logprobs) or [None] * len(reported.token_ids)
    return [
        TokenLogprob(token, each.value, sorted(_likeliest(top), key=by_logprob))
        for token, each, top in zip(ids, reported.token_logprobs, tops, strict=False)
    ]


def _likeliest(top: Any) -> list[tuple[int, float]]:
    return [] if top is None else list(zip(top.token_ids, top.values, strict=False))
