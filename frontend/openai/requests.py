"""Requests to /v1/completions and /v1/chat/completions: their fields, and what is not allowed.

Fields and ranges are OpenAI's, with the extensions of vLLM and Dynamo that an engine of
trtllm.TrtllmService takes. What is known and cannot be had is refused, never ignored;
unknown fields are ignored, as clients add some of their own.
"""

from collections.abc import Iterable, Sized
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from .errors import BAD_BODY, ApiError, bad_body
from .guides import GUIDING, Guide, ResponseFormat, StructuredOutputs, guide_of
from .nvext import Extensions
from .refused_fields import RefusedFields
from .tools import NO_TOOLS, ToolChoice, tool_choice_of

MOST_CHOICES = 128
MOST_STOPS = 32
MOST_STOP_CHARS = 4096
"""Of all stop strings: what is held back of an answer is compared with each beginning of them."""
MOST_BAD_WORDS = 128
MOST_LOGPROBS = 20
MOST_IDS = 4096
"""Of stop_token_ids, and of logit_bias."""
MOST_MESSAGES = 4096
MOST_PARTS = 4096
"""Of the content of one message."""
MOST_CALLS = 1024
"""Of tools in one message."""
MOST_VARIABLES = 256
"""Of a chat template."""
MOST_BIAS = 100
_UINT64 = 1 << 64

StopEntry: TypeAlias = str | int


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(RefusedFields, kw_only=True, dict=True):
    """What both kinds of request have. None: the engine's own choice."""

    prompt_field: ClassVar[str] = "prompt"
    """where its prompt is"""
    model: str
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | int | list[StopEntry] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    best_of: int | None = None
    cache_salt: str | None = None
    nvext: Extensions | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_stream(self) -> bool:
        return bool(self.stream)

    @property
    def output_limit(self) -> int | None:
        """Most tokens of an answer, if the request says."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    @property
    def scores_prompt(self) -> bool:
        """Whether the logprobs of the prompt's tokens are wanted, too."""
        return False

    @property
    def least_tokens(self) -> int:
        """Of an answer."""
        return 1

    @property
    def limit_field(self) -> str:
        """The field that says so."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        given = self.stop if isinstance(self.stop, list) else [self.stop]
        return [each for each in given if isinstance(each, str) and each]

    @property
    def stop_ids(self) -> list[int]:
        if self.stop is None:
            return self.stop_token_ids or []
        given = self.stop if isinstance(self.stop, list) else [self.stop]
        return [*(self.stop_token_ids or ()), *(each for each in given if isinstance(each, int))]

    @property
    def logprobs_wanted(self) -> int | None:
        """How many alternatives of each token are wanted beside its own logprob; None: neither."""
        raise NotImplementedError

    def check(self) -> None:
        """ApiError 400 for the first field out of its range."""
        for value, (field, low, high) in zip(_ranged(self), _RANGES, strict=True):
            if value is not None and not low <= value <= high:
                if value == 0 == self.least_tokens and field == self.limit_field:
                    continue
                least = 0 if field == self.limit_field and self.least_tokens == 0 else low
                raise ApiError(400, f"{field} must be in {least}..{high}", param=field)
        if self.top_p is not None and not self.top_p > 0:
            raise ApiError(400, "top_p must be greater than 0", param="top_p")
        if self.repetition_penalty is not None and not self.repetition_penalty > 0:
            text = "repetition_penalty must be greater than 0"
            raise ApiError(400, text, param="repetition_penalty")
        if self.stop is not None or self.stop_token_ids:
            self._check_stops()
        if self.choices > 1 and self.temperature == 0:
            text = "n above 1 needs a temperature above 0: all answers would be the same"
            raise ApiError(400, text, param="n")
        if self.bad_words is not None and (
            len(self.bad_words) > MOST_BAD_WORDS or not all(self.bad_words)
        ):
            text = f"bad_words must have at most {MOST_BAD_WORDS} texts, none of them empty"
            raise ApiError(400, text, param="bad_words")
        if self.logit_bias:
            check_count("logit_bias", self.logit_bias, MOST_IDS)
            _ = self.biases
        if self.best_of not in (None, 1, self.choices):
            raise ApiError(400, "best_of other than n is not supported", param="best_of")
        if self.nvext is not None:
            self.nvext.check()
        if _refusable(self) != _NOTHING:
            self.check_refused()
        if not self.is_unguided:
            _ = self.guide

    def _check_stops(self) -> None:
        if isinstance(self.stop, list) and len(self.stop) > MOST_STOPS:
            raise ApiError(400, f"stop has more than {MOST_STOPS} entries", param="stop")
        if sum(map(len, self.stop_strings)) > MOST_STOP_CHARS:
            text = f"stop has more than {MOST_STOP_CHARS} characters"
            raise ApiError(400, text, param="stop")
        check_count("stop_token_ids", self.stop_token_ids, MOST_IDS)
        if (wrong := first_beyond(self.stop_ids)) is not None:
            field = "stop_token_ids" if wrong in (self.stop_token_ids or ()) else "stop"
            raise ApiError(400, f"{field}: {wrong} is no token id", param=field)

    @property
    def is_unguided(self) -> bool:
        """Whether no field asks for answers that are held to something."""
        return _guiding(self) == _UNGUIDED

    @cached_property
    def biases(self) -> dict[int, float]:
        """What is added to the logits of tokens, by id. ApiError 400 for what is no id or bias."""
        found = {}
        for name, bias in (self.logit_bias or {}).items():
            if not (name.isascii() and name.isdecimal() and len(name) <= 10):
                raise ApiError(400, f"logit_bias: {name!r:.80} is no token id", param="logit_bias")
            if not -MOST_BIAS <= bias <= MOST_BIAS:
                text = f"logit_bias must be in {-MOST_BIAS}..{MOST_BIAS}"
                raise ApiError(400, text, param="logit_bias")
            found[int(name)] = bias
        return found

    @cached_property
    def guide(self) -> Guide | None:
        """What the answer is held to, worked out once. ApiError 400 if it is none."""
        return None if self.is_unguided else guide_of(self)


_guiding = attrgetter(*GUIDING)
_UNGUIDED = (None,) * len(GUIDING)
_refusable = attrgetter(*RefusedFields.__struct_fields__)
_NOTHING = (None,) * len(RefusedFields.__struct_fields__)
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, (1 << 31) - 1),
    ("max_completion_tokens", 1, (1 << 31) - 1),
    ("min_tokens", 0, (1 << 31) - 1),
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("top_k", -1, (1 << 31) - 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, 2),
    ("seed", -(1 << 63), _UINT64 - 1),
    ("n", 1, MOST_CHOICES),
)
_ranged = attrgetter(*(field for field, _, _ in _RANGES))


class CompletionRequest(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: msgspec.Raw
    """a text, token ids, or a list of either"""
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def logprobs_wanted(self) -> int | None:
        return self.logprobs

    @property
    def scores_prompt(self) -> bool:
        return bool(self.echo) and self.logprobs is not None

    @property
    def least_tokens(self) -> int:
        return 0 if self.echo else 1

    def check(self) -> None:
        super().check()
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise ApiError(400, f"logprobs must be in 0..{MOST_LOGPROBS}", param="logprobs")
        if self.suffix:
            raise ApiError(400, "suffix is not supported", param="suffix")


class ChatRequest(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None

    prompt_field: ClassVar[str] = "messages"

    @property
    def logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        self._check_messages()
        if self.chat_template_kwargs or self.chat_template_args:
            self._check_variables()
        if self.top_logprobs is not None:
            if not 0 <= self.top_logprobs <= MOST_LOGPROBS:
                text = f"top_logprobs must be in 0..{MOST_LOGPROBS}"
                raise ApiError(400, text, param="top_logprobs")
            if not self.logprobs:
                raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
        if self.tools or self.tool_choice is not None:
            _ = self.tools_asked

    def _check_messages(self) -> None:
        if not self.messages:
            raise ApiError(400, "messages is empty", param="messages")
        check_messages(self.messages)

    def _check_variables(self) -> None:
        for field in ("chat_template_kwargs", "chat_template_args"):
            given = getattr(self, field)
            check_count(field, given, MOST_VARIABLES)
            if given and "messages" in given:
                raise ApiError(400, f"{field} must not have messages", param=field)

    @property
    def is_unguided(self) -> bool:
        # Tools that must be called are a guide, too.
        return not self.tools and self.tool_choice is None and _guiding(self) == _UNGUIDED

    @cached_property
    def tools_asked(self) -> ToolChoice:
        """Worked out once. ApiError 400 if it makes no sense."""
        if not self.tools and self.tool_choice is None:
            return NO_TOOLS
        single = self.parallel_tool_calls is False
        return tool_choice_of(self.tools, self.tool_choice)._replace(single=single)


class ChatApart(ChatRequest, kw_only=True):
    """One whose messages are apart: here it has an empty list of them."""

    def _check_messages(self) -> None:
        pass


class _ChatInPieces(ChatRequest, kw_only=True):
    """As it comes: messages and tools are decoded one by one, so that a thread that reads a large
    body leaves the interpreter to others between them."""

    messages: list[msgspec.Raw]  # type: ignore[assignment]
    tools: list[msgspec.Raw] | None = None  # type: ignore[assignment]


LONG_BODY = 16 << 10
"""Bytes of a body: a longer one is read off the event loop, and a chat then in pieces."""
_KINDS = ChatRequest, ChatApart, CompletionRequest
_ENTRY = msgspec.json.Decoder(dict[str, Any])
_IN_PIECES = msgspec.json.Decoder(_ChatInPieces)
_DECODERS = {kind: msgspec.json.Decoder(kind) for kind in _KINDS}


def read_request(body: bytes, kind: type[ChatRequest | CompletionRequest]) -> Any:
    """A request of this kind, checked; ApiError 400 if it is none."""
    try:
        if kind is ChatRequest and len(body) > LONG_BODY:
            request: Sampling = _whole(_IN_PIECES.decode(body))
        else:
            request = _DECODERS[kind].decode(body)
    except BAD_BODY as error:
        raise bad_body(error) from None
    request.check()
    return request


def _whole(request: _ChatInPieces) -> ChatRequest:
    for field in ("messages", "tools"):
        setattr(request, field, _entries(field, getattr(request, field)))
    return request


def _entries(field: str, given: list[msgspec.Raw] | None) -> list[dict[str, Any]] | None:
    if given is None:
        return None
    found = []
    for at, each in enumerate(given):
        try:
            found.append(_ENTRY.decode(each))
        except msgspec.ValidationError as error:
            where = f"{field}[{at}]"
            raise ApiError(400, f"{where}: {error}", param=where) from None
    return found


def check_messages(messages: list[dict[str, Any]]) -> None:
    """ApiError 400 for the first that is no message of a chat."""
    check_count("messages", messages, MOST_MESSAGES)
    for at, message in enumerate(messages):
        _check_message(at, message)


def check_count(field: str, given: Sized | None, most: int) -> None:
    """ApiError 400, naming the field, if it has more entries."""
    if given is not None and len(given) > most:
        raise ApiError(400, f"{field} has more than {most} entries", param=field)


def first_beyond(ids: Iterable[int], end: int = 1 << 32) -> int | None:
    """The first of token ids that is none: below 0, or not below `end`."""
    try:
        found = np.asarray(ids, np.int64)
    except OverflowError:
        return next(each for each in ids if not 0 <= each < end)
    wrong = found[(found < 0) | (found >= end)]
    return int(wrong[0]) if len(wrong) else None


def _check_message(at: int, message: dict[str, Any]) -> None:
    where = f"messages[{at}]"
    if not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where}.role is missing", param=f"{where}.role")
    if (calls := message.get("tool_calls")) is not None:
        if not isinstance(calls, list):
            text = f"{where}.tool_calls is no list"
            raise ApiError(400, text, param=f"{where}.tool_calls")
        check_count(f"{where}.tool_calls", calls, MOST_CALLS)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content is no text", param=f"{where}.content")
    check_count(f"{where}.content", content, MOST_PARTS)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            text = f"{where}.content has a part that is no text: {kind!r} is not supported"
            raise ApiError(400, text, param=f"{where}.content")
