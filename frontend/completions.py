"""The routes of OpenAI's API, answered by one model of the fleet."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from ..base.account import current_account
from ..base.errors import InvalidRequestError, NoWorkersError
from ..base.package_version import package_version
from ..base.request_record import Generation, current_record
from ..server.call_limits import CallLimits
from ..server.dispatch import Dispatcher, RequestReader
from ..transport.http1 import Handler, HttpCall, answer_json, answer_whole
from ..workers.dialects import encode_bias
from ..workers.failures import EngineCallError
from ..workers.health import HealthMonitor
from ..workers.records import ModelCard
from ._plain_stream import PlainStream
from .agents import AGENT_FORMS, AGENT_ROUTES, AgentRoutes
from .answer_form import CHAT, COMPLETION, AnswerForm, AnswerKind
from .config import FrontendConfig
from .embeddings import Embeddings, read_embedding_request
from .engine_requests import (
    CHOICE_S,
    MOST_PROMPTS,
    SMALL_S,
    TOKEN_S,
    Choice,
    HashedPrompt,
    PromptReader,
    Tokens,
)
from .generation import Workers, answer
from .long_chats import CHAT_ITEMS, ItemForm, KnownBeginnings, read_call
from .openai import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Delta,
    Guide,
    Sampling,
    ToolChoice,
    Usage,
    answer_too_long,
    check_messages,
    engine_refusal,
    first_beyond,
    noted_error,
    prompt_too_long,
    read_request,
)
from .origin import Origin, origin_of, tenant_of
from .parsers import (
    NO_PARSER,
    ModelParsers,
    exclude_each_other,
    new_chat_output,
    recognised_tool_calls,
)
from .passed_on import PASSED_ROUTES, PassedOn
from .plain_chat import PlainChat, PlainChats
from .processor import ByteText, ModelText
from .sse_writer import SseWriter

CHAT_ROUTE = "POST /v1/chat/completions"
COMPLETIONS_ROUTE = "POST /v1/completions"
MODEL_ROUTES = (
    CHAT_ROUTE,
    COMPLETIONS_ROUTE,
    *AGENT_ROUTES,
    "POST /v1/embeddings",
    "POST /tokenize",
    "POST /detokenize",
    *PASSED_ROUTES,
)
"""Those whose body names the model that is to answer."""

IDS_KEYS = {
    COMPLETIONS_ROUTE: b"prompt",
    "POST /v1/embeddings": b"input",
    "POST /detokenize": b"tokens",
}
"""What has a prompt's token ids in a body, which may be many: they are taken out of it natively."""
ITEM_FORMS: dict[str, ItemForm] = {CHAT_ROUTE: CHAT_ITEMS, **AGENT_FORMS}
"""Those with conversations."""
MOST_JSON_PARTS: dict[str, int] = dict.fromkeys((CHAT_ROUTE, *AGENT_ROUTES), 128 << 10)
"""Strings, lists and objects of a body that is read message by message and tool by tool: an agent's
1536 tools of eight properties have 114,000."""
UNKNOWN_LEFT = 1024
"""Tokens of an answer where no engine says how long its context is."""
MOST_DETOKENIZED = 128 << 10
TOKEN_BYTES = 3
"""Of a token id in a request to an engine."""


class _Tokenize(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int]


class _OpenRequest(NamedTuple):
    """A request that is being answered, and how the answer is written."""

    call: HttpCall
    request: Sampling
    choices: list[Choice]
    origin: Origin
    form: AnswerForm


class Completions:
    """One model's completions. `name` is the model's; None: whatever its engines call it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        monitor: HealthMonitor,
        reader: RequestReader,
        text: ModelText,
        config: FrontendConfig,
        name: str | None,
        adapter: int | None = None,
        *,
        card: Callable[[], ModelCard | None] | None = None,
        calls: CallLimits,
    ) -> None:
        """`adapter` is the LoRA adapter that computes all of them; `card` is what the workers say
        of the model now; `calls` counts requests of engines: a call has one for each of its
        answers."""
        self._workers = Workers(dispatcher, calls.turns)
        self._adapter = adapter
        self._monitor, self._calls = monitor, calls
        self._prompts = PromptReader(text, reader)
        self._embeddings = Embeddings(dispatcher, self._prompts, calls)
        self._passed_on = PassedOn(dispatcher, reader.off_loop)
        self._text = text
        self._config, self._card = config, card
        self._read_card: ModelCard | None = None
        self._parsers = config.parsers()
        self._plain = self._beginnings = None
        if adapter is None:
            self._beginnings = KnownBeginnings(text, reader)
            self._plain = PlainChats(
                self,
                self._workers,
                monitor,
                text,
                self._beginnings,
                config.keep_alive_s,
                self._any_chat,
            )
        self._name = name
        self._last_name = ""
        self._version = package_version()
        self._printed: tuple[object, str] = None, ""  # of these facts
        agents = AgentRoutes(
            self._prompts, self._beginnings, text, lambda: self.parsers, self._answer_chat
        )
        self.routes: dict[str, Handler] = {
            CHAT_ROUTE: self._chat,
            COMPLETIONS_ROUTE: self._complete,
            **agents.routes,
            "POST /v1/embeddings": self._embed,
            "POST /tokenize": self._tokenize,
            "POST /detokenize": self._detokenize,
            **{route: partial(self._pass_on, route) for route in PASSED_ROUTES},
        }

    @property
    def name(self) -> str:
        """The model's; also while no engine is there to say it. Empty before the first one did."""
        self._last_name = self._name or self._monitor.facts.model_id or self._last_name
        return self._last_name

    @property
    def any_ready(self) -> bool:
        """Whether a worker takes requests."""
        return self._monitor.any_ready

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and answer together; 0 while no engine has reported it."""
        return self._monitor.facts.max_seq_len

    @property
    def fingerprint(self) -> str:
        """Of what computes the answers: it changes with the model or its engines."""
        facts = self._monitor.facts
        if facts is not self._printed[0]:
            parts = self._version, self.name, facts.backend, facts.version, self._adapter
            digest = xxh3_64_hexdigest("/".join(map(str, parts)).encode())
            self._printed = facts, f"fp_{digest[:10]}"
        return self._printed[1]

    @property
    def token_cache(self) -> str:
        """on, or why token ids of its prompts are not kept."""
        return self._text.token_cache

    @property
    def long_chats(self) -> str:
        """on, or why turns of long chats go on from nothing that is kept of them."""
        return self._text.long_chats

    @property
    def parsers(self) -> ModelParsers:
        """What its answers are read by: the settings, or else its card."""
        if self._card is not None and (card := self._card()) is not self._read_card:
            self._read_card, self._parsers = card, self._config.parsers(card)
        return self._parsers

    # Routes

    def _chat(self, call: HttpCall) -> Awaitable[None]:
        plain = None if self._plain is None else self._plain.begin(call)
        return self._any_chat(call) if plain is None else plain

    async def _any_chat(self, call: HttpCall) -> None:
        read = partial(read_request, kind=ChatRequest)
        found = await read_call(call, self._prompts, self._beginnings, read, _same)
        await self._answer_chat(call, found[0], CHAT, found[1])

    async def _answer_chat(
        self,
        call: HttpCall,
        request: ChatRequest,
        kind: AnswerKind,
        prompt: HashedPrompt | None = None,
    ) -> None:
        """Answer it in the shape of this API; its prompt may be made already."""
        found: HashedPrompt | Tokens | None = prompt
        if found is None:
            tenant = tenant_of(call.headers, request)
            found = await self._prompts.of_chat(request, tenant, len(call.body))
        await self._answer(call, request, kind, [(found, "")])

    async def _complete(self, call: HttpCall) -> None:
        request: CompletionRequest = await self._prompts.request(call.body, CompletionRequest)
        tenant = tenant_of(call.headers, request)
        prompts = await self._prompts.of_completion(request, tenant, call.ids)
        echoed = [""] * len(prompts)
        if request.echo:
            echoed = [await self._text.text_of(prompt) for prompt in prompts]
        await self._answer(call, request, COMPLETION, list(zip(prompts, echoed, strict=True)))

    async def _embed(self, call: HttpCall) -> None:
        request = await self._prompts.read_by(read_embedding_request, call.body)
        self._check_ready(request.model)
        await self._embeddings.answer(call, request, self.name, tenant_of(call.headers))

    async def _pass_on(self, route: str, call: HttpCall) -> None:
        self._check_ready("")
        await self._passed_on.answer(call, route.partition(" ")[2], self.name)

    async def _tokenize(self, call: HttpCall) -> None:
        read = msgspec.json.Decoder(_Tokenize).decode
        wanted = await self._prompts.read_by(read, call.body)
        if (wanted.prompt is None) == (wanted.messages is None):
            raise ApiError(400, "either prompt or messages is needed", param="prompt")
        tenant = tenant_of(call.headers)
        if wanted.messages is not None:
            check_messages(wanted.messages)
            ids = await self._prompts.render(wanted.messages, None, tenant, len(call.body))
        else:
            assert wanted.prompt is not None
            ids = await self._prompts.encoded(
                wanted.prompt, tenant, add_special_tokens=wanted.add_special_tokens is not False
            )
        limit = self.context_limit or None
        head = msgspec.json.encode({"count": len(ids), "max_model_len": limit})
        lists = await self._prompts.as_json([ids])
        await answer_whole(call, b'%b,"tokens":%b}' % (head[:-1], lists[0]), {})

    async def _detokenize(self, call: HttpCall) -> None:
        read = msgspec.json.Decoder(_Detokenize).decode
        wanted = await self._prompts.read_by(read, call.body)
        ids: Tokens = wanted.tokens if call.ids is None else call.ids
        if len(ids) > MOST_DETOKENIZED:
            text = f"tokens has more than {MOST_DETOKENIZED} entries"
            raise ApiError(400, text, param="tokens")
        wrong = first_beyond(ids, self._text.vocab_size)
        if wrong is not None:
            raise ApiError(400, f"{wrong} is no token id of this model", param="tokens")
        await answer_json(call, {"prompt": await self._text.text_of(ids)})

    # Their parts

    def _check_ready(self, model: str) -> None:
        if not self._monitor.any_ready:
            named = f"the model {name}" if (name := self.name or model) else "this router"
            raise NoWorkersError(f"{named} has no worker that is ready")

    async def _choices(
        self,
        request: Sampling,
        prompts: Sequence[tuple[Tokens | HashedPrompt, str]],
        salt: int | None,
        guide: Guide | None,
    ) -> list[Choice]:
        choices: list[Choice] = []
        bias = self._bias(request) if request.logit_bias else b""
        wanted, seconds = request.choices, 0.0
        for tokens, prefix in prompts:
            count = tokens.prompt.isl if isinstance(tokens, HashedPrompt) else len(tokens)
            seconds += count * TOKEN_S + wanted * CHOICE_S
            if seconds > SMALL_S:
                await self._calls.turns.take(seconds)
                seconds = 0.0
            if not count:
                raise ApiError(400, "the prompt is empty", param="prompt")
            longest = self.output_limit(request, count)
            prompt = tokens
            if not isinstance(prompt, HashedPrompt):
                prompt = await self._prompts.hashed(prompt, self._adapter, salt)
            for nth in range(wanted):
                made = Choice(len(choices), prompt, longest, _seed(request, nth), prefix)
                made.adapter, made.guide, made.bias = self._adapter, guide, bias
                choices.append(made)
        return choices

    def _bias(self, request: Sampling) -> bytes:
        """As engines get it. ApiError 400 for what is no token id of the model."""
        biases = request.biases
        if not biases:
            return b""
        size = self._monitor.facts.vocab_size or self._text.vocab_size
        if (largest := max(biases)) >= size:
            text = f"logit_bias: {largest} is no token id of this model"
            raise ApiError(400, text, param="logit_bias")
        return encode_bias(biases, size)

    def _add_parsers(self, request: ChatRequest, choices: Sequence[Choice]) -> None:
        """Parse reasoning and tool calls out of the model's output."""
        parsers, tools = self.parsers, request.tools_asked
        if parsers.unknown_reasoning:
            raise ApiError(501, f"the model {self.name} has no chat: {parsers.chat_refusal}")
        if tools.tools and not tools.forced and parsers.unknown_tool_calls:
            text = f"the model {self.name} has no tools: {parsers.tools_refusal}"
            raise ApiError(501, text, param="tools")
        calls = parsers.tool_calls
        if tools.tools and not tools.forced and calls is None:
            calls = self._tool_calls_of(tools, parsers)
        if not (parsers.reasoning or calls or tools.forced):
            return  # its text is all there is
        ending = self._text.ending(choices[0].prompt.tokens) if parsers.reasoning else ""
        held = choices[0].guide is not None and not tools.forced
        for choice in choices:
            choice.output = new_chat_output(parsers.reasoning, calls, tools, ending, held=held)

    def _tool_calls_of(self, tools: ToolChoice, parsers: ModelParsers) -> str | None:
        """The parser for tools that the answer may call, where none is named. ApiError 400 if the
        chat template shows none either."""
        if self._config.tool_call_parser == NO_PARSER and not tools.asked:
            return None  # the client finds the calls in the text
        template, found = self._text.template, None
        if template is not None and self._config.tool_call_parser is None:
            found = recognised_tool_calls(template.source)
        if found is None or exclude_each_other(parsers.reasoning, found):
            field = "tool_choice" if tools.asked else "tools"
            text = "the answer may call tools, which needs a parser of this model's calls: none is"
            text = f"{text} named, nor recognised in its chat template; see --tool-call-parser"
            raise ApiError(400, text, param=field)
        return found

    def output_limit(self, request: Sampling | PlainChat, prompt_tokens: int) -> int:
        """Most tokens of an answer. ApiError 400 if the context does not hold prompt and answer."""
        wanted, facts = request.output_limit, self._monitor.facts
        limit, usual = facts.max_seq_len, self._config.default_max_tokens
        left = limit - prompt_tokens if limit else UNKNOWN_LEFT
        if left < 1 or 0 < facts.max_input_len < prompt_tokens:
            raise prompt_too_long(facts.longest_prompt, prompt_tokens, request.prompt_field)
        if wanted is None:
            context = self._monitor.limits.context_for(prompt_tokens)
            wanted = context - prompt_tokens if context else UNKNOWN_LEFT
            wanted = wanted if usual is None else min(wanted, usual)
        elif limit and wanted > left:
            raise answer_too_long(limit, prompt_tokens, wanted, request.limit_field)
        if (request.min_tokens or 0) > wanted > 0:
            text = f"min_tokens {request.min_tokens} is more than the {wanted} that the answer has"
            raise ApiError(400, text, param="min_tokens")
        return wanted

    async def _answer(
        self,
        call: HttpCall,
        request: Sampling,
        kind: AnswerKind,
        prompts: Sequence[tuple[Tokens | HashedPrompt, str]],
    ) -> None:
        self._check_ready(request.model)
        wanted = len(prompts) * request.choices
        if wanted > MOST_PROMPTS:
            raise ApiError(400, f"prompts times n is more than {MOST_PROMPTS}", param="n")
        if wanted == 1:  # which is the call itself
            await self._open(call, request, kind, prompts)
            return
        with self._calls.requests.held(current_account(), wanted - 1):
            await self._open(call, request, kind, prompts)

    async def _open(
        self,
        call: HttpCall,
        request: Sampling,
        kind: AnswerKind,
        prompts: Sequence[tuple[Tokens | HashedPrompt, str]],
    ) -> None:
        origin = origin_of(request, call.headers, call.caller, call.request_id, kind.prefix)
        read = call.body if call.items is None else call.items.rest
        guide = await self._prompts.guide(request, len(read))
        choices = await self._choices(request, prompts, origin.salt, guide)
        if (record := current_record()) is not None:
            record.generation = partial(_generation, request, choices)
        if isinstance(request, ChatRequest):
            self._add_parsers(request, choices)
        answer_id, created = origin.answer_id, int(time.time())
        form = kind.make(answer_id, created, self.name, request, self.fingerprint)
        run = self._stream if request.wants_stream else self._whole
        try:
            opened = _OpenRequest(call, request, choices, origin, form)
            if len(choices) == 1 and not choices[0].bias:
                await run(opened)
                return
            # The first one's are those of the body, but for what the body does not have.
            others = _bytes_of(choices[1:]) + len(choices[0].bias)
            with self._calls.bytes.held(current_account(), others):
                await run(opened)
        except (InvalidRequestError, EngineCallError) as error:
            raise engine_refusal(error, _fields_of(request, guide)) from None

    async def _whole(self, opened: _OpenRequest) -> None:
        call, request, choices, origin, form = opened
        deltas: list[list[Delta]] = [[] for _ in choices]

        def keep(index: int, delta: Delta) -> None:
            deltas[index].append(delta)

        await answer(self._workers, self._text, request, choices, origin, keep)
        nvext = _extras(choices, origin) if origin.extras else None
        usage = await self._usage(opened, [each.reasoning for each in deltas[0]])
        await answer_whole(call, form.whole(deltas, usage, nvext), {})

    async def _stream(self, opened: _OpenRequest) -> None:
        call, request, choices, origin, form = opened
        keep_alive_s = self._config.keep_alive_s
        stream = SseWriter(call.send, call.client, call.answer_headers, keep_alive_s, form.shape)
        reasoning: list[str] = []

        def write(index: int, delta: Delta) -> None:
            usage = choices[index].usage if form.usage_in_each else None
            if delta.reasoning:
                reasoning.append(delta.reasoning)
            if chunk := form.chunk(index, delta, usage):
                stream.put(chunk, last=delta.finish_reason is not None)

        def begin(choice: Choice, plain: PlainStream, text: ByteText) -> None:
            plain.begin(text, choice, call.client, stream, form)

        try:
            await answer(
                self._workers, self._text, request, choices, origin, write, call.client, begin
            )
            nvext = _extras(choices, origin) if origin.extras else None
            usage = await self._usage(opened, reasoning) if form.with_usage else Usage()
            for event in form.ending(usage, nvext):
                await stream.write(event)
        except Exception as error:
            if not stream.started:
                raise
            await stream.write(form.failure(noted_error(call.record, error)))
        finally:
            await stream.close()
        await stream.end(form.last)

    async def _usage(self, opened: _OpenRequest, reasoning: Sequence[str]) -> Usage:
        """Of all choices, with the tokens of the first one's reasoning where the form shows
        them."""
        usage = _usage(opened.request, opened.choices)
        if opened.form.counts_reasoning and (text := "".join(reasoning)):
            tenant = tenant_of(opened.call.headers, opened.request)
            ids = await self._text.encode(text, tenant, add_special_tokens=False)
            usage.reasoning_tokens = min(len(ids), usage.completion_tokens)
        return usage


def _same(chat: ChatRequest) -> ChatRequest:
    return chat


def _fields_of(request: Sampling, guide: Guide | None) -> dict[str, str]:
    """The fields by which a request asks for what some engines cannot do, by what that is."""
    asked = {} if guide is None else {"guide": guide.field}
    if request.logit_bias:
        asked["bias"] = "logit_bias"
    if request.bad_words:
        asked["bad words"] = "bad_words"
    if request.scores_prompt:
        asked["prompt logprobs"] = "echo"
    return asked


def _bytes_of(choices: Sequence[Choice]) -> int:
    """What their requests to engines take, about: each has its prompt and its guide."""
    return sum(
        each.prompt.prompt.isl * TOKEN_BYTES
        + (len(each.guide.guide) if each.guide else 0)
        + len(each.bias)
        for each in choices
    )


def _seed(request: Sampling, nth: int) -> int | None:
    """Of the nth answer to a prompt: equal seeds would give equal answers. As in vLLM -1 asks for
    none; other negative ones become numbers that all engines take."""
    if request.seed is None or request.seed == -1:
        return None
    seed = request.seed + nth
    return seed % (1 << 64) if seed >= 0 else seed % (1 << 63)


def _usage(request: Sampling, choices: Sequence[Choice]) -> Usage:
    """Of all choices; a prompt counts once, however many answers it has."""
    total = Usage()
    for choice in choices:
        first = choice.index % request.choices == 0
        each = choice.usage
        total.add(each if first else Usage(completion_tokens=each.completion_tokens))
    return total


def _generation(request: Sampling, choices: Sequence[Choice]) -> Generation:
    """What was made so far."""
    usage = _usage(request, choices)
    own = (choice.prompt.prompt.isl for choice in choices[:: request.choices])
    times = [choice.first_at for choice in choices if choice.first_at is not None]
    return Generation(
        usage.prompt_tokens or sum(own),
        usage.completion_tokens,
        usage.cached_tokens,
        min(times, default=None),
        tuple(choice.finish_reason for choice in choices if choice.finish_reason is not None),
    )


def _extras(choices: Sequence[Choice], origin: Origin) -> dict[str, Any]:
    """What the request asks for in `nvext.extra_fields`, of its first choice: its workers, cached
    blocks, times."""
    extras: dict[str, Any] = {}
    choice, now = choices[0], time.monotonic()
    decision = choice.decision
    if decision is not None and "worker_id" in origin.extras:
        worker = decision.worker
        extras["worker_id"] = {
            "decode_worker_id": worker.worker_id,
            "decode_dp_rank": worker.dp_rank,
        }
        if choice.prefill is not None:
            first = choice.prefill.worker
            extras["worker_id"]["prefill_worker_id"] = first.worker_id
            extras["worker_id"]["prefill_dp_rank"] = first.dp_rank
    decision = choice.prefill or decision  # a prompt's cache counts where it was computed
    if decision is not None and "decision" in origin.extras:
        extras |= {
            "overlap_blocks": decision.overlap_blocks,
            "request_blocks": decision.request_blocks,
            "cached_tokens": choice.usage.cached_tokens,
        }
        if choice.pair is not None and choice.pair.reason:
            extras["disagg"] = choice.pair.verdict
    if "timing" in origin.extras:
        took = now - origin.received
        ttft = None if choice.first_at is None else choice.first_at - origin.received
        extras["timing"] = {
            "request_received_ms": round((time.time() - took) * 1e3, 3),
            "ttft_ms": None if ttft is None else round(ttft * 1e3, 3),
            "total_time_ms": round(took * 1e3, 3),
        }
        if decision is not None:
            rate = decision.overlap_blocks / decision.request_blocks
            extras["timing"]["kv_hit_rate"] = round(rate, 4)
    return extras
