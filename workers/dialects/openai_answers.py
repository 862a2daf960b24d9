"""Answers of engines that speak OpenAI's HTTP as those of trtllm.TrtllmService. Pure.

Nothing that they say is trusted: what is not of its type, or more than was asked for, is an error
of the engine's.
"""

from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from ...base.errors import UNREADABLE, WorkerError
from .failed_call import unimplemented
from .handoff import CONTEXT_ONLY, with_handoff
from .openai_errors import error_in
from .openai_requests import EngineKind
from .trtllm_answer import TokenLogprob, TrtllmAnswer, by_logprob, check_length, set_cached

_DONE = b"[DONE]"
_NO_IDS = "the engine returns no token ids of its answers: vLLM does from 0.10.2 on"
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class MissingTokens(Exception):
    """Tokens of an answer came as text alone: `text` is theirs and that of the one after them.

    Put what `text` is in tokens into `fill`, and go on with the message that it returns.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class AnswerReader(Protocol):
    """Reads one answer, streamed or whole."""

    answer: TrtllmAnswer
    done: bool
    """nothing more is to come"""

    def read(self, data: bytes) -> bytes | None:
        """The message that an event, or the body, makes; None if it has nothing for a client.

        WorkerError if it cannot be read; EngineCallError if it says that the request failed;
        MissingTokens."""
        ...

    def fill(self, tokens: list[int]) -> bytes | None: ...

    def complete(self) -> bytes:
        """The last message. WorkerError if nothing said why the answer ended."""
        ...


def reader_of(kind: EngineKind, request: Any) -> AnswerReader:
    if kind is EngineKind.LLAMA:
        return LlamaReader(request)
    return SglangReader(request) if kind is EngineKind.SGLANG else CompletionReader(request)


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    total_tokens: _Count = 0


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _PromptLogprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None
    disaggregated_params: dict[str, Any] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None
    disaggregated_params: dict[str, Any] | None = None
    error: Any = None


class CompletionReader:
    """An answer of /v1/completions, with `return_token_ids`."""

    def __init__(self, request: Any) -> None:
        self.answer = TrtllmAnswer(request, len(request.tokenized.input_token_ids))
        self.done = False
        self._max_tokens: int = request.max_tokens
        self._prompt: list[int] = []
        if request.output_config.prompt_logprobs > 0:
            self._prompt = list(request.tokenized.input_token_ids)
        self._reason = ""
        self._matched: int | str | None = None
        self._handoff: dict[str, Any] | None = None

    def read(self, data: bytes) -> bytes | None:
        if data.strip() == _DONE:
            self.done = True
            return None
        part = _decoded(data, _COMPLETION)
        if part.kv_transfer_params:
            self._handoff = {"kv_transfer_params": part.kv_transfer_params}
        if part.usage is not None and part.usage.prompt_tokens_details is not None:
            set_cached(self.answer, part.usage.prompt_tokens_details.cached_tokens)
        if not part.choices:  # usage alone
            return None
        if len(part.choices) > 1:
            raise WorkerError(f"its answer has {len(part.choices)} choices")
        choice = part.choices[0]
        if (params := choice.disaggregated_params or part.disaggregated_params) is not None:
            goes_on = {**params, "request_type": "generation_only", "ctx_usage": part.usage}
            self._handoff = {"disaggregated_params": goes_on}
        if choice.finish_reason:
            self._reason, self._matched = choice.finish_reason, choice.stop_reason
        if choice.token_ids is None and choice.text:
            raise unimplemented(_NO_IDS)
        if choice.prompt_logprobs is not None and self._prompt:
            self.answer.prompt_logprobs = _prompt_logprobs(self._prompt, choice.prompt_logprobs)
        tokens = choice.token_ids or []
        check_length(self.answer.completion_tokens + len(tokens), self._max_tokens)
        return self.answer.add(tokens, _named_logprobs(choice.logprobs))

    def fill(self, tokens: list[int]) -> bytes | None:
        raise AssertionError("answers of this engine have the ids of all tokens")

    def complete(self) -> bytes:
        if not self._reason:
            raise WorkerError("its answer ended without a reason")
        message = self.answer.complete(self._reason, self._matched)
        if self._handoff is None:
            return message
        return with_handoff(message, msgspec.json.encode(self._handoff))


class _Likely(msgspec.Struct):
    id: TokenId
    logprob: float


class _Probability(msgspec.Struct):
    id: TokenId
    logprob: float
    top_logprobs: list[_Likely] = []


class _Timings(msgspec.Struct):
    cache_n: _Count | None = None


class _LlamaPart(msgspec.Struct):
    content: str = ""
    tokens: list[TokenId] = []
    stop: bool = False
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: _Count = 0
    timings: _Timings | None = None
    cache_n: _Count | None = msgspec.field(default=None, name="timings/cache_n")
    completion_probabilities: list[_Probability] = []
    error: Any = None


class LlamaReader:
    """An answer of llama.cpp's /completion, with `return_tokens`.

    Its stream keeps a character back until it is whole, and tells the id of the last token of one
    alone: `tokens_predicted` shows that others are missing.
    """

    _REASONS = {"eos": "stop", "word": "stop", "limit": "length"}

    def __init__(self, request: Any) -> None:
        self.answer = TrtllmAnswer(request, len(request.tokenized.input_token_ids))
        self.done = False
        self._streaming: bool = request.streaming
        self._max_tokens: int = request.max_tokens
        self._received = 0  # tokens of the engine's count whose ids, or text, we have
        self._part = _LlamaPart()

    def read(self, data: bytes) -> bytes | None:
        part = self._part = _decoded(data, _LLAMA)
        set_cached(self.answer, part.cache_n if part.timings is None else part.timings.cache_n)
        self.done = part.stop
        received = self._received + len(part.tokens)
        check_length(max(received, part.tokens_predicted), self._max_tokens)
        if part.content and not part.tokens and not (part.stop and self._streaming):
            raise unimplemented(_NO_IDS)
        if part.content and part.tokens and part.tokens_predicted > received:
            raise MissingTokens(part.content)
        self._received = received
        return self.answer.add(part.tokens, self._logprobs())

    def fill(self, tokens: list[int]) -> bytes | None:
        """`tokens` say the text of the message in hand. It may begin with text whose tokens were
        sent before, kept back since it could have become a stop string."""
        part = self._part
        missing, self._received = part.tokens_predicted - self._received, part.tokens_predicted
        ends_alike = list(tokens[-len(part.tokens) :]) == part.tokens
        found = tokens[-missing:] if ends_alike else tokens
        check_length(self.answer.completion_tokens + len(found), self._max_tokens)
        return self.answer.add(found, self._logprobs())

    def complete(self) -> bytes:
        part = self._part
        if not self.done:
            raise WorkerError("its answer ended without a reason")
        reason = self._REASONS.get(part.stop_type, part.stop_type or "unknown")
        return self.answer.complete(reason, part.stopping_word)

    def _logprobs(self) -> list[TokenLogprob]:
        return [
            TokenLogprob(
                each.id, each.logprob, [(top.id, top.logprob) for top in each.top_logprobs]
            )
            for each in self._part.completion_probabilities
        ]


class _Ended(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str = ""


class _Meta(msgspec.Struct):
    completion_tokens: _Count = 0
    cached_tokens: _Count | None = None
    finish_reason: _Ended | None = None
    output_token_logprobs: list[tuple[float, TokenId, str | None]] = []
    output_top_logprobs: list[list[tuple[float, TokenId, str | None]] | None] = []


class _SglangPart(msgspec.Struct):
    output_ids: list[TokenId] = []
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    error: Any = None


class SglangReader:
    """An answer of SGLang's /generate. A part of a stream has all tokens so far, or, where the
    engine was started so, those that are new: which, follows from how many there are in all."""

    def __init__(self, request: Any) -> None:
        self.answer = TrtllmAnswer(request, len(request.tokenized.input_token_ids))
        self.done = False
        self._max_tokens: int = request.max_tokens
        # Of a prompt that is handed over, nothing says why the answer ended.
        self._reason = "length" if request.disaggregated_params.request_type == CONTEXT_ONLY else ""
        self._matched: int | str | None = None

    def read(self, data: bytes) -> bytes | None:
        if data.strip() == _DONE:
            self.done = True
            return None
        part = _decoded(data, _SGLANG)
        meta = part.meta_info
        set_cached(self.answer, meta.cached_tokens)
        if (ended := meta.finish_reason) is not None:
            if ended.type == "abort":
                raise WorkerError(f"it aborted the request: {ended.message}")
            self._reason = ended.type
            self._matched = None if isinstance(ended.matched, list) else ended.matched
        new = max(0, meta.completion_tokens - self.answer.completion_tokens)
        if new > len(part.output_ids):
            raise WorkerError("its answer has fewer token ids than tokens")
        check_length(self.answer.completion_tokens + new, self._max_tokens)
        if not new:
            return None
        tops = meta.output_top_logprobs[-new:] or [None] * new
        logprobs = [
            TokenLogprob(token, value, [(each, likely) for likely, each, _ in top or ()])
            for (value, token, _), top in zip(meta.output_token_logprobs[-new:], tops, strict=False)
        ]
        return self.answer.add(part.output_ids[-new:], logprobs)

    def fill(self, tokens: list[int]) -> bytes | None:
        raise AssertionError("answers of this engine have the ids of all tokens")

    def complete(self) -> bytes:
        if not self._reason:
            raise WorkerError("its answer ended without a reason")
        return self.answer.complete(self._reason, self._matched)


_Part = TypeVar("_Part", _Completion, _LlamaPart, _SglangPart)
_COMPLETION = msgspec.json.Decoder(_Completion)
_SGLANG = msgspec.json.Decoder(_SglangPart)
_LLAMA = msgspec.json.Decoder(_LlamaPart)


def _decoded(data: bytes, decoder: "msgspec.json.Decoder[_Part]") -> _Part:
    try:
        part = decoder.decode(data)
    except UNREADABLE as error:
        raise WorkerError(f"its answer cannot be read: {error}") from None
    if part.error is not None:
        raise error_in(part.error)
    return part


def _named_logprobs(reported: _Logprobs | None) -> list[TokenLogprob]:
    """Logprobs whose tokens are named by their ids; those that are not are left out."""
    if reported is None:
        return []
    tops = reported.top_logprobs or [None] * len(reported.tokens)
    return [
        TokenLogprob(
            token_id,
            logprob,
            [
                (top_id, value)
                for name, value in (top or {}).items()
                if (top_id := _id_in(name)) is not None
            ],
        )
        for name, logprob, top in zip(reported.tokens, reported.token_logprobs, tops, strict=False)
        if (token_id := _id_in(name)) is not None and logprob is not None
    ]


def _prompt_logprobs(
    prompt: list[int], reported: list[dict[str, _PromptLogprob] | None]
) -> list[TokenLogprob]:
    """Of each token of the prompt, with its own among the likeliest. WorkerError if a token's is
    missing."""
    found = []
    for token, entries in zip(prompt, reported, strict=False):
        if entries is None:
            found.append(TokenLogprob(token, 0.0))
            continue
        own = entries.get(str(token))
        if own is None:
            raise WorkerError(f"its answer has no logprob of the prompt's token {token}")
        likely = [
            (int(name), entry.logprob)
            for name, entry in entries.items()
            if name.isdecimal() and len(name) <= 10 and int(name) < 2**32
        ]
        found.append(TokenLogprob(token, own.logprob, sorted(likely, key=by_logprob)))
    return found


def _id_in(name: str) -> int | None:
    """The id in token_id:ID."""
    number = name.removeprefix("token_id:")
    fits = number != name and number.isdecimal() and len(number) <= 10 and int(number) < 2**32
    return int(number) if fits else None
