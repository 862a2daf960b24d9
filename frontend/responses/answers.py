"""Answers as OpenAI's Responses: items of output, whole or as typed events."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...workers.finish_reasons import ABORTED
from ..openai import ApiError, ChatRequest, Delta, FunctionCall, TokenLogprob, Usage
from ..sse_writer import NAMED, named_event
from .items import sealed
from .requests import ResponsesRequest

REASONING, MESSAGE = "reasoning", "message"
_PARTS = {REASONING: "reasoning_text", MESSAGE: "output_text"}
_PREFIXES = {REASONING: "rs", MESSAGE: "msg"}
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_encode = msgspec.json.Encoder().encode


class ResponsesAnswer:
    """The answer to one request. A whole one is read as its stream is, whose events are dropped."""

    shape = NAMED
    usage_in_each = False
    with_usage = counts_reasoning = True
    last = b""

    def __init__(
        self,
        asked: ResponsesRequest,
        answer_id: str,
        created: int,
        model: str,
        chat: ChatRequest,
        fingerprint: str | None,
    ) -> None:
        """Of the arguments that every form gets, this API shows no fingerprint."""
        self._asked = asked
        self._unique = answer_id.partition("_")[2]
        self._same = _same_fields(asked, answer_id, created, model)
        self._numbers = 0  # of events
        self._items: list[dict[str, Any]] = []
        self._open: str | None = None  # the kind of the last item, while more of it may come
        self._text: list[str] = []  # of that item
        self._logprobs: list[TokenLogprob] = []
        self._new_logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> bytes:
        """What came of the one choice."""
        events: list[bytes] = []
        if not self._numbers:
            for name in ("response.created", "response.in_progress"):
                events.append(self._event(name, response=self._response("in_progress")))
        self._new_logprobs += delta.logprobs
        if delta.reasoning:
            self._add_text(events, REASONING, delta.reasoning)
        if delta.text:
            self._add_text(events, MESSAGE, delta.text)
        for call in delta.calls:
            self._add_call(events, call)
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            if not self._items:
                self._begin(events, MESSAGE)
            whole = delta.finish_reason in ("stop", "tool_calls")
            self._end(events, "completed" if whole else "incomplete")
        return b"".join(events)

    def plain_events(self, index: int) -> None:
        return None

    def ending(self, usage: Usage, nvext: dict[str, Any] | None) -> Iterable[bytes]:
        """The last event."""
        response = self._last_response(usage, nvext)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> bytes:
        """The last event of an answer that broke off."""
        events: list[bytes] = []
        self._end(events, "incomplete")
        code = _ERROR_CODES.get(error.status, "server_error")
        failed = {"code": code, "message": error.body["error"]["message"]}
        response = {**self._response("failed"), "error": failed}
        events.append(self._event("response.failed", response=response))
        return b"".join(events)

    def whole(
        self, choices: Sequence[Sequence[Delta]], usage: Usage, nvext: dict[str, Any] | None
    ) -> bytes:
        for delta in choices[0]:
            self.chunk(0, delta)
        return _encode(self._last_response(usage, nvext))

    # The response

    def _response(self, status: str) -> dict[str, Any]:
        return {**self._same, "status": status, "output": self._items}

    def _last_response(self, usage: Usage, nvext: dict[str, Any] | None) -> dict[str, Any]:
        more: dict[str, Any] = {"usage": _usage(usage)}
        status = "completed"
        if (incomplete := _INCOMPLETE.get(self._finish_reason or "")) is not None:
            status, more["incomplete_details"] = "incomplete", {"reason": incomplete}
        elif self._finish_reason in (None, ABORTED):
            status = "failed"
            more["error"] = {
                "code": "server_error",
                "message": "the engine ended the answer before its end: send the request again",
            }
        else:
            more["completed_at"] = int(time.time())
        if nvext is not None:
            more["nvext"] = nvext
        return {**self._response(status), **more}

    # Its items

    def _add_text(self, events: list[bytes], kind: str, text: str) -> None:
        if self._open != kind:
            self._end(events, "completed")
            self._begin(events, kind)
        self._text.append(text)
        more: dict[str, Any] = {}
        if kind == MESSAGE:
            more["logprobs"] = [_shown(each) for each in self._new_logprobs]
            self._logprobs += self._new_logprobs
            self._new_logprobs = []
        events.append(self._event(f"response.{_PARTS[kind]}.delta", **self._at, delta=text, **more))

    def _begin(self, events: list[bytes], kind: str) -> None:
        self._open, self._text, self._logprobs = kind, [], []
        more: dict[str, Any] = {"summary": []} if kind == REASONING else {"role": "assistant"}
        item = {"id": self._item_id(_PREFIXES[kind]), "type": kind, "status": "in_progress"}
        self._items.append({**item, **more, "content": []})
        events.append(self._item_event("added"))
        part = self._part("")
        events.append(self._event("response.content_part.added", **self._at, part=part))

    def _end(self, events: list[bytes], status: str) -> None:
        """End the item that is open, if one is."""
        if (kind := self._open) is None:
            return
        text = "".join(self._text)
        self._logprobs += self._new_logprobs if kind == MESSAGE else ()
        part, at = self._part(text), self._at
        more = {"logprobs": part["logprobs"]} if kind == MESSAGE else {}
        events.append(self._event(f"response.{_PARTS[kind]}.done", **at, text=text, **more))
        events.append(self._event("response.content_part.done", **at, part=part))
        item = self._items[-1]
        item |= {"status": status, "content": [part]}
        if kind == REASONING and self._asked.seals_reasoning:
            item["encrypted_content"] = sealed(text)
        events.append(self._item_event("done"))
        self._open = None

    def _add_call(self, events: list[bytes], call: FunctionCall) -> None:
        self._end(events, "completed")
        item: dict[str, Any] = {
            "id": self._item_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": "",
        }
        self._items.append(item)
        events.append(self._item_event("added"))
        at = {"item_id": item["id"], "output_index": len(self._items) - 1}
        name, text = "response.function_call_arguments", call.arguments
        events.append(self._event(f"{name}.delta", **at, delta=text))
        events.append(self._event(f"{name}.done", **at, name=call.name, arguments=text))
        item |= {"status": "completed", "arguments": text}
        events.append(self._item_event("done"))

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._unique}{len(self._items):04x}"

    def _part(self, text: str) -> dict[str, Any]:
        assert self._open is not None
        part: dict[str, Any] = {"type": _PARTS[self._open], "text": text}
        if self._open == MESSAGE:
            part |= {"annotations": [], "logprobs": [_shown(each) for each in self._logprobs]}
        return part

    # Events

    @property
    def _at(self) -> dict[str, Any]:
        """Where the part that is open stands."""
        number = len(self._items) - 1
        return {"item_id": self._items[-1]["id"], "output_index": number, "content_index": 0}

    def _item_event(self, what: str) -> bytes:
        number = len(self._items) - 1
        return self._event(
            f"response.output_item.{what}", output_index=number, item=self._items[-1]
        )

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number = self._numbers
        self._numbers += 1
        data = _encode({"type": name, "sequence_number": number, **fields})
        return named_event(name.encode(), data)


def _same_fields(
    asked: ResponsesRequest, answer_id: str, created: int, model: str
) -> dict[str, Any]:
    """What stands in each state of the response."""
    choice = "auto" if asked.tool_choice is None else asked.tool_choice
    form: Any = {"type": "text"}
    if asked.text is not None and asked.text.format is not None:
        form = asked.text.format
        form = {name: value for name in form.__struct_fields__ if (value := getattr(form, name))}
    effort = None if asked.reasoning is None else asked.reasoning.effort
    same = {
        "id": answer_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "model": model,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": asked.temperature,
        "text": {"format": form},
        "tool_choice": choice,
        "tools": msgspec.Raw(asked.shown_tools),
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": asked.user,
    }
    return {name: msgspec.Raw(_encode(value)) for name, value in same.items()}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _shown(each: TokenLogprob) -> dict[str, Any]:
    return {
        **_logprob(each.token, each.logprob or 0.0),
        "top_logprobs": [_logprob(*pair) for pair in each.top],
    }


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
