"""HandoffCall: both legs of a request as one call; its messages are those of the decode worker."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

from google.protobuf.message import DecodeError

from ...base.errors import StatusCode
from ...process.supervised import is_cancelled
from ...router.pairs import PairDecision
from ...workers.channels import EngineCall, Metadata
from ...workers.dialects import EngineClient, handoff_of
from ...workers.failures import EngineCallError, Origin
from ...workers.handoffs import MOST_PARCEL_BYTES, HandoffPlan, foreign_host
from ...workers.trtllm_proto import pb
from .leg import PrefillFailedError, PrefillLeg
from .outcomes import HandoffOutcomes

MOST_PREFILL_MESSAGES = 16
"""Of an answer of one token."""


class HandoffCall:
    """See EngineCall. It begins at once; both legs end with it.

    A failure of the prefill worker is a PrefillFailedError, any other the decode worker's.
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
    ) -> None:
        """`ids`: the request's own, and that of this attempt, by which engines know it."""
        self._outcomes, self._leg, self._decode, self._plan = outcomes, leg, decode, plan
        self._own_id, self._attempt_id = ids
        self._pair = pair
        self._ends_at = None if timeout is None else outcomes.now() + timeout
        self._metadata = metadata
        self._call: EngineCall | None = None
        self._client: EngineClient | None = None
        """where the leg that runs is"""
        self._timer: asyncio.TimerHandle | None = None
        self._late = self._cancelled = False
        self._messages_out = 0
        if leg.client is not None:
            leg.begin()
            self._begin(leg.client, plan.prefill, leg.metadata(metadata))
            self._limit(outcomes.prefill_timeout_s(pair))

    def cancel(self) -> bool:
        """End the leg that runs, whichever it is."""
        self._cancelled = True
        return self._call is not None and self._call.cancel()

    async def abort(self, *, timeout: float) -> tuple[bool, str]:
        """Have the engine stop that runs a leg."""
        client = self._client
        if client is None:
            return False, "between its prefill and its decode worker"
        if client is self._leg.client and not self._plan.abort_safe:
            return False, "a prefill that goes on by itself"
        return await client.abort(self._attempt_id, timeout=timeout)

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        leg, plan = self._leg, self._plan
        try:
            messages, parcel = await self._compute()
            if parcel is None:
                for message in messages:
                    yield message
                return
            self._begin(self._decode, plan.decode(parcel), self._metadata)
            self._limit(self._outcomes.limits.disagg_handoff_timeout_s)
            async with aclosing(self._answers()) as answers:
                async for message in self._decoded(answers):
                    yield message
        finally:
            self._unlimit()
            leg.end()

    async def _compute(self) -> tuple[list[bytes], bytes | None]:
        """Have the prompt computed: the prefill's messages if they are the whole answer, else what
        it hands over."""
        leg = self._leg
        if self._call is None:
            raise self._failed("prefill", Origin.CONNECT, "it has no address")
        messages: list[bytes] = []
        try:
            async with aclosing(self._answers()) as answers:
                async for message in answers:
                    messages.append(message)
                    if len(messages) > MOST_PREFILL_MESSAGES:
                        raise self._failed("prefill", Origin.ENGINE, "it answers without end")
        except PrefillFailedError:
            raise
        except EngineCallError as error:
            raise self._failed("prefill", error.origin, error.details(), error.code()) from None
        except asyncio.CancelledError:
            self._ended_by_us("prefill")
            raise  # which it never comes to
        finally:
            self._unlimit()
        self._client = None
        if not messages:
            raise self._failed("prefill_empty", Origin.EMPTY, "it ended without an answer")
        read = [_read(message) for message in messages]
        cached = max(max(each.chunk.cached_tokens, each.complete.cached_tokens) for each in read)
        leg.on_computed(cached)
        last = read[-1].complete
        if self._plan.is_whole or last.finish_reason != "length":
            return [_without_parcel(each, self._own_id) for each in read], None
        parcel = handoff_of(messages[-1])
        why = _why_refused(parcel, leg.address)
        if parcel is None or why is not None:
            raise self._failed("no_parcel", Origin.ENGINE, why or "")
        return [], parcel

    async def _decoded(self, answers: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The decode worker's messages, with the usage of the whole request in them."""
        leg, outcomes = self._leg, self._outcomes
        try:
            async for message in answers:
                answer = _read(message)
                if not self._messages_out:
                    if _is_empty(answer):
                        text = "it ended without a token after the prompt was handed over"
                        raise self._lost("decode_empty", Origin.EMPTY, StatusCode.OK, text)
                    self._unlimit()
                    outcomes.on_handed_over(leg, self._pair)
                    leg.end()
                self._messages_out += 1
                yield _as_one(answer, message, leg.cached_tokens, self._own_id, self._attempt_id)
            if not self._messages_out:
                outcomes.failures["decode_empty"] += 1
        except EngineCallError as error:
            if self._messages_out or isinstance(error, _LostError):
                raise
            refused = error.code() is StatusCode.INVALID_ARGUMENT
            code = StatusCode.INTERNAL if refused else error.code()  # it is not its client's doing
            raise self._lost("decode", error.origin, code, error.details()) from None
        except asyncio.CancelledError:
            if self._late and not is_cancelled():
                text = "it had no token in time after the prompt was handed over"
                raise self._lost(
                    "handoff_timeout", Origin.SILENCE, StatusCode.UNAVAILABLE, text
                ) from None
            raise

    def _begin(self, client: EngineClient, request: bytes, metadata: Metadata) -> None:
        ends_at, now = self._ends_at, self._outcomes.now()
        left = None if ends_at is None else max(0.0, ends_at - now)
        self._client = client
        self._call = client.generate(request, timeout=left, metadata=metadata)
        if self._cancelled:
            self._call.cancel()

    def _answers(self) -> AsyncGenerator[bytes, None]:
        assert self._call is not None
        return cast("AsyncGenerator[bytes, None]", aiter(self._call))

    def _limit(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._late = True
        if self._call is not None:
            self._call.cancel()

    def _ended_by_us(self, phase: str) -> None:
        """The prefill's call was cancelled: raises what that means."""
        if is_cancelled() or self._cancelled:
            raise asyncio.CancelledError
        if self._late:
            raise self._failed(f"{phase}_timeout", Origin.SILENCE, "it took too long") from None
        raise self._failed(phase, Origin.WORKER_DOWN, "it was removed") from None

    def _failed(
        self, phase: str, origin: Origin, details: str, code: StatusCode | None = None
    ) -> PrefillFailedError:
        self._outcomes.failures[phase] += 1
        leg = self._leg
        leg.is_computing = False
        if code is None:
            code = StatusCode.INTERNAL if origin is Origin.ENGINE else StatusCode.UNAVAILABLE
        return PrefillFailedError(leg, origin, code, details)

    def _lost(self, phase: str, origin: Origin, code: StatusCode, text: str) -> EngineCallError:
        self._outcomes.failures[phase] += 1
        return _LostError(origin, code, text)


class _LostError(EngineCallError):
    """The decode worker failed its leg, and that was counted."""


class HandoffClient:
    """The way to a pair of workers, for one attempt of a request."""

    def __init__(self, decode: EngineClient, start: Callable[..., HandoffCall]) -> None:
        self.address = decode.address
        self._start = start
        self._call: HandoffCall | None = None

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> HandoffCall:
        """Begin both legs; see EngineClient."""
        self._call = self._start(request, timeout, tuple(metadata or ()))
        return self._call

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Have the leg stopped that runs, under the id that its engine knows."""
        if self._call is None:
            return False, "not started"
        return await self._call.abort(timeout=timeout)


def _read(message: bytes) -> Any:
    try:
        return pb.GenerateResponse.FromString(message)
    except DecodeError:
        return pb.GenerateResponse()


def _is_empty(answer: Any) -> bool:
    """Whether an answer that begins with this message ends with it, and has nothing: an engine
    that ran out of patience with its partner says so by a success."""
    last = answer.complete
    return bool(
        answer.HasField("complete")
        and not last.output_token_ids
        and last.finish_reason not in ("stop", "end_id", "stop_words", "cancelled")
    )


def _without_parcel(answer: Any, own_id: str) -> bytes:
    answer.DiscardUnknownFields()
    answer.request_id = own_id
    body: bytes = answer.SerializeToString()
    return body


def _as_one(answer: Any, message: bytes, cached_tokens: int, own_id: str, attempt_id: str) -> bytes:
    """A decode worker's message as that of one worker for the whole request."""
    which = answer.WhichOneof("response")
    if which not in ("chunk", "complete"):
        return message
    part = getattr(answer, which)
    if part.cached_tokens == cached_tokens and own_id == attempt_id:
        return message
    part.cached_tokens = cached_tokens
    answer.request_id = own_id
    body: bytes = answer.SerializeToString()
    return body


def _why_refused(parcel: bytes | None, address: str) -> str | None:
    """Why a parcel cannot go on; nothing of its contents is in it."""
    if parcel is None:
        return "it handed nothing over: it serves no such requests"
    if len(parcel) > MOST_PARCEL_BYTES:
        return f"it handed {len(parcel)} bytes over: more than {MOST_PARCEL_BYTES}"
    if foreign_host(parcel, address) is not None:
        return "what it handed over names another host than its own"
    return None
