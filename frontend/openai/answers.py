"""Answers in OpenAI's shapes, as JSON: one body, or the chunks of a stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from ..sse_writer import UNNAMED, PlainEvents, SseShape
from .errors import ApiError
from .requests import Sampling

LAST_CHUNK = b"[DONE]"
"""What ends a stream, in place of a chunk."""
_BEHIND, _END = b',"logprobs":null,"finish_reason":', b"}]}"
_encode = msgspec.json.Encoder().encode


class TokenLogprob(NamedTuple):
    """A token's own logprob and those of the likeliest ones, as text."""

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


class FunctionCall(NamedTuple):
    """A call of a tool. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


class Delta(NamedTuple):
    """What came of one choice since the last time. `first_call`: the index of the first of its
    calls among all of the choice."""

    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    calls: tuple[FunctionCall, ...] = ()
    first_call: int = 0


_TEXT_ALONE = Delta("")[2:]


class Usage(msgspec.Struct):
    """Tokens counted; a prompt counts once, however many answers it has."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """counted for the forms that show it"""

    def add(self, other: "Usage") -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cached_tokens += other.cached_tokens
        self.reasoning_tokens += other.reasoning_tokens

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass
class Answer:
    """How one request's answers are written: for chat or for completions."""

    answer_id: str
    created: int
    model: str
    request: Sampling | None
    """says what its client wants to see"""
    fingerprint: str | None
    """of what computes the answer: it changes with the model or its engines"""
    kind: Literal["chat", "completion"]
    shape: SseShape = UNNAMED
    counts_reasoning: bool = False
    last: bytes = LAST_CHUNK
    begun: set[int] = field(default_factory=set)
    """choices of which something was written"""
    _offsets: dict[int, int] = field(default_factory=dict)
    _begins: dict[int, bytes] = field(default_factory=dict)
    _logprobs_wanted: bool | None = None  # once it is known

    @property
    def with_logprobs(self) -> bool:
        wanted = self._logprobs_wanted
        if wanted is None:
            wanted = self.request is not None and self.request.logprobs_wanted is not None
            self._logprobs_wanted = wanted
        return wanted

    @property
    def with_usage(self) -> bool:
        options = None if self.request is None else self.request.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def usage_in_each(self) -> bool:
        options = None if self.request is None else self.request.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> bytes:
        """What came of one choice."""
        if usage is None and delta[2:] == _TEXT_ALONE and not self.with_logprobs:
            if self.kind == "completion" or (index in self.begun and delta.text):
                return self._text_chunk(index, delta.text, delta.finish_reason)
        choice: dict[str, Any]
        if self.kind == "chat":
            choice = {"index": index, "delta": self._chat_delta(index, delta)}
        else:
            choice = {"index": index, "text": delta.text}
        self._finish(choice, index, delta.logprobs or None, delta)
        chunk: dict[str, Any] = {**self._head(True), "choices": [choice]}
        if usage is not None:
            chunk["usage"] = usage.to_dict()
        return _encode(chunk)

    def plain_events(self, index: int) -> PlainEvents | None:
        if self.with_logprobs or self.usage_in_each:
            return None
        begin = self._text_begin(index)
        if self.kind == "completion":
            return PlainEvents(self.begun, begin, begin, begin + b'""', _BEHIND, _END)
        head = begin.removesuffix(b'"content":')
        first = head + b'"role":"assistant","content":'
        return PlainEvents(self.begun, first, begin, head, b"}" + _BEHIND, _END)

    def _text_begin(self, index: int) -> bytes:
        begin = self._begins.get(index)
        if begin is None:
            head = _encode(self._head(True))[:-1]
            name = b'"delta":{"content":' if self.kind == "chat" else b'"text":'
            begin = self._begins[index] = b'%b,"choices":[{"index":%d,%b' % (head, index, name)
        return begin

    def _text_chunk(self, index: int, text: str, finish_reason: str | None) -> bytes:
        """The same of text alone, as nearly all chunks are: only that is encoded."""
        behind = b"}" + _BEHIND if self.kind == "chat" else _BEHIND
        parts = self._text_begin(index), _encode(text), behind, _encode(finish_reason), _END
        return b"".join(parts)

    def _chat_delta(self, index: int, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {} if not delta.text else {"content": delta.text}
        if index not in self.begun:
            self.begun.add(index)
            fields = {"role": "assistant", "content": delta.text}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.calls:
            fields["tool_calls"] = [
                {"index": delta.first_call + nth, **_shown(call)}
                for nth, call in enumerate(delta.calls)
            ]
        return fields

    def ending(self, usage: Usage, nvext: dict[str, Any] | None) -> Iterable[bytes]:
        """Chunks after the last one of the last choice."""
        if nvext is not None:
            yield _encode({**self._head(True), "choices": [], "nvext": nvext})
        if self.with_usage:
            yield _encode({**self._head(True), "choices": [], "usage": usage.to_dict()})

    def failure(self, error: ApiError) -> bytes:
        """An error after the first chunk."""
        return _encode(error.body)

    def whole(
        self, choices: Sequence[Sequence[Delta]], usage: Usage, nvext: dict[str, Any] | None
    ) -> bytes:
        """The body of an answer that is not streamed, of each choice's deltas."""
        written = []
        for index, deltas in enumerate(choices):
            text = "".join(delta.text for delta in deltas)
            choice: dict[str, Any] = {"index": index}
            if self.kind == "chat":
                choice["message"] = _message(text, deltas)
            else:
                choice["text"] = text
            logprobs = tuple(each for delta in deltas for each in delta.logprobs)
            self._finish(choice, index, logprobs, deltas[-1])
            written.append(choice)
        body = {**self._head(False), "choices": written, "usage": usage.to_dict()}
        if nvext is not None:
            body["nvext"] = nvext
        return _encode(body)

    def _head(self, streamed: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.kind == "chat":
            kind = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _finish(
        self,
        choice: dict[str, Any],
        index: int,
        logprobs: tuple[TokenLogprob, ...] | None,
        last: Delta,
    ) -> None:
        shown = self.with_logprobs and logprobs is not None
        choice["logprobs"] = self._logprobs(index, logprobs or ()) if shown else None
        choice["finish_reason"] = last.finish_reason
        if last.stop_reason is not None:
            choice["stop_reason"] = last.stop_reason

    def _logprobs(self, index: int, logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
        if self.kind == "chat":
            return {
                "content": [
                    {
                        **_chat_logprob(each.token, each.logprob or 0.0),
                        "top_logprobs": [_chat_logprob(*pair) for pair in each.top],
                    }
                    for each in logprobs
                ]
            }
        offsets, at = [], self._offsets.get(index, 0)
        for each in logprobs:
            offsets.append(at)
            at += len(each.token)
        self._offsets[index] = at
        return {
            "tokens": [each.token for each in logprobs],
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [_by_text(each) for each in logprobs],
            "text_offset": offsets,
        }


def chat_events_middle(model: str, fingerprint: str) -> bytes:
    """What all answers of a model have in `chat_events`."""
    head = _encode({"model": model, "system_fingerprint": fingerprint})[1:-1]
    return b',%b,"choices":[{"index":0,"delta":{' % head


def chat_events(answer_id: str, created: int, middle: bytes) -> PlainEvents:
    """The `plain_events` of a chat's only choice, with what stands around them as written."""
    head = b'data: {"id":"%b","object":"chat.completion.chunk","created":%d%b' % (
        answer_id.encode(),
        created,
        middle,
    )
    return PlainEvents(
        set(),
        head + b'"role":"assistant","content":',
        head + b'"content":',
        head,
        b"}" + _BEHIND,
        _END + b"\n\n",
    )


def _message(text: str, deltas: Sequence[Delta]) -> dict[str, Any]:
    """The message of a whole chat answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    reasoning = "".join(delta.reasoning for delta in deltas)
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [_shown(call) for delta in deltas for call in delta.calls]
    if calls:
        message["tool_calls"] = calls
        message["content"] = text or None
    return message


def _shown(call: FunctionCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _by_text(found: TokenLogprob) -> dict[str, float] | None:
    """The likeliest tokens and the token itself; of those with the same text the likeliest counts.
    None of the first token of a prompt, which nothing comes before."""
    if found.logprob is None:
        return None
    likely = sorted((*found.top, (found.token, found.logprob)), key=_by_logprob)
    return dict(likely)


def _by_logprob(likely: tuple[str, float]) -> float:
    return likely[1]


def _chat_logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
