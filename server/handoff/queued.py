"""QueuedCall: a request whose decode worker has the prompt computed through the prefill queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from ...base.errors import StatusCode
from ...process.supervised import is_cancelled
from ...router.pairs import PairDecision
from ...workers.channels import Metadata
from ...workers.dialects import EngineClient
from ...workers.failures import EngineCallError, Origin
from ...workers.trtllm_proto import pb
from .leg import PrefillLeg
from .leg_answers import is_empty, read
from .outcomes import HandoffOutcomes


class QueuedCall:
    """See EngineCall. The booking at a prefill worker ends with the decode worker's first token.

    Who computes the prompt is the decode worker's to find: if none does, it does so itself. So a
    failure here is the decode worker's.
    """

    def __init__(
        self,
        outcomes: HandoffOutcomes,
        leg: PrefillLeg,
        decode: EngineClient,
        request: bytes,
        ids: tuple[str, str],
        pair: PairDecision,
        timeout: float | None,
        metadata: Metadata,
    ) -> None:
        """`ids`: the request's own, and that of this attempt, by which the engine knows it."""
        self._outcomes, self._leg, self._decode = outcomes, leg, decode
        self._own_id, self._attempt_id = ids
        self._call = decode.generate(request, timeout=timeout, metadata=metadata)
        outcomes.queued[self] = outcomes.tokens_to_come(pair), outcomes.now()
        self._late = self._cancelled = False
        limits = outcomes.limits
        seconds = outcomes.prefill_timeout_s(pair) + limits.disagg_handoff_timeout_s
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def cancel(self) -> bool:
        """End it, also where it has no reader."""
        self._cancelled = True
        self._outcomes.queued.pop(self, None)
        return self._call.cancel()

    async def abort(self, *, timeout: float) -> tuple[bool, str]:
        """Have the decode worker stop, which gives the prompt up in the queue."""
        return await self._decode.abort(self._attempt_id, timeout=timeout)

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        is_first = True
        answers = cast("AsyncGenerator[bytes, None]", aiter(self._call))
        try:
            async with aclosing(answers):
                async for message in answers:
                    if is_first and is_empty(read(message)):
                        text = "it ended without a token"
                        raise self._lost("decode_empty", Origin.EMPTY, StatusCode.OK, text)
                    if is_first:
                        self._end_leg()
                    is_first = False
                    yield self._named(message)
        except asyncio.CancelledError:
            if not self._late or is_cancelled() or self._cancelled:
                raise
            text = "it had no token in time, its prompt being in the prefill queue"
            raise self._lost(
                "handoff_timeout", Origin.SILENCE, StatusCode.UNAVAILABLE, text
            ) from None
        finally:
            self._end_leg()

    def _end_leg(self) -> None:
        """Its prompt is computed, or will not be. Idempotent."""
        self._timer.cancel()
        self._leg.end()
        self._outcomes.queued.pop(self, None)

    def _named(self, message: bytes) -> bytes:
        """With the id that the client knows."""
        if self._own_id == self._attempt_id:
            return message
        answer = pb.GenerateResponse.FromString(message)
        answer.request_id = self._own_id
        body: bytes = answer.SerializeToString()
        return body

    def _expire(self) -> None:
        self._late = True
        self._call.cancel()

    def _lost(self, phase: str, origin: Origin, code: StatusCode, text: str) -> EngineCallError:
        self._outcomes.failures[phase] += 1
        return EngineCallError(origin, code, text)
