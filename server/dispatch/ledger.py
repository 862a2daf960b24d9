"""What an attempt counts as: load while it lasts, a sample if it answers, a fault if it fails."""

import asyncio
from functools import partial
from typing import Any

import structlog

from ...base.clock import Clock
from ...base.errors import StatusCode, WorkerError
from ...base.lost_time import LostTime
from ...base.request_record import current_record
from ...router.decider import Decider
from ...workers.failures import Blame, EngineCallError, Origin, judge, shortened
from ...workers.health import HealthMonitor
from ..handoff import Handoffs, PrefillFailedError, PrefillLeg
from .generate_answer import cached_tokens_of, is_blank
from .prefill_estimate import PrefillEstimate
from .request import Attempt, Request
from .retries import FailedAttempt, RetryBudget
from .status import RequestAbortedError, RequestTimeoutError

LOGGED_DETAILS = 200
"""Characters of a worker's words in the log."""

# What an engine says of itself, rather than of the request: its client gets that in our words.
_LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
# A request that failed on no worker: what is not its client's doing.
_FAILURES = (
    StatusCode.UNAVAILABLE,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.INTERNAL,
)

log = structlog.get_logger(__name__)


class AttemptLedger:
    """Keeps router, health monitor and retry budget right about attempts, as they are sent, begin
    to answer, fail or are cancelled, and end."""

    def __init__(
        self,
        decider: Decider,
        monitor: HealthMonitor,
        clock: Clock,
        budget: RetryBudget,
        handoffs: Handoffs,
        lost: LostTime,
    ) -> None:
        self._waited = lost.waited
        self._outcomes = handoffs.outcomes
        self._router = decider.router
        self._load_fell = decider.poll
        self._reports = monitor.reports
        self._now = clock.now
        self._budget = budget
        self._estimate = PrefillEstimate()
        # By booking: prefills of whole answers, and of streams that count no more without a token.
        self._prefills: dict[str, asyncio.TimerHandle] = {}
        self._released: set[str] = set()

    def on_sent(self, request: Request, attempt: Attempt) -> None:
        worker_id = attempt.worker_id
        if not request.facts.streaming and attempt.leg is None:
            # Its answer comes whole: nothing will say when the prompt was computed.
            now, tokens = attempt.sent_at, attempt.prefill_tokens
            wait = self._estimate.end_of(worker_id, tokens, now) - now
            loop, booking_id = asyncio.get_running_loop(), attempt.booking_id
            timer = loop.call_later(wait, self._release_prefill, booking_id)
            self._prefills[booking_id] = timer
        self._reports.sent(worker_id)

    def on_first_message(
        self, request: Request, attempt: Attempt, message: bytes, now: float
    ) -> None:
        waited, tokens, leg = now - attempt.sent_at, attempt.prefill_tokens, attempt.leg
        if attempt.pair.reason and request.facts.streaming:
            self._outcomes.on_first_token(request.request_id, attempt.pair, waited)
        if leg is not None:
            if leg.has_spoken:  # it is the prefill worker's
                leg.when_decoded(partial(self._on_landed, request, attempt, leg))
            else:
                self._on_landed(request, attempt, leg)
            return
        if request.facts.streaming:
            cached_tokens = cached_tokens_of(message)
            self._router.mark_prefill_complete(attempt.booking_id, cached_tokens=cached_tokens)
            self._estimate.observe(tokens, waited)
            self._load_fell()
        else:  # the whole answer
            self._estimate.observe_whole(tokens, waited)
        self._reports.answered(attempt.worker_id, waited)
        if request.retrying or request.failures.failed:
            self._settle(request, served=True)

    def _on_landed(self, request: Request, attempt: Attempt, leg: PrefillLeg) -> None:
        """The decode worker's first message of a prompt that was handed over: it has computed
        nothing, and had it only since then."""
        self._router.mark_prefill_complete(attempt.booking_id)
        self._load_fell()
        waited = self._now() - leg.computed_at - leg.held_s
        self._reports.answered(attempt.worker_id, max(0.0, waited))
        self._settle(request, served=True)

    def on_overdue(self, attempt: Attempt, waited: float) -> None:
        """A stream has no first message after so long: its prompt counts no more once that is far
        more than a prefill takes."""
        booking_id = attempt.booking_id
        if booking_id in self._released:
            return
        if waited > self._estimate.release_after_s(attempt.prefill_tokens):
            self._released.add(booking_id)
            self._router.release_prefill(booking_id)
            self._load_fell()

    def forget(self, now: float) -> None:
        """Drop the estimates of workers that have computed all their prompts."""
        self._estimate.forget(now)

    def on_failed(
        self,
        request: Request,
        attempt: Attempt,
        origin: Origin,
        code: StatusCode,
        details: str,
        error: EngineCallError | None = None,
    ) -> Exception:
        """Judge and note an attempt's failure; the error for the client if it was the last one."""
        leg = error.leg if isinstance(error, PrefillFailedError) else None
        worker_id, reports = attempt.worker_id, self._reports
        if leg is not None:
            reports.given_up(worker_id)
            worker_id, reports = leg.worker_id, leg.reports
        if request.aborted and code is StatusCode.CANCELLED:
            reports.given_up(worker_id)
            return RequestAbortedError(f"request {request.request_id} was aborted")
        verdict = judge(origin, code, started=attempt.messages > 0)
        request.failures.add(FailedAttempt(worker_id, origin, verdict, details, reports))
        waited = self._waited(attempt.sent_at, self._now())
        reports.failed(worker_id, verdict, waited, pinned=_is_pinned(request))
        if origin is Origin.DEADLINE:
            return error or RequestTimeoutError(details)
        own = origin is Origin.ENGINE and code not in _LOST
        if error is not None and (own or verdict.blame in (Blame.REQUEST, Blame.US)):
            return error
        which = "worker" if leg is None else "prefill worker"
        when = f"in mid-stream after {attempt.messages} messages"
        text = shortened(details if error is None else error.public)
        return WorkerError(
            f"the {which} was lost {when if attempt.messages else 'before it answered'}: {text}",
            worker_id=worker_id,
        )

    def on_served(self, request: Request, attempt: Attempt) -> None:
        """An attempt's answer is whole."""
        worker_id, waited = attempt.worker_id, self._now() - attempt.sent_at
        if attempt.messages == 1 and is_blank(request.last_message):
            self._reports.blank(worker_id, waited, pinned=_is_pinned(request))
        else:
            self._reports.succeeded(worker_id, waited)

    def on_finished(self, request: Request) -> None:
        """Its worker failed when only the last message was missing, or nothing that its client
        wants: no other one is asked."""
        self._settle(request, served=False)

    def on_cancelled(self, request: Request, attempt: Attempt, *, late: bool) -> None:
        """Its task was cancelled while a worker had it; `late`: because its time was over."""
        reports, worker_id = self._reports, attempt.worker_id
        computing = attempt.leg is not None and attempt.leg.is_computing
        if late and not attempt.messages and not computing:
            verdict = judge(Origin.DEADLINE, StatusCode.DEADLINE_EXCEEDED, started=False)
            details = "the worker sent nothing in time"
            request.failures.add(FailedAttempt(worker_id, Origin.DEADLINE, verdict, details))
            waited = self._waited(attempt.sent_at, self._now())
            reports.failed(worker_id, verdict, waited, pinned=_is_pinned(request))
        else:
            reports.given_up(worker_id)

    def on_ended(self, attempt: Attempt) -> None:
        """An attempt is over, however it ended."""
        # A message is a token or a few: it is their pace that a policy learns.
        booking_id, attempt.ended = attempt.booking_id, True
        self.release(booking_id, attempt.leg, attempt.messages or None)
        if self._prefills and (timer := self._prefills.pop(booking_id, None)) is not None:
            timer.cancel()
        if self._released:
            self._released.discard(booking_id)
        self._load_fell()

    def release(
        self, booking_id: str, leg: PrefillLeg | None, output_tokens: int | None = None
    ) -> None:
        """What was booked is load no more."""
        try:
            self._router.free(booking_id, output_tokens=output_tokens)
        finally:
            if leg is not None:
                leg.end()

    def on_request_failed(self, request: Request, code: StatusCode, details: str) -> None:
        """A request ended otherwise than well; `details` is the text for its client.

        A line in the log, unless that is its client's own doing.
        """
        self._settle(request, served=False)
        failures = request.failures
        more: dict[str, Any] = {}
        if len(failures):
            if failures.last.verdict.blame is Blame.CLIENT:
                return
            details = failures.last.details
            if failures.is_deadly:
                more["breaks_workers"] = True
        elif code not in _FAILURES:
            return
        if (record := current_record()) is not None:
            more["http_request_id"], record.is_logged = record.request_id, True
        log.warning(
            "request failed",
            request_id=request.request_id[:LOGGED_DETAILS],
            status=code.name,
            attempts=failures.describe(),
            details=details[:LOGGED_DETAILS],
            **more,
        )

    def _settle(self, request: Request, *, served: bool) -> None:
        """Report who was to blame for earlier failures; give the retry budget its share back."""
        if request.retrying:
            request.retrying = False
            self._budget.give_back()
        failures = request.failures
        suspects = failures.take_suspects(served=served) if failures.failed else ()
        for suspect in suspects:
            reports = suspect.reports or self._reports
            if served:
                reports.convicted(suspect.worker_id, suspect.verdict)
            elif len(suspects) == 1 and not _is_pinned(request):
                reports.undecided(suspect.worker_id)
            else:
                reports.given_up(suspect.worker_id)

    def _release_prefill(self, booking_id: str) -> None:
        del self._prefills[booking_id]
        self._router.release_prefill(booking_id)
        self._load_fell()


def _is_pinned(request: Request) -> bool:
    return request.placement.pinned is not None
