"""The routes of OpenAI's API, answered by one model of the fleet."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from ..router.admission import read_objectives
from ..router.dispatch import Dispatcher, RequestReader
from ..router.services import read_metadata
from ..runtime.errors import InvalidRequestError, NoWorkersError
from ..workers.health import HealthMonitor
from .application import Handler, HttpCall, answer_json
from .asgi import EventStream, send_whole, unless_gone
from .config import FrontendConfig
from .generation import Choice, Origin, answer
from .openai import (
    DONE,
    KEEP_ALIVE,
    Answer,
    ApiError,
    ChatRequest,
    CompletionRequest,
    Delta,
    Sampling,
    Usage,
    api_error,
    read_request,
    sse,
    too_long,
)
from .processor import ModelText

Tokens = Sequence[int]
MODEL_ROUTES = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /tokenize",
    "POST /detokenize",
)
"""Those whose body names the model that is to answer."""
EXPLAIN_KEY = "x-dynamo-explain"
MOST_PROMPTS = 128


class _Tokenize(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True


class _Detokenize(msgspec.Struct):
    tokens: list[int]


class _Asked(NamedTuple):
    """A request that is being answered, and how the answer is written."""

    call: HttpCall
    request: Sampling
    choices: list[Choice]
    origin: Origin
    form: Answer
    explains: bool


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
    ) -> None:
        """`adapter` is the LoRA adapter that computes all of them."""
        self._dispatcher = dispatcher
        self._adapter = adapter
        self._monitor = monitor
        self._reader = reader
        self._text = text
        self._config = config
        self._name = name
        self._last_name = ""

    @property
    def routes(self) -> dict[str, Handler]:
        return {
            "POST /v1/chat/completions": self._chat,
            "POST /v1/completions": self._complete,
            "POST /tokenize": self._tokenize,
            "POST /detokenize": self._detokenize,
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
        """Most tokens of prompt and answer together; 0 while no engine said."""
        return self._monitor.facts.max_seq_len

    # Routes

    async def _chat(self, call: HttpCall) -> None:
        request: ChatRequest = read_request(call.body, ChatRequest)
        prompt = await self._render(request.messages, request)
        await self._answer(call, request, "chat", [(prompt, "")])

    async def _complete(self, call: HttpCall) -> None:
        request: CompletionRequest = read_request(call.body, CompletionRequest)
        prompts = await self._read_prompts(bytes(request.prompt))
        echoed = [""] * len(prompts)
        if request.echo:
            echoed = [self._text.decode(prompt) for prompt in prompts]
        await self._answer(call, request, "completion", list(zip(prompts, echoed, strict=True)))

    async def _tokenize(self, call: HttpCall) -> None:
        asked = msgspec.json.decode(call.body, type=_Tokenize)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "either prompt or messages is needed", param="prompt")
        if asked.messages is not None:
            ids = await self._render(asked.messages, None)
        else:
            assert asked.prompt is not None
            ids = await self._text.encode(asked.prompt, add_special_tokens=asked.add_special_tokens)
        told = {"count": len(ids), "max_model_len": self.context_limit or None, "tokens": ids}
        await answer_json(call, told)

    async def _detokenize(self, call: HttpCall) -> None:
        asked = msgspec.json.decode(call.body, type=_Detokenize)
        for token_id in asked.tokens:
            if not 0 <= token_id < self._text.vocab_size:
                raise ApiError(400, f"{token_id} is no token id of this model", param="tokens")
        await answer_json(call, {"prompt": self._text.decode(asked.tokens)})

    # Their parts

    async def _render(
        self, messages: list[dict[str, Any]], request: ChatRequest | None
    ) -> list[int]:
        template = self._text.template
        if template is None:
            raise ApiError(400, "this model has no chat template", param="messages")
        variables: dict[str, Any] = {}
        if request is not None:
            variables = {
                **(request.chat_template_args or {}),
                **(request.chat_template_kwargs or {}),
            }
            variables["tools"] = request.tools
            variables["add_generation_prompt"] = request.add_generation_prompt
        text = template.render(messages, **variables)
        # The template has written the special tokens itself.
        return await self._text.encode(text, add_special_tokens=False)

    async def _read_prompts(self, raw: bytes) -> list[Tokens]:
        """The prompts of a completion: a text, token ids, or a list of either."""
        given = raw.strip()
        if given[:1] == b"[" and given[1:].lstrip()[:1].isdigit():
            return [await self._token_ids(raw)]
        try:
            found = msgspec.json.decode(raw, type=str | list[str | list[int]])
        except msgspec.DecodeError:
            text = "prompt must be a text, a list of token ids, or a list of either"
            raise ApiError(400, text, param="prompt") from None
        if isinstance(found, str):
            return [await self._text_ids(found)]
        if not found or len(found) > MOST_PROMPTS:
            raise ApiError(400, f"prompt must have 1 to {MOST_PROMPTS} entries", param="prompt")
        return [
            await self._text_ids(each) if isinstance(each, str) else _checked_ids(each)
            for each in found
        ]

    async def _text_ids(self, text: str) -> list[int]:
        return await self._text.encode(text, add_special_tokens=True)

    async def _token_ids(self, raw: bytes) -> list[int]:
        try:
            tokens, _ = await self._reader.json_tokens(b'{"prompt":' + raw + b"}", b"prompt")
        except InvalidRequestError as error:
            raise ApiError(400, str(error), param="prompt") from None
        ids: list[int] = np.asarray(tokens).tolist()
        return ids

    def _choices(self, request: Sampling, prompts: Sequence[tuple[Tokens, str]]) -> list[Choice]:
        choices: list[Choice] = []
        if len(prompts) * request.choices > MOST_PROMPTS:
            raise ApiError(400, f"prompts times n is more than {MOST_PROMPTS}", param="n")
        for prompt, prefix in prompts:
            if not len(prompt):
                raise ApiError(400, "the prompt is empty", param="prompt")
            longest = self._output_limit(request, len(prompt))
            for nth in range(request.choices):
                # Equal seeds would give equal answers.
                seed = None if request.seed is None else (request.seed + nth) % (1 << 64)
                choices.append(
                    Choice(len(choices), prompt, longest, seed, prefix, adapter=self._adapter)
                )
        return choices

    def _output_limit(self, request: Sampling, prompt_tokens: int) -> int:
        asked, limit = request.output_limit, self.context_limit
        if not limit:
            return asked or self._config.default_max_tokens
        left = limit - prompt_tokens
        if left < 1 or (asked is not None and asked > left):
            raise too_long(limit, prompt_tokens, asked or 1)
        return asked or min(left, self._config.default_max_tokens)

    def _origin(self, call: HttpCall, kind: str) -> Origin:
        try:
            headers = list(call.headers.items())
            forwarded, pinned, urgency = read_metadata(headers)
            objectives = read_objectives(headers)
        except InvalidRequestError as error:
            raise ApiError(400, str(error)) from None
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        # Unique, also where a client uses an id of its own again.
        unique = xxh3_64_intdigest(f"{call.request_id}/{time.monotonic_ns()}".encode())
        answer_id = f"{prefix}-{unique:016x}"
        return Origin(answer_id, call.caller, forwarded, pinned, urgency, objectives)

    async def _answer(
        self,
        call: HttpCall,
        request: Sampling,
        kind: Literal["chat", "completion"],
        prompts: Sequence[tuple[Tokens, str]],
    ) -> None:
        if not self._monitor.any_ready:
            raise NoWorkersError(
                f"the model {self.name or request.model} has no worker that is ready"
            )
        choices = self._choices(request, prompts)
        origin = self._origin(call, kind)
        form = Answer(
            origin.answer_id,
            int(time.time()),
            self.name,
            kind,
            with_logprobs=request.logprobs_wanted is not None,
        )
        explains = call.headers.get(EXPLAIN_KEY) == "1"
        run = self._stream if request.wants_stream else self._whole
        work = asyncio.create_task(run(_Asked(call, request, choices, origin, form, explains)))
        await unless_gone(call.receive, work)

    async def _whole(self, asked: _Asked) -> None:
        call, request, choices, origin, form, explains = asked
        deltas: list[list[Delta]] = [[] for _ in choices]

        async def keep(index: int, delta: Delta) -> None:
            deltas[index].append(delta)

        await answer(self._dispatcher, self._text, request, choices, origin, keep)
        nvext = _explained(choices) if explains else None
        body = form.whole(deltas, _usage(request, choices), nvext)
        await send_whole(call.send, 200, body, call.told)

    async def _stream(self, asked: _Asked) -> None:
        call, request, choices, origin, form, explains = asked
        stream = EventStream(call.send, call.told, KEEP_ALIVE, self._config.keep_alive_s)
        keeping = asyncio.create_task(stream.keep_alive())
        options = request.stream_options
        in_each = options is not None and options.continuous_usage_stats

        async def show(index: int, delta: Delta) -> None:
            usage = choices[index].usage if in_each else None
            await stream.write(form.chunk(index, delta, usage))

        try:
            await answer(self._dispatcher, self._text, request, choices, origin, show)
            if explains:
                await stream.write(form.nvext_chunk(_explained(choices)))
            if options is not None and options.include_usage:
                await stream.write(form.usage_chunk(_usage(request, choices)))
        except Exception as error:
            if not stream.started:
                raise
            await stream.write(sse(api_error(error).body))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await stream.write(DONE)
        await stream.end()


def _usage(request: Sampling, choices: Sequence[Choice]) -> Usage:
    """Of all choices; a prompt counts once, however many answers it has."""
    total = Usage()
    for choice in choices:
        first = choice.index % request.choices == 0
        each = choice.usage
        total.add(each if first else Usage(completion_tokens=each.completion_tokens))
    return total


def _explained(choices: Sequence[Choice]) -> dict[str, Any]:
    """Where the first choice went, and what its worker had of the prompt."""
    decision = choices[0].decision
    if decision is None:
        return {}
    worker = decision.worker
    return {
        "worker_id": {
            "decode_worker_id": worker.worker_id,
            "decode_dp_rank": worker.dp_rank,
        },
        "overlap_blocks": decision.overlap_blocks,
        "request_blocks": decision.request_blocks,
        "cached_tokens": choices[0].usage.cached_tokens,
    }


def _checked_ids(ids: list[int]) -> list[int]:
    for token_id in ids:
        if not 0 <= token_id < 1 << 32:
            raise ApiError(400, f"{token_id} is no token id", param="prompt")
    return ids
