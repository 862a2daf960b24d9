"""From one OpenAI request to requests of engines, and from their messages back to text.

Each answer that is asked for (`n` of them for each prompt) is a request of its own: it finds the
worker that has its prompt, and works with engines that make one sequence at a time.
"""

import secrets
import time
from array import array
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain, starmap
from typing import Any, NamedTuple

from ..process.loop_turns import LoopTurns
from ..process.supervised import all_done
from ..server.access import Caller
from ..server.dispatch import Dispatcher
from ..transport.http1 import Client
from ..workers.dialects import plain_chunk
from ..workers.finish_reasons import ABORTED, shown_reason
from ..workers.trtllm_proto import pb
from ._plain_stream import PlainStream
from .engine_requests import (
    ANSWER_S,
    SMALL_S,
    TOKEN_S,
    Choice,
    Tokens,
    engine_message,
    engine_request,
)
from .openai import ApiError, Delta, FunctionCall, Sampling, TokenLogprob, Usage
from .origin import Origin
from .parsers import ChatOutput, Parsed
from .processor import ByteText, ModelText, StopStrings
from .shared_prefill import ALONE, Leader, Part, parts_of

RESUMED_S = 0.001
"""What waited for a client that reads again, about: it may be as much as a stream's window."""
Take = Callable[[int, Delta], None]
"""Takes what comes of a choice, by its index."""
Begin = Callable[[Choice, PlainStream, ByteText], None]
"""Called for a choice of which only text may come until it ends: has the stream begun, if it can
be, which then writes what comes of it in place of a Take."""


class AnswerReader:
    """The messages of an engine for one choice, as what may be shown. Pure but for its tokenizer.

    Token ids are taken from the chunks or, where none came, from the complete message. `output`, if
    there is one, finds reasoning and calls of tools in the text.
    """

    def __init__(
        self,
        text: ModelText,
        request: Sampling,
        prefix: str = "",
        output: ChatOutput | None = None,
        prompt: "Tokens | array[int]" = (),
        detokenizer: ByteText | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`prompt`: its token ids, where their logprobs are wanted. `detokenizer` and `usage`: of
        what was read of the answer so far."""
        self._text = text
        self._output = output
        self._calls = 0
        self._single_call = getattr(request, "parallel_tool_calls", None) is False
        special = output is not None and output.sees_special
        self._detokenizer = detokenizer or text.detokenizer(special=special)
        self._stops: StopStrings | None = None
        if stops := request.stop_strings:
            self._stops = StopStrings(stops, include=bool(request.include_stop_str_in_output))
        self._min_tokens = request.min_tokens or 0
        self._logprobs = request.logprobs_wanted
        self._stop_ids = frozenset(request.stop_ids)
        self._prefix = prefix
        self._prompt: Tokens | array[int] = prompt if request.scores_prompt else ()
        self._nothing = request.output_limit == 0
        self.usage = usage or Usage()
        self.finished = False
        """a delta with a finish reason was made; what still comes is not shown"""

    def read(self, message: bytes) -> Delta | None:
        """What a message brings; None: nothing to show yet."""
        delta = self._read(message)
        return delta if delta is None or self._output is None else self._parsed(delta)

    def _parsed(self, delta: Delta) -> Delta | None:
        """The same after the parsers; a stop ends a call as well as text."""
        assert self._output is not None
        parsed = self._output.feed(delta.text)
        if delta.finish_reason is not None:
            last = self._output.flush()
            parsed = Parsed(
                parsed.content + last.content,
                parsed.reasoning + last.reasoning,
                parsed.calls + last.calls,
            )
        first = self._calls
        if self._single_call and (first or len(parsed.calls) > 1):
            parsed = parsed._replace(calls=() if first else parsed.calls[:1])
        self._calls += len(parsed.calls)
        calls = tuple(
            FunctionCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments)
            for call in parsed.calls
        )
        delta = delta._replace(
            text=parsed.content, reasoning=parsed.reasoning, calls=calls, first_call=first
        )
        if delta.finish_reason == "stop" and self._calls:
            delta = delta._replace(finish_reason="tool_calls")
        if parsed == Parsed() and not delta.logprobs and delta.finish_reason is None:
            return None
        return delta

    def _read(self, message: bytes) -> Delta | None:
        if self.finished:
            return None
        if (plain := plain_chunk(message)) is not None:
            ids, self.usage.prompt_tokens, cached = plain
            if cached > self.usage.cached_tokens:
                self.usage.cached_tokens = cached
            delta = self._take(ids, ())
            return delta if delta.text or delta.finish_reason else None
        response = engine_message(pb.GenerateResponse, message)
        if response.HasField("chunk"):
            chunk = response.chunk
            self._count(chunk)
            delta = self._take(chunk.token_ids, chunk.logprobs)
            return delta if delta.text or delta.logprobs or delta.finish_reason else None
        complete = response.complete
        self._count(complete)
        scored = self._scored(complete.prompt_logprobs) if len(self._prompt) else ()
        if self._nothing:
            self.finished = True
            self.usage.completion_tokens = 0
            return Delta(self._prefix, "length", logprobs=scored)
        delta = Delta("")
        if not self.usage.completion_tokens:
            delta = self._take(complete.output_token_ids, complete.logprobs)
            delta = delta._replace(logprobs=scored + delta.logprobs)
            if delta.finish_reason is not None:
                return delta
        return self._end(complete, delta)

    def _count(self, message: Any) -> None:
        self.usage.prompt_tokens = message.prompt_tokens
        # Some engines report it in each message, some in the first or the last one alone.
        self.usage.cached_tokens = max(self.usage.cached_tokens, message.cached_tokens)

    def _take(self, ids: Sequence[int], logprobs: Sequence[Any]) -> Delta:
        text, self._prefix = self._prefix, ""
        stops = self._stops
        if stops is None and self._logprobs is None:
            self.usage.completion_tokens += len(ids)
            return Delta(text + self._detokenizer.feed(ids))
        for token_id in ids:
            self.usage.completion_tokens += 1
            new = self._detokenizer.feed((token_id,))
            if stops is None or self.usage.completion_tokens <= self._min_tokens:
                text += new
                continue
            piece = stops.feed(new)
            text += piece.text
            if piece.stopped_by is not None:
                self.finished = True
                break
        found = self._logprobs_of(logprobs)
        if stops is not None and self.finished:
            return Delta(text, "stop", stops.stopped_by, found)
        return Delta(text, logprobs=found)

    def _end(self, complete: Any, delta: Delta) -> Delta:
        self.finished = True
        tail, stopped_by = self._detokenizer.flush(), None
        if self._stops is not None:
            tail, stopped_by = self._stops.feed(tail)
            tail += self._stops.flush()
        text = self._prefix + delta.text + tail
        reason = shown_reason(complete.finish_reason)
        stop_reason: str | int | None = stopped_by or complete.matched_stop_str or None
        if stop_reason is None and complete.HasField("matched_token_id"):
            matched = complete.matched_token_id
            stop_reason = matched if matched in self._stop_ids else None
        return Delta(text, reason, stop_reason, delta.logprobs)

    def _scored(self, logprobs: Sequence[Any]) -> tuple[TokenLogprob, ...]:
        """The logprobs of the prompt's tokens. For the first one, which nothing comes before, some
        engines report none and some a meaningless one. ApiError 400 if they are not there."""
        missing = len(self._prompt) - len(logprobs)
        if missing not in (0, 1):
            text = "echo with logprobs: this engine gives no logprobs of a prompt"
            raise ApiError(400, text, param="echo")
        first = TokenLogprob(self._text.token_text(self._prompt[0]), None)
        return (first, *self._logprobs_of(logprobs[1 - missing :]))

    def _logprobs_of(self, logprobs: Sequence[Any]) -> tuple[TokenLogprob, ...]:
        if self._logprobs is None:
            return ()
        name = self._text.token_text
        return tuple(
            TokenLogprob(
                name(each.token_id),
                each.logprob,
                tuple(
                    (name(top.token_id), top.logprob)
                    for top in sorted(each.top_logprobs, key=_by_logprob)[: self._logprobs]
                ),
            )
            for each in logprobs
        )


def _by_logprob(top: Any) -> float:
    return -float(top.logprob)


class Workers(NamedTuple):
    """Who answers the requests of a model."""

    dispatcher: Dispatcher
    turns: LoopTurns
    """where answers begin"""


async def answer(
    workers: Workers,
    text: ModelText,
    request: Sampling,
    choices: Sequence[Choice],
    origin: Origin,
    take: Take,
    client: Client | None = None,
    begin: Begin | None = None,
) -> None:
    """Have all choices answered, at the same time; the first error ends them all. While a
    `client` is given and does not keep up, nothing is taken from engines.

    Raises what `Dispatcher.generate` raises. Cancel the task to give all of them up.
    """
    if len(choices) == 1:
        seconds = choices[0].prompt.prompt.isl * TOKEN_S
        if seconds > SMALL_S:  # else the turn in which the request is read is its own
            await workers.turns.take(ANSWER_S + seconds)
        await _answer_one(workers, text, request, choices[0], ALONE, origin, take, client, begin)
        return
    tokens = sum(choice.prompt.prompt.isl for choice in choices)
    turn = partial(workers.turns.take, ANSWER_S + tokens / len(choices) * TOKEN_S)
    parts: Sequence[Part] = [ALONE] * len(choices)
    if workers.dispatcher.reader.hashes and not request.scores_prompt:
        for choice in choices[:: request.choices]:  # hashed in turns, and then compared at once
            await workers.turns.take(choice.prompt.prompt.isl * TOKEN_S)
            _ = choice.prompt.prompt.sequence_hashes
        parts = parts_of([choice.prompt.prompt for choice in choices])
    first = [at for at, part in enumerate(parts) if part.follows is None]
    following: dict[Leader, list[int]] = {}
    for at, part in enumerate(parts):
        if part.follows is not None:
            following.setdefault(part.follows, []).append(at)

    def answered(at: int) -> Coroutine[Any, Any, None]:
        part = parts[at]
        return _answer_one(workers, text, request, choices[at], part, origin, take, client, begin)

    async def answered_after(leader: Leader, followers: list[int]) -> None:
        await leader.decision()
        await all_done(map(answered, followers), turn)

    await all_done(chain(map(answered, first), starmap(answered_after, following.items())), turn)


class ChoiceMessages:
    """Takes the messages of an engine for one choice: `plain` those of which only text comes, once
    it is begun, the others an AnswerReader."""

    __slots__ = (
        "_choice",
        "_client",
        "_of_caller",
        "_one_by_one",
        "_part",
        "_reader",
        "_request",
        "_take",
        "_text",
        "_workers",
        "plain",
        "plain_text",
    )

    def __init__(
        self,
        workers: "Workers",
        text: ModelText,
        request: Callable[[], Sampling],
        choice: Choice,
        take: Take,
        client: Client | None,
        of_caller: tuple[str, Caller],
        part: Part = ALONE,
        one_by_one: bool = False,
    ) -> None:
        """`of_caller`: the id of the request and whose it is. `one_by_one`: none is taken at once,
        as reading them may end the request."""
        self._workers, self._text, self._request = workers, text, request
        self._choice, self._take, self._client = choice, take, client
        self._of_caller, self._part, self._one_by_one = of_caller, part, one_by_one
        self._reader: AnswerReader | None = None
        self.plain = PlainStream(self.put)
        self.plain_text: ByteText | None = None
        """what `plain` reads ids by"""

    @property
    def finished(self) -> bool:
        """Whether a finish reason was shown."""
        return self.plain.finished or (self._reader is not None and self._reader.finished)

    def put(self, message: bytes) -> bool:
        """Take a message, if that need not wait."""
        if self._one_by_one or (self._client is not None and not self._client.reads):
            return False
        self._show(message)
        return True

    async def respond(self, message: bytes) -> None:
        """Take one that `put` did not."""
        if self._client is not None and not self._client.reads:
            await self._client.drained()
            # One of many, if many clients read again together.
            await self._workers.turns.take(RESUMED_S)
        if self._one_by_one and not self.finished and self._request().scores_prompt:
            # It has a list for each token of the prompt.
            off_loop, work = self._workers.dispatcher.reader.off_loop, partial(self._read, message)
            delta = self._shown(await off_loop.run(work, size=len(message)))
        else:
            delta = self._show(message)
        if delta is not None and delta.finish_reason is not None and delta.stop_reason is not None:
            # The engine may not know of the stop string; no client would read the rest.
            await self._workers.dispatcher.finish(*self._of_caller)

    def _show(self, message: bytes) -> "Delta | None":
        if (leader := self._part.leads) is not None:
            leader.begin(self._workers.dispatcher.decision_of(*self._of_caller))
        return None if self.finished else self._shown(self._read(message))

    def _read(self, message: bytes) -> "Delta | None":
        reader, choice = self._reader, self._choice
        if reader is None:
            reader = self._reader = AnswerReader(
                self._text,
                self._request(),
                choice.prefix,
                choice.output,
                choice.prompt.tokens,
                self.plain_text,
                choice.usage,
            )
        return reader.read(message)

    def _shown(self, delta: "Delta | None") -> "Delta | None":
        choice, plain = self._choice, self.plain
        if delta is not None:
            plain.shown = True
            if choice.first_at is None:
                choice.first_at = time.monotonic()
            if delta.finish_reason is not None:
                choice.finish_reason = delta.finish_reason
                plain.end()
            self._take(choice.index, delta)
        return delta

    def end(self) -> None:
        """The engine sends nothing more, and has not failed."""
        if not self.plain.finished and not self.finished:
            # It ended without a last word; strict clients wait for a finish reason.
            self._choice.finish_reason = ABORTED
            self._take(self._choice.index, Delta("", ABORTED))


async def _answer_one(
    workers: Workers,
    text: ModelText,
    request: Sampling,
    choice: Choice,
    part: Part,
    origin: Origin,
    take: Take,
    client: Client | None,
    begin: Begin | None,
) -> None:
    computed = None if part.follows is None else await part.computed()
    request_id, scores = f"{origin.answer_id}-{choice.index}", request.scores_prompt
    of_caller, one_by_one = (request_id, origin.caller), bool(request.stop_strings) or scores
    messages = ChoiceMessages(
        workers, text, lambda: request, choice, take, client, of_caller, part, one_by_one
    )
    plain = messages.plain
    if begin is not None and part.leads is None:  # what leads is noted with each message
        messages.plain_text = _plain_text(text, request, choice)
        if messages.plain_text is not None:
            begin(choice, plain, messages.plain_text)
    # What leads shows by its first token that its prompt is computed. Engines report the logprobs
    # of a prompt with a whole answer alone.
    in_one_piece = scores or request.output_limit == 0
    streaming = True if part.leads is not None else False if in_one_piece else None
    asked = engine_request(request, choice, request_id, origin.salt, streaming=streaming)
    try:
        pair = await origin.generate(
            workers.dispatcher,
            asked,
            messages.respond,
            put=plain,
            pinned=origin.pinned,
            computed=computed,
        )
    finally:
        plain.close()
    choice.decision, choice.prefill, choice.pair = pair.decode, pair.prefill, pair
    if part.leads is not None:  # had it failed, those that wait for it would end and not begin
        part.leads.begin(None)
    messages.end()


def _plain_text(text: ModelText, request: Sampling, choice: Choice) -> ByteText | None:
    """What reads a choice's ids, if all that they bring is text, whatever the text is."""
    if (
        choice.output is not None
        or choice.prefix
        or request.stop is not None
        or request.logprobs_wanted is not None
        or request.output_limit == 0
    ):
        return None
    found = text.detokenizer()
    return found if isinstance(found, ByteText) else None
