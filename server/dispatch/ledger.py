"""What an attempt counts as: load while it lasts, a sample if it answers, a fault if it fails."""

import asyncio
from collections.abc import Callable

import structlog

from ...base.clock import Clock
from ...base.errors import StatusCode, WorkerError
from ...router.policy import Decision
from ...workers.failures import Blame, Origin, judge, shortened
from ...workers.health import HealthMonitor
from .attempts import Attempt, RetryBudget
from .decisions import Bookings
from .generate_answer import is_blank, told_cached_tokens
from .prefill_estimate import PrefillEstimate
from .request import Flight
from .status import RequestAbortedError, RequestTimeoutError

LOGGED_DETAILS = 200
"""Characters of a worker's words in the log."""

# What an engine says of itself, rather than of the request: its client hears that in our words.
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
    """Keeps router, health monitor and retry budget right about attempts. The dispatcher says what
    happens to each: sent, first message, failed or cancelled, ended.

    `on_load_fell` is called when a request that waits might go.
    """

    def __init__(
        self,
        bookings: Bookings,
        monitor: HealthMonitor,
        clock: Clock,
        budget: RetryBudget,
        estimate: PrefillEstimate,
        on_load_fell: Callable[[], None],
    ) -> None:
        self._bookings = bookings
        self._reports = monitor.reports
        self._now = clock.now
        self._budget = budget
        self._estimate = estimate
        self._load_fell = on_load_fell

    def on_sent(self, flight: Flight, decision: Decision) -> None:
        now, worker_id = self._now(), decision.worker.worker_id
        flight.taken_back, flight.writing = None, False
        flight.sent_at = flight.since = now
        flight.uncached_tokens = flight.facts.prompt.isl - decision.cached_tokens
        flight.counts_prefill = True
        if not flight.facts.streaming:
            # Its answer comes whole: nothing will say when the prompt was computed.
            wait = self._estimate.end_of(worker_id, flight.uncached_tokens, now) - now
            loop = asyncio.get_running_loop()
            flight.prefill_timer = loop.call_later(wait, self._release_prefill, flight)
        self._reports.sent(worker_id)

    def on_first_message(self, flight: Flight, message: bytes, now: float) -> None:
        assert flight.decision is not None
        waited = now - flight.sent_at
        if flight.facts.streaming:
            cached_tokens = told_cached_tokens(message)
            self._bookings.mark_prefill_complete(flight.booking_id, cached_tokens=cached_tokens)
            self._estimate.observe(flight.uncached_tokens, waited)
            self._load_fell()
        else:  # the whole answer
            self._estimate.observe_whole(flight.uncached_tokens, waited)
        self._reports.answered(flight.decision.worker.worker_id, waited)
        self._settle(flight, served=True)

    def on_failed(
        self,
        flight: Flight,
        origin: Origin,
        code: StatusCode,
        details: str,
        error: Exception | None = None,
    ) -> Exception:
        """Judge and note an attempt's failure; what to tell the client if it was the last one."""
        assert flight.decision is not None
        worker_id = flight.decision.worker.worker_id
        flight.call = None
        if flight.aborted and code is StatusCode.CANCELLED:
            self._reports.given_up(worker_id)
            return RequestAbortedError(f"request {flight.request_id} was aborted")
        verdict = judge(origin, code, started=flight.messages > 0)
        flight.attempts.add(Attempt(worker_id, origin, verdict, details))
        waited = self._now() - flight.sent_at
        pinned = flight.pinned is not None
        self._reports.failed(worker_id, verdict, waited, pinned=pinned)
        if origin is Origin.DEADLINE:
            return error or RequestTimeoutError(details)
        own = origin is Origin.ENGINE and code not in _LOST
        if error is not None and (own or verdict.blame is Blame.REQUEST):
            return error
        address = flight.client.address if flight.client is not None else "?"
        when = f"in mid-stream after {flight.messages} messages"
        return WorkerError(
            f"worker {worker_id} at {address} lost "
            f"{when if flight.messages else 'before it answered'}: {shortened(details)}",
            worker_id=worker_id,
        )

    def on_served(self, flight: Flight) -> None:
        """An attempt's answer is whole."""
        assert flight.decision is not None
        worker_id, waited = flight.decision.worker.worker_id, self._now() - flight.sent_at
        if flight.messages == 1 and is_blank(flight.last_message):
            self._reports.blank(worker_id, waited, pinned=flight.pinned is not None)
        else:
            self._reports.succeeded(worker_id, waited)

    def on_finished(self, flight: Flight) -> None:
        """Its worker failed when all was said but the last word: nobody else is asked."""
        self._settle(flight, served=False)

    def on_cancelled(self, flight: Flight, worker_id: int, *, late: bool) -> None:
        """Its task was cancelled while a worker had it; `late`: because its time was over."""
        reports = self._reports
        if late and not flight.messages:
            verdict = judge(Origin.DEADLINE, StatusCode.DEADLINE_EXCEEDED, started=False)
            said = "nothing came of it in time"
            flight.attempts.add(Attempt(worker_id, Origin.DEADLINE, verdict, said))
            pinned = flight.pinned is not None
            reports.failed(worker_id, verdict, self._now() - flight.sent_at, pinned=pinned)
        else:
            reports.given_up(worker_id)

    def on_ended(self, flight: Flight) -> None:
        """Whatever became of it."""
        # A message is a token or a few: it is their pace that a policy learns.
        self._bookings.free(flight.booking_id, output_tokens=flight.messages or None)
        flight.call = None
        if flight.prefill_timer is not None:
            flight.prefill_timer.cancel()
            flight.prefill_timer = None
        self._load_fell()

    def on_request_failed(self, flight: Flight, code: StatusCode, said: str) -> None:
        """A request ended otherwise than well; `said` is what its client is told.

        A line in the log, unless that is its client's own doing.
        """
        self._settle(flight, served=False)
        attempts, more = flight.attempts, {}
        if len(attempts):
            if attempts.last.verdict.blame is Blame.CLIENT:
                return
            said = attempts.last.details
            if attempts.is_deadly:
                more["breaks_workers"] = True
        elif code not in _FAILURES:
            return
        log.warning(
            "request failed",
            request_id=flight.request_id[:LOGGED_DETAILS],
            status=code.name,
            attempts=attempts.describe(),
            details=said[:LOGGED_DETAILS],
            **more,
        )

    def _settle(self, flight: Flight, *, served: bool) -> None:
        """Say whose fault earlier failures were, and give the retry budget its share back."""
        if flight.retrying:
            flight.retrying = False
            self._budget.give_back()
        attempts, reports = flight.attempts, self._reports
        suspects = attempts.take_suspects(served=served) if attempts.failed else ()
        for suspect in suspects:
            if served:
                reports.convicted(suspect.worker_id, suspect.verdict)
            elif len(suspects) == 1 and flight.pinned is None:
                reports.undecided(suspect.worker_id)
            else:
                reports.given_up(suspect.worker_id)

    def _release_prefill(self, flight: Flight) -> None:
        flight.prefill_timer = None
        flight.counts_prefill = False
        self._bookings.release_prefill(flight.booking_id)
        self._load_fell()
