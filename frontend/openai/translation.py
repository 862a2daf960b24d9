"""What requests of other APIs have in common on their way to a ChatRequest.

An API's own fields are those of its Struct; names that it does not have are refused, as by the
servers that the API is of.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from ...base.errors import InvalidRequestError
from .errors import BAD_BODY, ApiError, api_error, bad_body
from .nvext import Extensions
from .requests import ChatRequest

T = TypeVar("T")
MOST_NAME = 200
"""Characters of a name that an error repeats."""
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_ENTRY = msgspec.json.Decoder(dict[str, Any])


class ChatFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of a chat that the other APIs' requests may have, too: passed on as they are."""

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    nvext: Extensions | None = None

    def chat(self, kind: type[ChatRequest] = ChatRequest, **more: Any) -> ChatRequest:
        """The chat with these fields and `more`, checked; `kind` is ChatApart where what it has of
        the conversation is apart."""
        passed = {name: getattr(self, name) for name in ChatFields.__struct_fields__}
        chat = kind(**{**passed, **more})
        chat.check()
        return chat

    def refuse(self, harmless: Mapping[str, Sequence[Any]]) -> None:
        """ApiError 400 for the first of these fields that has neither null nor one of the values
        given for it."""
        for name, values in harmless.items():
            value = getattr(self, name)
            if value is not None and not any(value == each for each in values):
                raise refused_field(name)


def refused_field(where: str, what: Any = "") -> ApiError:
    """400, with the name of what cannot be had: a field, or the kind of an entry."""
    shown = f" {what!r:.80}" if what else ""
    where = where[:MOST_NAME]
    return ApiError(400, f"{where}{shown} is not supported", param=where)


def wrong_field(where: str, what: str) -> ApiError:
    """400, with what this field must be."""
    return ApiError(400, f"{where} {what}", param=where)


def read_json(decode: Callable[[bytes], T], body: bytes | msgspec.Raw, where: str = "") -> T:
    """What a body, or the field `where`, has. ApiError 400 if it is not of its form."""
    try:
        return decode(bytes(body))
    except BAD_BODY as error:
        raise _of_form(error, where) from None


def read_entry(body: bytes | msgspec.Raw, where: str) -> dict[str, Any]:
    """An object."""
    return read_json(_ENTRY.decode, body, where)


def as_type(given: Any, kind: type[T], where: str) -> T:
    """The same, checked. ApiError 400 if it is not of this kind."""
    try:
        return msgspec.convert(given, kind)
    except BAD_BODY as error:
        raise _of_form(error, where) from None


def _of_form(error: Exception, where: str) -> ApiError:
    unknown = _UNKNOWN.search(str(error))
    found = bad_body(error)
    path = ".".join(each for each in (where, found.param) if each)
    if unknown is not None:
        return refused_field(".".join(each for each in (path, unknown[1]) if each))
    text = str(found) if not where else f"{where}: {found}"
    return ApiError(400, text, param=path or None)


@contextmanager
def errors_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that name a field of the chat name that of the request it was made of."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        found = api_error(error)
        if found.param is None or (name := names.get(found.param)) is None:
            raise
        text = str(found).replace(found.param, name)
        raise ApiError(found.status, text, param=name, code=found.code) from None


class Turns:
    """A conversation as messages of a chat, from what other APIs have of it."""

    def __init__(self, before: int = 0, calls: Container[str] = ()) -> None:
        """`before`: how many messages there are before these, which stay as they are; `calls`: ids
        of the calls in them."""
        self.messages: list[dict[str, Any]] = []
        self.calls: set[str] = set()
        """ids of calls in these"""
        self.ends_with_answer = False
        """whether the last that was given is the assistant's, where an API asks for that"""
        self._before, self._earlier = before, calls

    @property
    def is_open(self) -> bool:
        """Whether what comes may become part of the last message."""
        if not self.messages:
            return False
        role = self.messages[-1]["role"]
        return role == "assistant" or (role == "system" and self._is_first)

    @property
    def _is_first(self) -> bool:
        """Whether there is one message in all."""
        return not self._before and len(self.messages) == 1

    def add_system(self, text: str) -> None:
        """Those at the beginning become one: many templates take no second."""
        if self._is_first and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self.messages.append({"role": "system", "content": text})

    def add_user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    @property
    def answer(self) -> dict[str, Any]:
        """The assistant's turn at the end; a new one, if there is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]

    def new_answer(self) -> None:
        """What comes of the assistant belongs to a new turn."""
        self.messages.append({"role": "assistant", "content": ""})

    def add_reasoning(self, text: str) -> None:
        turn = self.answer
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def add_call(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self.answer.setdefault("tool_calls", []).append(call)
        self.calls.add(call_id)

    def add_result(self, where: str, call_id: str, text: str) -> None:
        """ApiError 400 if there is no such call before it."""
        if call_id not in self.calls and call_id not in self._earlier:
            raise wrong_field(where, f"{call_id!r:.80} is not the id of an earlier call")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
