"""HandoffCall: both legs of a request as one call; its messages are those of the decode worker."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast

from ...base.errors import StatusCode
from ...process.lenient_timer import LenientTimer
from ...process.supervised import is_cancelled
from ...router.pairs import PairDecision
from ...workers.channels import EngineCall, Metadata
from ...workers.dialects import EngineClient, handoff_of
from ...workers.failures import EngineCallError, Origin
from ...workers.finish_reasons import check_reason
from ...workers.handoffs import HandoffPlan
from .leg import PrefillFailedError, PrefillLeg
from .leg_answers import after_first, as_one, as_whole, first_of, is_empty, read, why_refused
from .outcomes import HandoffOutcomes
from .reading import Reading, Readings

MOST_PREFILL_MESSAGES = 16
"""Of an answer of one token."""
LAST_WORDS_S = 2.0
"""How long the end of an answer waits for its prefill worker, whose prompt was read before."""

Answers = AsyncGenerator[bytes, None]


class HandoffCall:
    """See EngineCall. It begins at once; both legs end with it.

    A failure of the prefill worker is a PrefillFailedError, any other the decode worker's. Where
    both legs run at once, the failure of one ends the other before the loop turns to anything else,
    until the decode worker's first token: then it has all that it needs.
    """

    def __init__(
        self,
        outcomes: HandoffOutcomes,
        leg: PrefillLeg,
        decode: EngineClient,
        plan: HandoffPlan,
        ids: tuple[str, str],
        pair: PairDecision,
        timeout: float | None,
        metadata: Metadata,
        readings: Readings | None = None,
    ) -> None:
        """`ids`: the request's own, and that of this attempt, by which engines know it.
        `readings`: of the pool, where its plans may have prompts that must be read."""
        self._outcomes, self._leg, self._decode, self._plan = outcomes, leg, decode, plan
        self._own_id, self._attempt_id = ids
        self._pair = pair
        self._ends_at = None if timeout is None else outcomes.now() + timeout
        self._metadata = metadata
        self._first: EngineCall | None = None
        """the prefill worker's call, until it has ended"""
        self._then: EngineCall | None = None
        """the decode worker's call, once it began"""
        self._timer: LenientTimer | None = None
        self._late = self._cancelled = self._is_computed = False
        self._beside: asyncio.Task[None] | None = None
        """reads the prefill worker's answer where both legs run at once"""
        self._whole: list[bytes] = []
        """the prefill worker's messages, if they are the whole answer"""
        self._failure: PrefillFailedError | None = None
        self._messages_out = 0
        """of the decode worker"""
        self._first_chunk: Any | None = None
        """the prefill worker's token for the client, where it goes there at once"""
        self._reading: Reading | None = None
        """where the prompt must be read"""
        most_s = outcomes.prefill_timeout_s(pair)
        if plan.must_read and readings is not None:
            limits_s = most_s, outcomes.limits.disagg_handoff_timeout_s
            self._reading = Reading(readings, leg, decode, plan, ids[1], limits_s)
        if leg.client is not None:
            leg.begin()
            first = self._sent(leg.client, plan.prefill, leg.metadata(metadata))
            if self._reading is not None:
                first = self._reading.prefill(first, MOST_PREFILL_MESSAGES + 1)
            self._first = first
            self._limit(most_s)
            if plan.shape.is_together:
                self._then = self._sent(decode, plan.request, metadata)

    def cancel(self) -> bool:
        """End the legs that run."""
        self._cancelled = True
        ended = [self._end_prefill(), self._then is not None and self._then.cancel()]
        return any(ended)

    async def abort(self, *, timeout: float) -> tuple[bool, str]:
        """Have the engines stop that run a leg."""
        first = self._leg.client
        if first is None or self._is_computed or not self._plan.abort_safe:
            first = None
        clients = [first] if first is not None else []
        if self._then is not None and (self._reading is None or self._messages_out):
            clients.append(self._decode)
        if not clients:
            return False, "a prefill that goes on by itself"
        asked = [client.abort(self._attempt_id, timeout=timeout) for client in clients]
        answers = await asyncio.gather(*asked)
        return any(done for done, _ in answers), "; ".join(text for _, text in answers)

    def __aiter__(self) -> Answers:
        return self._messages()

    async def _messages(self) -> Answers:
        leg, plan = self._leg, self._plan
        try:
            if self._first is None:
                raise self._failed("prefill", Origin.CONNECT, "it has no address")
            if plan.shape.is_together:
                self._beside = asyncio.create_task(self._compute_beside(), name="prefill leg")
            else:
                parcel = await self._compute()
                if parcel is None:
                    for message in self._whole:
                        yield message
                    return
                then = self._sent(self._decode, plan.decode(parcel), self._metadata)
                self._then = then if self._reading is None else self._reading.decode(then, parcel)
                if self._cancelled:
                    self._then.cancel()
                self._limit(self._outcomes.limits.disagg_handoff_timeout_s)
                if self._first_chunk is not None:
                    leg.has_spoken = True
                    yield self._first_chunk.SerializeToString()
            assert self._then is not None
            async with aclosing(_iterated(self._then)) as answers:
                async for message in self._decoded(answers):
                    yield message
        finally:
            self._unlimit()
            if self._beside is not None:
                self._end_prefill()
                self._beside.cancel()
                await asyncio.wait([self._beside])
            leg.end()

    async def _compute(self) -> bytes | None:
        """Have the prompt computed: what it hands over; None if it is the whole answer, or both
        legs run."""
        leg, plan, call = self._leg, self._plan, self._first
        assert call is not None
        messages: list[bytes] = []
        try:
            async with aclosing(_iterated(call)) as answers:
                async for message in answers:
                    messages.append(message)
                    if len(messages) > MOST_PREFILL_MESSAGES:
                        raise self._failed("prefill", Origin.ENGINE, "it answers without end")
        except PrefillFailedError:
            raise
        except EngineCallError as error:
            raise self._failed(
                "prefill", error.origin, error.details(), error.code(), error.public
            ) from None
        except asyncio.CancelledError:
            if is_cancelled() or self._cancelled:
                raise
            if self._late:
                raise self._failed("prefill_timeout", Origin.SILENCE, "it took too long") from None
            raise self._failed("prefill", Origin.WORKER_DOWN, "it was removed") from None
        finally:
            self._unlimit()
        self._first, self._is_computed = None, True
        if not messages:
            raise self._failed("prefill_empty", Origin.EMPTY, "it ended without an answer")
        parts = [read(message) for message in messages]
        try:
            check_reason(parts[-1].complete.finish_reason)
        except EngineCallError as error:
            raise self._failed("prefill", error.origin, error.details()) from None
        cached = max(max(each.chunk.cached_tokens, each.complete.cached_tokens) for each in parts)
        leg.on_computed(cached)
        ended = plan.ends_with_prefill and parts[-1].complete.finish_reason != "length"
        if plan.is_whole or ended:
            self._whole = as_whole(parts, self._own_id, plan.request)
            return None
        if plan.shape.is_together:
            return None
        parcel = handoff_of(messages[-1])
        why = why_refused(parcel, leg.address)
        if parcel is None or why is not None:
            if parcel is not None and self._reading is not None:
                self._reading.give_up()
            raise self._failed("no_parcel", Origin.ENGINE, why or "")
        if leg.is_first:
            self._first_chunk = first_of(parts, self._own_id)
            if self._first_chunk is not None:
                self._first_chunk.chunk.cached_tokens = cached
        return parcel

    async def _compute_beside(self) -> None:
        """The same while the decode worker waits, which ends if there is nothing to wait for."""
        try:
            await self._compute()
        except PrefillFailedError as error:
            self._failure = error
        if self._messages_out:
            self._leg.end()
        elif self._failure is None and not self._whole:
            self._limit(self._outcomes.limits.disagg_handoff_timeout_s)
        elif self._then is not None:
            self._then.cancel()

    async def _decoded(self, answers: Answers) -> Answers:
        """The decode worker's messages, with the usage of the whole request in them."""
        leg = self._leg
        try:
            async for message in answers:
                answer = read(message)
                if not self._messages_out:
                    if is_empty(answer):
                        text = "it ended without a token after the prompt was handed over"
                        raise self._lost("decode_empty", Origin.EMPTY, StatusCode.OK, text)
                    rest = self._after_first(answer, message)
                    self._on_first_token()
                    if rest is None:
                        self._messages_out += 1
                        continue
                    message = rest
                self._messages_out += 1
                if self._beside is not None and answer.HasField("complete"):
                    await asyncio.wait([self._beside], timeout=LAST_WORDS_S)
                yield as_one(answer, message, leg.cached_tokens, self._own_id, self._attempt_id)
            if not self._messages_out and not self._whole:
                self._outcomes.failures["decode_empty"] += 1
        except EngineCallError as error:
            if self._messages_out or isinstance(error, _LostError):
                raise
            if self._beside is not None:
                await asyncio.sleep(0)  # what ended both may be the prefill worker's doing
                if self._failure is not None:
                    raise self._failure from None
            refused = error.code() is StatusCode.INVALID_ARGUMENT
            code = StatusCode.INTERNAL if refused else error.code()  # it is not its client's doing
            raise self._lost("decode", error.origin, code, error.details(), error.public) from None
        except asyncio.CancelledError:
            if is_cancelled() or self._cancelled or self._messages_out:
                raise
            if self._failure is not None:
                raise self._failure from None
            if not self._whole:
                if not self._late:
                    raise
                text = "it had no token in time after the prompt was handed over"
                raise self._lost(
                    "handoff_timeout", Origin.SILENCE, StatusCode.UNAVAILABLE, text
                ) from None
        if not self._messages_out:
            for message in self._whole:
                yield message

    def _after_first(self, answer: Any, message: bytes) -> bytes | None:
        """What the client has not got of the decode worker's first message."""
        if self._first_chunk is None:
            return message
        try:
            return after_first(answer, message, self._first_chunk.chunk.token_ids[0])
        except ValueError as error:
            code, text = StatusCode.INTERNAL, str(error)
            raise self._lost("decode", Origin.ENGINE, code, text) from None

    def _on_first_token(self) -> None:
        self._outcomes.on_handed_over(self._leg, self._pair)
        if self._is_computed:
            self._unlimit()
            self._leg.end()

    def _sent(self, client: EngineClient, request: bytes, metadata: Metadata) -> EngineCall:
        ends_at, now = self._ends_at, self._outcomes.now()
        left = None if ends_at is None else max(0.0, ends_at - now)
        if left is not None and self._reading is not None:  # its deadline must not end it before
            left = max(left, self._reading.most_s)
        return client.generate(request, timeout=left, metadata=metadata)

    def _end_prefill(self) -> bool:
        """End the prefill if it runs; one that must not be ended goes on, without a reader."""
        call, self._first = self._first, None
        if call is None:
            return False
        if self._plan.abort_safe or self._plan.must_read:
            return call.cancel()
        most = self._outcomes.prefill_timeout_s(self._pair)
        asyncio.get_running_loop().call_later(most, call.cancel)
        return True

    def _limit(self, seconds: float) -> None:
        self._timer = LenientTimer(seconds, self._expire)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._late = True
        call = self._first or self._then
        if call is not None:
            call.cancel()

    def _failed(
        self,
        phase: str,
        origin: Origin,
        details: str,
        code: StatusCode | None = None,
        public: str | None = None,
    ) -> PrefillFailedError:
        if not self._messages_out:
            self._outcomes.failures[phase] += 1
        leg = self._leg
        leg.is_computing = False
        self._first = None
        if code is None:
            code = StatusCode.INTERNAL if origin is Origin.ENGINE else StatusCode.UNAVAILABLE
        return PrefillFailedError(leg, origin, code, details, public)

    def _lost(
        self, phase: str, origin: Origin, code: StatusCode, text: str, public: str | None = None
    ) -> EngineCallError:
        self._outcomes.failures[phase] += 1
        return _LostError(origin, code, text, public=public)


def _iterated(call: EngineCall) -> Answers:
    return cast("Answers", aiter(call))


class _LostError(EngineCallError):
    """The decode worker failed its leg, and that was counted."""


class PairCall(EngineCall, Protocol):
    """A call of a pair of workers."""

    async def abort(self, *, timeout: float) -> tuple[bool, str]:
        """Have the engines stop that run a leg."""
        ...


class HandoffClient:
    """The way to a pair of workers, for one attempt of a request."""

    def __init__(self, decode: EngineClient, start: Callable[..., PairCall]) -> None:
        self.address = decode.address
        self._start = start
        self._call: PairCall | None = None

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> PairCall:
        """Begin both legs; see EngineClient."""
        self._call = self._start(request, timeout, tuple(metadata or ()))
        return self._call

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Have the legs stopped that run, under the id that their engines know."""
        if self._call is None:
            return False, "not started"
        return await self._call.abort(timeout=timeout)
