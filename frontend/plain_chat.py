"""PlainChats: chats of which only text comes, to one client, from the body to the last event in few
steps; and of long ones only what is new.

What is plain stands in PlainChat, LOUD_HEADERS and `begin`. All other requests, and those that are
refused before they go to a worker, go the way of Completions: here nothing was done for them.
"""

import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ..base.account import current_account
from ..base.errors import InvalidRequestError
from ..base.request_record import Generation, current_record
from ..router.prompt import Prompt
from ..server.dispatch import ReadRequest
from ..transport.http1 import HttpCall, answer_whole
from ..workers.failures import EngineCallError
from ..workers.health import HealthMonitor
from .answer_form import CHAT
from .engine_requests import (
    ANSWER_S,
    FEW,
    PASSED_ON,
    SMALL_S,
    TOKEN_S,
    Choice,
    HashedPrompt,
    engine_settings,
    written_request,
)
from .generation import ChoiceMessages, Workers
from .known_beginnings import KnownBeginnings
from .openai import (
    BAD_BODY,
    LAST_CHUNK,
    LONG_BODY,
    Answer,
    ChatRequest,
    Delta,
    StreamOptions,
    chat_events,
    chat_events_middle,
    engine_refusal,
    noted_error,
    read_request,
)
from .origin import LOUD_HEADERS, new_answer_id, salt_by
from .parsers import ModelParsers
from .processor import ByteText, ModelText, Tenant
from .sse_writer import PlainEvents, SseWriter

FEW_TOKENS = 4000
"""Of a prompt: with more of them it takes a turn of its own to read a request."""
_INT31 = (1 << 31) - 1
_Limit = Annotated[int, Meta(ge=1, le=_INT31)] | None
_Penalty = Annotated[float, Meta(ge=-2, le=2)] | None


class PlainChat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a plain chat: fields and values that ask for nothing but text, within the ranges
    of ChatRequest. A body that does not fit is read by that."""

    prompt_field: ClassVar[str] = "messages"
    min_tokens: ClassVar[int | None] = None
    choices: ClassVar[int] = 1
    model: str
    messages: Annotated[list[dict[str, str]], Meta(min_length=1, max_length=FEW)]
    stream: bool = False
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT31)] | None = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    n: Literal[1] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    stream_options: StreamOptions | None = None
    user: Any = None

    @property
    def output_limit(self) -> int | None:
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class _WithoutMessages(PlainChat, kw_only=True, forbid_unknown_fields=True):
    """The same but for its messages, which are apart."""

    messages: Annotated[list[dict[str, str]], Meta(max_length=0)]


_decode = msgspec.json.Decoder(PlainChat).decode
_decode_rest = msgspec.json.Decoder(_WithoutMessages).decode
_decode_checked = msgspec.json.Decoder(ChatRequest).decode
_settings_of = attrgetter("ignore_eos", "top_k", *PASSED_ON)
_encode = msgspec.json.encode
MOST_KEPT = 256
"""Sets of settings whose serialized form is kept."""


class AboutModel(Protocol):
    """What is known of a model and its answers."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def parsers(self) -> ModelParsers: ...
    def output_limit(self, request: Any, prompt_tokens: int) -> int:
        """Most tokens of an answer. ApiError 400 if the context does not hold prompt and answer."""
        ...


class PlainChats:
    """Of one model, which `about` knows more of."""

    def __init__(
        self,
        about: AboutModel,
        workers: Workers,
        monitor: HealthMonitor,
        text: ModelText,
        beginnings: KnownBeginnings,
        keep_alive_s: float,
        otherwise: Callable[[HttpCall], Awaitable[None]],
    ) -> None:
        """`otherwise` answers what turns out not to be plain."""
        self._about, self._workers, self._monitor = about, workers, monitor
        self._text, self._keep_alive_s, self._otherwise = text, keep_alive_s, otherwise
        self._beginnings = beginnings
        self._settings: dict[tuple[Any, ...], bytes] = {}
        self._written: tuple[object, bytes] = None, b""  # of these facts of the engines

    def begin(self, call: HttpCall) -> Awaitable[None] | None:
        """The rest of the way of a call, if it is plain; None: nothing was done. ApiError 400 if
        the context does not hold prompt and answer."""
        body, record, parsers = call.body, current_record(), self._about.parsers
        apart = call.messages
        if (
            len(body if apart is None else apart.rest) > LONG_BODY
            or not LOUD_HEADERS.isdisjoint(call.headers)
            or (parsers.reasoning or parsers.tool_calls or parsers.unknown_reasoning)
            or not self._monitor.any_ready
            or (record is not None and record.trace is not None)
        ):
            return None
        template, detokenizer = self._text.template, self._text.detokenizer()
        if template is None or not isinstance(detokenizer, ByteText):
            return None
        try:
            chat = _decode(body) if apart is None else _decode_rest(apart.rest)
        except BAD_BODY:
            return None
        options = chat.stream_options
        if options is not None and (options.continuous_usage_stats or not chat.stream):
            return None
        salt = salt_by(call.headers, chat.cache_salt)
        if apart is not None:
            return self._answer_long(call, chat, Tenant(current_account(), salt), detokenizer)
        if salt is not None:  # no words are known of its namespace
            return None
        for message in chat.messages:
            if "role" not in message:
                return None
        ids = self._text.encode_known(template.render(chat.messages))
        if ids is None:
            return None
        tokens = array("I", ids)  # made in half of the time of an array of numpy
        size, reader = len(tokens), self._workers.dispatcher.reader
        if not 0 < size <= min(reader.limits.max_prompt_tokens, FEW_TOKENS):
            return None
        prompt = HashedPrompt(tokens, Prompt(tokens, reader.block_size))
        return self._answer(call, chat, None, self._choice(chat, prompt), detokenizer)

    def _choice(self, chat: PlainChat, prompt: HashedPrompt) -> Choice:
        choice = Choice(0, prompt, self._about.output_limit(chat, prompt.prompt.isl))
        if (record := current_record()) is not None:
            record.generation = partial(_generation, choice)
        return choice

    async def _answer_long(
        self, call: HttpCall, chat: PlainChat, tenant: Tenant, detokenizer: ByteText
    ) -> None:
        prompt = await self._beginnings.prompt(call.body, call.messages, tenant)
        if prompt is None or not self._monitor.any_ready:
            await self._otherwise(replace(call, messages=None))
            return
        choice, seconds = self._choice(chat, prompt), prompt.prompt.isl * TOKEN_S
        if seconds > SMALL_S:
            await self._workers.turns.take(ANSWER_S + seconds)
        await self._answer(call, chat, tenant.namespace, choice, detokenizer)

    async def _answer(
        self,
        call: HttpCall,
        chat: PlainChat,
        salt: int | None,
        choice: Choice,
        detokenizer: ByteText,
    ) -> None:
        answer_id, created = new_answer_id(CHAT.prefix, call.request_id), int(time.time())
        request_id, settings = f"{answer_id}-0", self._settings_for(call, chat, salt, choice)
        asked = written_request(request_id, choice.max_tokens, settings, choice.prompt, chat.stream)
        if not chat.stream:
            await self._answer_whole(call, choice, asked, answer_id, created)
            return
        events = self._events(answer_id, created)
        stream = SseWriter(call.send, call.client, call.answer_headers, self._keep_alive_s)
        try:
            answer = _Written(self._about, call, stream, answer_id, created, events.begun)
            messages = ChoiceMessages(
                self._workers,
                self._text,
                answer.request,
                choice,
                answer.take,
                call.client,
                (request_id, call.caller),
            )
            plain, messages.plain_text = messages.plain, detokenizer
            plain.begin_with(detokenizer, choice, call.client, stream, events)
            try:
                await self._generate(call, asked, messages)
            finally:
                plain.close()
            messages.end()
            if chat.stream_options is not None and chat.stream_options.include_usage:
                for event in answer.form().ending(choice.usage, None):
                    await stream.write(event)
        except Exception as error:
            if not stream.started:
                raise
            await stream.write(answer.form().failure(noted_error(call.record, error)))
        finally:
            await stream.close()
        await stream.end(LAST_CHUNK)

    async def _answer_whole(
        self, call: HttpCall, choice: Choice, asked: ReadRequest, answer_id: str, created: int
    ) -> None:
        deltas: list[Delta] = []

        def keep(index: int, delta: Delta) -> None:
            deltas.append(delta)

        about, request = self._about, partial(_request_of, call)
        of_caller = asked.facts.request_id, call.caller
        messages = ChoiceMessages(self._workers, self._text, request, choice, keep, None, of_caller)
        try:
            await self._generate(call, asked, messages)
        finally:
            messages.plain.close()
        messages.end()
        form = CHAT.make(answer_id, created, about.name, None, about.fingerprint)
        await answer_whole(call, form.whole([deltas], choice.usage, None), {})

    async def _generate(self, call: HttpCall, asked: ReadRequest, messages: ChoiceMessages) -> None:
        try:
            await self._workers.dispatcher.generate(
                asked,
                messages.respond,
                put=messages.plain,
                call_metadata=tuple(call.headers.items()),
                caller=call.caller,
                stops_held=True,
                task=call.client.answering,
            )
        except (InvalidRequestError, EngineCallError) as error:
            raise engine_refusal(error, {}) from None

    def _settings_for(
        self, call: HttpCall, chat: PlainChat, salt: int | None, choice: Choice
    ) -> bytes:
        if salt is not None:
            return engine_settings(_request_of(call), choice, salt, chat.stream)
        key = chat.stream, *_settings_of(chat)
        settings = self._settings.get(key)
        if settings is None:
            settings = engine_settings(_request_of(call), choice, None, chat.stream)
            if len(self._settings) >= MOST_KEPT:
                self._settings.clear()
            self._settings[key] = settings
        return settings

    def _events(self, answer_id: str, created: int) -> PlainEvents:
        facts, about = self._monitor.facts, self._about
        if facts is not self._written[0]:
            self._written = facts, chat_events_middle(about.name, about.fingerprint)
        return chat_events(answer_id, created, self._written[1])


class _Written:
    """What is written of an answer in more steps, where an engine's message is not plain."""

    __slots__ = ("_about", "_begun", "_call", "_created", "_form", "_id", "_request", "_stream")

    def __init__(
        self,
        about: AboutModel,
        call: HttpCall,
        stream: SseWriter,
        answer_id: str,
        created: int,
        begun: set[int],
    ) -> None:
        self._about, self._call, self._stream = about, call, stream
        self._id, self._created, self._begun = answer_id, created, begun
        self._request: ChatRequest | None = None
        self._form: Answer | None = None

    def request(self) -> ChatRequest:
        """The request with all of its fields."""
        request = self._request
        if request is None:
            request = self._request = _request_of(self._call)
        return request

    def form(self) -> Answer:
        """The form of what is not plain."""
        if self._form is None:
            about, request = self._about, self.request()
            form = CHAT.make(self._id, self._created, about.name, request, about.fingerprint)
            assert isinstance(form, Answer)
            form.begun = self._begun
            self._form = form
        return self._form

    def take(self, index: int, delta: Delta) -> None:
        self._stream.put(self.form().chunk(index, delta), last=delta.finish_reason is not None)


def _request_of(call: HttpCall) -> ChatRequest:
    """The request with all of its fields, but for messages that are apart."""
    if call.messages is not None:
        return _decode_checked(call.messages.rest)
    request: ChatRequest = read_request(call.body, ChatRequest)
    return request


def _generation(choice: Choice) -> Generation:
    """What was made so far."""
    usage, reason = choice.usage, choice.finish_reason
    return Generation(
        usage.prompt_tokens or choice.prompt.prompt.isl,
        usage.completion_tokens,
        usage.cached_tokens,
        choice.first_at,
        () if reason is None else (reason,),
    )
