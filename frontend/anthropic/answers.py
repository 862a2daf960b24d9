"""Answers as Anthropic's Messages: blocks of content, whole or as events."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...workers.finish_reasons import ABORTED
from ..openai import ApiError, ChatRequest, Delta, FunctionCall, Usage
from ..sse_writer import NAMED, named_event
from .errors import error_body

THINKING, TEXT = "thinking", "text"
_PING = named_event(b"ping", b'{"type":"ping"}')
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


class MessagesAnswer:
    """The answer to one request. A whole one is read as its stream is, whose events are dropped."""

    shape = NAMED._replace(keep_alive=_PING)
    usage_in_each = True
    with_usage = counts_reasoning = True
    last = b""

    def __init__(
        self, answer_id: str, created: int, model: str, chat: ChatRequest, fingerprint: str | None
    ) -> None:
        """Of the arguments that every form gets, this API shows no time and no fingerprint."""
        self._id, self._model = answer_id, model
        self._stops = frozenset(chat.stop_strings)
        self._begun = False
        self._blocks: list[dict[str, Any]] = []
        self._open: str | None = None  # the kind of the last block, while more of it may come
        self._text: list[str] = []  # of that block
        self._finished = Delta("")

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> bytes:
        """What came of the one choice."""
        events: list[bytes] = []
        if not self._begun:
            self._begun = True
            message = self._message(usage or Usage())
            events.append(_event("message_start", message=message))
        if delta.reasoning:
            self._add_text(events, THINKING, delta.reasoning)
        if delta.text:
            self._add_text(events, TEXT, delta.text)
        for call in delta.calls:
            self._add_call(events, call)
        if delta.finish_reason is not None:
            self._finished = delta
            self._end(events)
        return b"".join(events)

    def plain_events(self, index: int) -> None:
        return None

    def ending(self, usage: Usage, nvext: dict[str, Any] | None) -> Iterable[bytes]:
        """The last events: why it stopped, and what it took."""
        reason, sequence = self._stopped()
        if reason is None:
            yield self.failure(_ended_early())
            return
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        more = {} if nvext is None else {"nvext": nvext}
        yield _event("message_delta", delta=delta, usage=_usage(usage), **more)
        yield _event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """The last event of an answer that broke off."""
        return named_event(b"error", _encode(error_body(error)))

    def whole(
        self, choices: Sequence[Sequence[Delta]], usage: Usage, nvext: dict[str, Any] | None
    ) -> bytes:
        """ApiError if the engine ended it early: this shape has no place to say so."""
        for delta in choices[0]:
            self.chunk(0, delta)
        reason, sequence = self._stopped()
        if reason is None:
            raise _ended_early()
        message = self._message(usage)
        message |= {"stop_reason": reason, "stop_sequence": sequence}
        return _encode(message if nvext is None else {**message, "nvext": nvext})

    def _message(self, usage: Usage) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _stopped(self) -> tuple[str | None, str | None]:
        """Why, and at which of the stop sequences; None: the engine ended it early. What this API
        has no word for, such as an engine's own, is the end of a turn."""
        reason, matched = self._finished.finish_reason, self._finished.stop_reason
        if reason == "stop" and isinstance(matched, str) and matched in self._stops:
            return "stop_sequence", matched
        if reason is None or reason == ABORTED:
            return None, None
        return _STOP_REASONS.get(reason, "end_turn"), None

    def _add_text(self, events: list[bytes], kind: str, text: str) -> None:
        if self._open != kind:
            self._end(events)
            self._open, self._text = kind, []
            signature = {"signature": ""} if kind == THINKING else {}
            self._begin(events, {"type": kind, kind: "", **signature})
        self._text.append(text)
        events.append(self._delta({"type": f"{kind}_delta", kind: text}))

    def _begin(self, events: list[bytes], block: dict[str, Any]) -> None:
        self._blocks.append(block)
        number = len(self._blocks) - 1
        events.append(_event("content_block_start", index=number, content_block=block))

    def _end(self, events: list[bytes]) -> None:
        """End the block that is open, if one is."""
        if (kind := self._open) is None:
            return
        block = self._blocks[-1]
        block[kind] = "".join(self._text)
        if kind == THINKING:
            # Clients send it back with the text, and may drop a block without one.
            block["signature"] = self._id
            events.append(self._delta({"type": "signature_delta", "signature": self._id}))
        self._stop(events)
        self._open = None

    def _stop(self, events: list[bytes]) -> None:
        events.append(_event("content_block_stop", index=len(self._blocks) - 1))

    def _add_call(self, events: list[bytes], call: FunctionCall) -> None:
        self._end(events)
        block: dict[str, Any] = {"type": "tool_use", "id": call.call_id, "name": call.name}
        self._begin(events, {**block, "input": {}})
        written = _object(call.arguments)
        events.append(self._delta({"type": "input_json_delta", "partial_json": written.decode()}))
        self._blocks[-1]["input"] = msgspec.Raw(written)
        self._stop(events)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)


def _ended_early() -> ApiError:
    return ApiError(500, "the engine ended the answer before its end: send the request again")


def _object(arguments: str) -> bytes:
    """Arguments of a call as the object that this shape wants; what is none stands in one."""
    try:
        _OBJECT.decode(arguments)
        return arguments.encode()
    except (msgspec.DecodeError, RecursionError):
        return _encode({"arguments": arguments})


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name.encode(), _encode({"type": name, **fields}))


def _usage(usage: Usage) -> dict[str, Any]:
    """What a prompt has beside its cached tokens is `input_tokens`."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
