"""CarriedCall: a request's call to its engine, carried by Envoy; the dispatcher's view of it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from ...base.errors import StatusCode
from ...base.request_record import Generation
from ...server.dispatch import Attempt, Request
from ...server.handoff import HandoffOutcomes, PrefillFailedError, PrefillLeg
from ...workers.dialects import error_of
from ...workers.failures import EngineCallError, Origin
from .answers import PassingAnswer
from .endpoints import Endpoints, no_endpoint
from .exchange import AnswerBegan

Route = Callable[[str, dict[str, str]], Awaitable[None]]
"""Sends the request to these endpoints, with these headers."""
_GATEWAY = (502, 503, 504)
"""Statuses by which the side-car of a decode worker says that the prefill worker failed."""


class CarriedCall:
    """Implements Carrier, and the EngineCall that it gives.

    What Envoy shows of the answer goes in by `begin`, `feed` and `end`; the dispatcher iterates it.
    Only the newest message waits: each one counts all tokens so far.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        fallbacks: int,
        route: Route,
        is_ready: Callable[[int], bool],
        outcomes: HandoffOutcomes,
    ) -> None:
        self._endpoints, self._send_route = endpoints, route
        self.fallbacks = fallbacks
        self._is_ready, self._outcomes = is_ready, outcomes
        self._leg: PrefillLeg | None = None
        """while the prompt is computed or handed over, as far as is known"""
        self._is_worker = True
        """the endpoint is the worker itself, or its side-car"""
        self._timer: asyncio.TimerHandle | None = None
        self._route: Callable[[], Awaitable[None]] | None = None
        self._sent = False
        self._offered: list[str] = []
        self._request: Request | None = None
        self._answer: PassingAnswer | None = None
        self._message: bytes | None = None
        self._last: bytes | None = None
        self._error: Exception | None = None
        self._cancelled = False
        self._first_at: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.moved = False
        self.passes_on = False
        """what failed here does not concern the client: its answer is on its way"""
        self.ignored = ""
        """the endpoint that Envoy chose by itself, where it took none that it was offered"""

    # Carrier

    def send(self, request: Request, attempt: Attempt) -> "CarriedCall":
        worker_id, dp_rank = attempt.decision.worker
        self._request, self._error = request, None
        self.moved = self.passes_on = False
        leg = self._leg = attempt.leg
        self._is_worker = self._endpoints.is_worker(worker_id)
        if not self._sent:
            workers = (worker_id, *attempt.decision.runners_up)
            found = dict.fromkeys(self._endpoints.of_worker(each) for each in workers)
            self._offered = [endpoint for endpoint in found if endpoint]
            if not self._offered:
                raise no_endpoint(worker_id)
            if leg is not None and leg.client is None:
                raise no_endpoint(leg.worker_id, role="prefill worker")
            headers = self._endpoints.headers_for(worker_id, dp_rank, leg)
            self._route = partial(self._send_route, ",".join(self._offered), headers)
        if leg is not None:
            leg.begin()
            first_token_s = attempt.pair.first_token_s
            if not request.facts.streaming and first_token_s is not None:
                # Its answer comes whole: nothing will say when the prompt was handed over.
                self._timer = asyncio.get_running_loop().call_later(first_token_s, leg.end)
        return self

    # EngineCall

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._messages()

    def cancel(self) -> bool:
        self._cancelled = True
        self._wake()
        return True

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        if not self._sent:
            assert self._route is not None
            self._sent = True
            await self._route()
        try:
            async for message in self._shown():
                yield message
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _shown(self) -> AsyncGenerator[bytes, None]:
        while True:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._error is not None:
                raise self._error
            if self._message is not None:
                message, self._message = self._message, None
                yield message
            elif self._last is not None:
                yield self._last
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    # What Envoy shows

    def generation(self) -> Generation:
        """What the engine has made so far."""
        request, answer = self._request, self._answer
        return Generation(
            0 if request is None else request.facts.prompt.isl,
            0 if answer is None else answer.tokens,
            0 if answer is None else answer.cached_tokens,
            self._first_at,
            (),
        )

    def begin(self, began: AnswerBegan) -> None:
        """The head of the answer."""
        request = self._request
        if request is None or request.attempt is None:
            return
        if began.status >= 400 or began.status < 200:
            self.passes_on = True
            self._fail_with(began)
            return
        self._answer = PassingAnswer(began.headers, request.facts.prompt.isl)
        if began.served and began.served != self._offered[0]:
            self._move(request, began.served)
        if self._leg is not None and request.facts.streaming and not self.moved:
            # A side-car asks the decode worker once that is so; a frontend begins before.
            if self._is_worker:
                self._leg.on_computed()

    def feed(self, data: bytes) -> None:
        """Bytes of the answer."""
        if self._answer is not None and (message := self._answer.feed(data)) is not None:
            self._message = message
            if self._first_at is None:
                self._first_at = time.monotonic()
            leg, self._leg = self._leg, None
            if leg is not None:
                self._on_handed_over(leg)
            self._wake()

    def end(self) -> None:
        """The answer is whole."""
        if self._answer is not None:
            self._last = self._answer.complete()
            self._wake()

    def _on_handed_over(self, leg: PrefillLeg) -> None:
        request = self._request
        assert request is not None and request.attempt is not None
        if leg.is_computing:  # of a request that Envoy moved: its head came before this attempt
            leg.on_computed()
        else:
            self._outcomes.on_handed_over(leg, request.attempt.pair)
        leg.end()

    def _fail_with(self, began: AnswerBegan) -> None:
        error, leg = error_of(began.status, b"", began.headers.get("retry-after")), self._leg
        self._leg = None
        if leg is None or began.status not in _GATEWAY or not self._is_worker:
            self._fail(error)
            return
        self._outcomes.failures["prefill"] += 1
        leg.is_computing = False
        self._fail(PrefillFailedError(leg, error.origin, error.code(), error.details()))

    def _move(self, request: Request, served: str) -> None:
        """Have it booked where it is served: at a fallback, or where Envoy's own balancing put it.

        That one was chosen because the first could not be reached; what Envoy chooses in place of
        all that it is offered says nothing of them.
        """
        if served not in self._offered:
            self.ignored = served
            return
        if not self._is_worker:
            return  # another frontend, which calls the same worker
        for worker_id in self._endpoints.workers_at((served,)):
            if self._is_ready(worker_id):
                request.placement = replace(request.placement, allowed=(worker_id,))
                self.moved = self.passes_on = True
                self._leg = None
                text = f"Envoy could not reach it, and went to {served}"
                self._fail(EngineCallError(Origin.CONNECT, StatusCode.UNAVAILABLE, text))
                return

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
