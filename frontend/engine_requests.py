"""From an OpenAI request to requests of engines: its prompts as token ids, and one request for each
answer that is wanted.

Prompts come as conversations, as texts, or as token ids.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from msgspec import field

from ..base.errors import UNREADABLE, InvalidRequestError, StatusCode
from ..base.request_record import traced
from ..router.pairs import PairDecision
from ..router.policy import Decision
from ..router.prompt import Prompt
from ..server.dispatch import GenerateFacts, ReadRequest, RequestReader
from ..workers.dialects import encode_generate
from ..workers.failures import EngineCallError, Origin
from ..workers.trtllm_proto import pb
from .openai import (
    BAD_BODY,
    LONG_BODY,
    ApiError,
    ChatRequest,
    CompletionRequest,
    Guide,
    Sampling,
    Usage,
    api_error,
    first_beyond,
    read_request,
)
from .parsers import ChatOutput
from .processor import ChatTemplate, ModelText, Tenant

SomeRequest = TypeVar("SomeRequest", ChatRequest, CompletionRequest)
T = TypeVar("T")
Tokens = Sequence[int] | npt.NDArray[np.uint32]
"""Of a prompt."""
MOST_PROMPTS = 128
PASSED_ON = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Settings that an engine's request has under the same names."""
_passed_on = attrgetter(*PASSED_ON)
FEW, LONG_LIST = 32, 4096
"""Messages and numbers that are worked on at once: more of them go off the event
loop, in pieces of LONG_LIST numbers between which others have the interpreter."""
SECONDS_PER_BYTE = 1e-7
"""Of reading JSON and rendering a template."""
CALL_S, CHOICE_S, ANSWER_S, TOKEN_S = 0.0001, 5e-6, 0.0001, 2e-8
"""What it takes of the event loop to read a request, to note an answer that it asks for, to begin
that, and this for each token of its prompt."""
SMALL_S = 0.0001
"""What is less than this is done in the turn of the event loop in which a request is read."""
MOST_KEPT = 256
"""Sets of common settings whose serialized form is kept: clients ask for few."""


class TemplateFields(Protocol):
    """What a request to a chat says to the template beside its messages."""

    tools: list[dict[str, Any]] | None
    tool_choice: str | dict[str, Any] | None
    documents: list[dict[str, Any]] | None
    reasoning_effort: str | None
    chat_template_kwargs: dict[str, Any] | None
    chat_template_args: dict[str, Any] | None
    add_generation_prompt: bool | None


class Given(msgspec.Struct, frozen=True):
    """What a template gets beside messages."""

    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    prompted: bool = True


def given_by(request: TemplateFields | None) -> Given:
    """What a request gives it."""
    if request is None:
        return Given()
    variables = {**(request.chat_template_args or {}), **(request.chat_template_kwargs or {})}
    for name in ("documents", "reasoning_effort"):
        if (value := getattr(request, name)) is not None:
            variables[name] = value
    # Without its tools a model cannot call any, which is what "none" wants.
    tools = None if request.tool_choice == "none" else request.tools
    return Given(tools, variables, request.add_generation_prompt is not False)


class HashedPrompt(msgspec.Struct, frozen=True):
    """A prompt's tokens for engines, and for the router: hashed once, for all of its answers."""

    tokens: "npt.NDArray[np.uint32] | array[int]"
    prompt: Prompt
    packed: tuple[bytes, ...] = ()
    """those before `tokens`, as requests to engines have them"""
    largest: int = 0
    """of these"""


class Choice(msgspec.Struct):
    """One answer to one prompt."""

    index: int
    prompt: HashedPrompt
    max_tokens: int
    seed: int | None = None
    prefix: str = ""
    """shown before the answer: the prompt, where it is to be echoed"""
    usage: Usage = field(default_factory=Usage)
    decision: Decision | None = None
    prefill: Decision | None = None
    """where its prompt was computed, if not where it was generated"""
    pair: PairDecision | None = None
    """what both are a part of"""
    adapter: int | None = None
    """the LoRA adapter that computes it, as engines number it"""
    first_at: float | None = None
    """when its first text came, by the monotonic clock"""
    finish_reason: str | None = None
    """how it ended"""
    output: ChatOutput | None = None
    """finds reasoning and calls of tools in it"""
    guide: Guide | None = None
    """what the answer is held to"""
    bias: bytes = b""
    """what is added to the logits of tokens, as a field of an engine's request"""


class PromptReader:
    """Of one model. ApiError 400 for what is no prompt."""

    def __init__(self, text: ModelText, reader: RequestReader) -> None:
        self._text = text
        self._reader = reader

    async def request(self, body: bytes, kind: type[SomeRequest]) -> SomeRequest:
        """A request of this kind, read off the event loop if it is large."""
        found: SomeRequest
        if len(body) <= LONG_BODY:
            found = read_request(body, kind)
        else:
            found = await self.read_by(partial(read_request, kind=kind), body)
        return found

    async def read_by(self, read: Callable[[bytes], T], body: bytes) -> T:
        """What `read` makes of a body, off the event loop if it is large."""
        return await read_by(self._reader, read, body)

    async def as_json(self, lists: Sequence[Tokens | Sequence[float]]) -> list[bytes]:
        """Lists of numbers; long ones off the event loop."""
        work, count = partial(_as_json, lists), sum(map(len, lists))
        return await self._run(work, count * 8, is_long=count > LONG_LIST)

    async def guide(self, request: Sampling, size: int) -> Guide | None:
        """What each of its answers is held to. `size`: bytes of the body."""
        if request.is_unguided:
            return None
        return await self._run(partial(_guide, request), size)

    async def of_chat(self, request: ChatRequest, tenant: Tenant, size: int = 0) -> Tokens:
        """A conversation's prompt. `size`: bytes of the body. ApiError 400 for documents that the
        template would leave out of it."""
        if ids := _given_ids(request):
            return ids
        self._check_documents(request)
        return await self.render(request.messages, request, tenant, size)

    def given_to_template(self, request: ChatRequest) -> Given | None:
        """What a conversation's template gets beside its messages; None: it is not asked. ApiError
        400 as `of_chat`."""
        if _given_ids(request):
            return None
        self._check_documents(request)
        return given_by(request)

    def _check_documents(self, request: ChatRequest) -> None:
        template = self._text.template
        if request.documents and template is not None and "documents" not in template.variables:
            text = "the chat template of this model reads no documents: put them into a message"
            raise ApiError(400, text, param="documents")

    async def of_completion(
        self, request: CompletionRequest, tenant: Tenant, ids: Tokens | None = None
    ) -> list[Tokens]:
        """The prompts of a completion; `ids`: they were taken out of it."""
        given = _given_ids(request)
        if given is None and ids is not None:
            return [ids]
        return [given] if given else await self.read(request.prompt, "prompt", tenant)

    async def hashed(self, tokens: Tokens, adapter: int | None, salt: int | None) -> HashedPrompt:
        """For requests to this LoRA adapter, in this cache namespace. InvalidRequestError if it is
        longer than prompts may be."""
        made = tokens if isinstance(tokens, np.ndarray) else array("I", tokens)
        lora = None if adapter is None else str(adapter)
        namespace = None if salt is None else str(salt)
        return HashedPrompt(made, await self._reader.prompt(made, lora, namespace))

    async def render(
        self,
        messages: list[dict[str, Any]],
        request: TemplateFields | None,
        tenant: Tenant,
        size: int = 0,
    ) -> Tokens:
        """A conversation by the model's template; `request` has the template's other variables.
        `size`: bytes of the body. Large ones are rendered off the event loop."""
        template = self._text.template
        if template is None:
            raise ApiError(400, "this model has no chat template", param="messages")
        given = given_by(request)
        work = partial(_rendered, template, messages, given)
        many = len(messages) > FEW or len(given.tools or ()) > FEW or size > LONG_BODY
        with traced("template"):
            text = await self._run(work, size, is_long=many)
        # The template has written the special tokens itself.
        return await self.encoded(text, tenant, add_special_tokens=False)

    async def encoded(self, text: str, tenant: Tenant, *, add_special_tokens: bool) -> Tokens:
        """Token ids of a text. InvalidRequestError if it has more of them than prompts may have;
        where its length says so, before any are made."""
        self._check_characters(text)
        reader = self._reader
        most = reader.limits.max_prompt_tokens
        try:
            with traced("tokenizing"):
                return await self._text.encode(
                    text, tenant, add_special_tokens=add_special_tokens, most=most
                )
        except OverflowError as error:
            reader.check_length(*error.args)
            raise

    async def read(self, raw: msgspec.Raw, field: str, tenant: Tenant) -> list[Tokens]:
        """What a field of a body has: a text, token ids, or a list of either."""
        view = memoryview(raw)  # a text is not copied: 15 MB of it would hold the event loop
        if bytes(view[:1]) == b"[" and (given := bytes(view))[1:].lstrip()[:1].isdigit():
            return [await self._token_ids(given)]
        found = await self._run(partial(_entries, raw, field), len(view))
        for each in found[1:]:  # before the work on those that come before it
            if isinstance(each, str):
                self._check_characters(each)
        return [
            await self._text_ids(each, tenant) if isinstance(each, str) else each for each in found
        ]

    def _check_characters(self, text: str) -> None:
        """InvalidRequestError if a text of this length has more tokens than prompts may have."""
        characters = self._text.most_characters
        if characters is not None:
            self._reader.check_length(-(-len(text) // characters))

    async def _run(self, work: Callable[[], T], size: int, *, is_long: bool | None = None) -> T:
        return await _run(self._reader, work, size, is_long=is_long)

    async def _text_ids(self, text: str, tenant: Tenant) -> Tokens:
        return await self.encoded(text, tenant, add_special_tokens=True)

    async def _token_ids(self, raw: bytes) -> npt.NDArray[np.uint32]:
        try:
            tokens, _ = await self._reader.json_tokens(b'{"prompt":' + raw + b"}", b"prompt")
        except InvalidRequestError as error:
            code = api_error(error).code
            raise ApiError(400, str(error), param="prompt", code=code) from None
        return np.ascontiguousarray(tokens, np.uint32)


async def read_by(reader: RequestReader, read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` makes of a body, off the event loop if it is large."""
    return await _run(reader, partial(read, body), len(body))


async def _run(
    reader: RequestReader, work: Callable[[], T], size: int, *, is_long: bool | None = None
) -> T:
    """Work on this many bytes, off the event loop if that is long."""
    if not (size > LONG_BODY if is_long is None else is_long):
        return work()
    return await reader.off_loop.run(work, size=size, seconds=size * SECONDS_PER_BYTE)


def engine_request(
    request: Sampling,
    choice: Choice,
    request_id: str,
    salt: int | None = None,
    *,
    streaming: bool | None = None,
) -> ReadRequest:
    """The trtllm.GenerateRequest of one choice. `salt` is its cache namespace; `streaming`: each
    token is wanted as it comes. None: as the client wants its own."""
    streaming = request.wants_stream if streaming is None else streaming
    settings = engine_settings(request, choice, salt, streaming)
    longest = max(1, choice.max_tokens)  # engines make one token at least
    return written_request(request_id, longest, settings, choice.prompt, streaming)


def written_request(
    request_id: str, max_tokens: int, settings: bytes, hashed: HashedPrompt, streaming: bool
) -> ReadRequest:
    """The same of its parts; `settings` are all other fields, serialized."""
    body, largest = encode_generate(request_id, max_tokens, settings, hashed.tokens, hashed.packed)
    largest = max(largest, hashed.largest)
    facts = GenerateFacts(request_id, hashed.prompt, largest, max_tokens, 1, streaming)
    return ReadRequest(body, facts)


def engine_settings(request: Sampling, choice: Choice, salt: int | None, streaming: bool) -> bytes:
    """All fields of the same but the prompt and those that differ in each request."""
    key = None
    if salt is None and choice.seed is None and choice.guide is None:
        key = _common_settings(request, choice.adapter, streaming)
    settings = None if key is None else _kept.get(key)
    if settings is None:
        settings = _settings(request, choice, salt, streaming)
        if key is not None:
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[key] = settings
    return settings


_kept: dict[tuple[Any, ...], bytes] = {}


def kept_settings() -> int:
    """How many sets of settings are kept."""
    return len(_kept)


def _common_settings(
    request: Sampling, adapter: int | None, streaming: bool
) -> tuple[Any, ...] | None:
    """All that `_settings` writes of a request that asks for nothing unusual; None: it does."""
    if (
        request.stop is not None
        or request.stop_token_ids
        or request.bad_words
        or request.nvext is not None
        or request.logit_bias
        or request.logprobs_wanted is not None
    ):
        return None
    return (
        streaming,
        request.ignore_eos,
        request.include_stop_str_in_output,
        request.min_tokens,
        request.top_k,
        adapter,
        *_passed_on(request),
    )


def _settings(request: Sampling, choice: Choice, salt: int | None, streaming: bool) -> bytes:
    message = pb.GenerateRequest(
        streaming=streaming,
        stop=request.stop_strings,
        stop_token_ids=request.stop_ids,
        bad=request.bad_words,
        ignore_eos=bool(request.ignore_eos),
        include_stop_token_in_output=bool(request.include_stop_str_in_output),
    )
    if choice.adapter is not None:
        message.lora_config.task_id = choice.adapter
    sampling = message.sampling_config
    sampling.beam_width = sampling.num_return_sequences = 1
    sampling.min_tokens = request.min_tokens or 0
    for name in PASSED_ON:
        value = getattr(request, name)
        if value is not None:
            setattr(sampling, name, value)
    if request.top_k is not None and request.top_k > 0:  # both 0 and -1 mean all
        sampling.top_k = request.top_k
    if request.nvext is not None and request.nvext.greed_sampling:
        sampling.top_k = 1
    if salt is not None:
        message.cache_salt_id = salt
    if choice.seed is not None:
        sampling.seed = choice.seed
    wanted = request.logprobs_wanted
    if wanted is not None:
        message.output_config.logprobs = max(1, wanted)
        if request.scores_prompt:
            message.output_config.prompt_logprobs = max(1, wanted)
    guide = choice.guide
    if guide is not None:
        guided = message.guided_decoding
        guided.guide_type = getattr(pb.GuidedDecodingParams, f"GUIDE_TYPE_{guide.kind}")
        guided.guide = guide.guide
    body: bytes = message.SerializeToString()
    return body + choice.bias


def _guide(request: Sampling) -> Guide | None:
    guide = request.guide
    if not isinstance(request, ChatRequest) or not (asked := request.tools_asked).forced:
        return guide
    if guide is not None or request.response_format is not None:
        field = "response_format" if guide is None else guide.field
        text = f"{field} and a tool_choice that forces calls exclude each other"
        raise ApiError(400, text, param=field)
    return asked.guide


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]], given: Given) -> str:
    return template.render(
        with_read_arguments(messages),
        tools=given.tools,
        variables=given.variables,
        add_generation_prompt=given.prompted,
    )


def _as_json(lists: Sequence[Tokens | Sequence[float]]) -> list[bytes]:
    def written(part: Tokens | Sequence[float]) -> bytes:
        found = part.tolist() if isinstance(part, np.ndarray) else list(part)
        return msgspec.json.encode(found)[1:-1]

    return [
        b"[%b]"
        % b",".join(written(each[at : at + LONG_LIST]) for at in range(0, len(each), LONG_LIST))
        for each in lists
    ]


def with_read_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the arguments of earlier calls as objects: OpenAI has them as JSON text, and
    templates write objects. ApiError 400 if one is no JSON."""
    changed = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            read = [_with_read_arguments(f"messages[{at}].tool_calls", call) for call in calls]
            message = {**message, "tool_calls": read}
        changed.append(message)
    return changed


def _with_read_arguments(where: str, call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ApiError(400, f"{where} has a call without a function", param=where)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        read = msgspec.json.decode(arguments or "{}")
    except UNREADABLE as error:
        raise ApiError(400, f"{where}: the arguments are no JSON: {error}", param=where) from None
    return {**call, "function": {**function, "arguments": read}}


def _given_ids(request: Sampling) -> Tokens | None:
    """The prompt's token ids, where its client has tokenized it."""
    return None if request.nvext is None else request.nvext.token_data


def engine_message(kind: Any, data: bytes) -> Any:
    """What an engine sent, as a message of this kind; EngineCallError if it is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        text = "the engine's answer cannot be read"
        raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text) from None


def _entries(raw: msgspec.Raw, field: str) -> list[str | npt.NDArray[np.uint32]]:
    """A text, or the texts and lists of token ids in a list."""
    try:
        found = msgspec.json.decode(raw, type=str | list[str | list[int]])
    except BAD_BODY:
        text = f"{field} must be a text, a list of token ids, or a list of either"
        raise ApiError(400, text, param=field) from None
    if isinstance(found, str):
        return [found]
    if not found or len(found) > MOST_PROMPTS:
        raise ApiError(400, f"{field} must have 1 to {MOST_PROMPTS} entries", param=field)
    return [each if isinstance(each, str) else _checked_ids(each, field) for each in found]


def _checked_ids(ids: list[int], field: str) -> npt.NDArray[np.uint32]:
    if (wrong := first_beyond(ids)) is not None:
        raise ApiError(400, f"{wrong} is no token id", param=field)
    return np.asarray(ids, np.uint32)
