"""What became of the last requests, for a timeline of them."""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...router.policy import Decision
from ..dispatch import DispatchObserver, OtherCall, Request
from .incidents import ID_LENGTH, Incidents

KEPT_REQUESTS = 1024
SHOWN_IN_FLIGHT = 128


class EndedRequest(NamedTuple):
    """A request that ended. Times are seconds of the router's clock, spans seconds."""

    number: int
    request_id: str
    arrived: float
    ended: float
    queue_s: float
    ttft_s: float | None
    """to the first message; None if there was none"""
    worker: str | None
    prompt_tokens: int
    overlap_blocks: int
    request_blocks: int
    status: str
    attempts: int
    messages: int
    streaming: bool


class RequestJournal:
    """A DispatchObserver before another one. Costs a few microseconds for each request, none for
    its messages. What failed goes to `incidents` too."""

    def __init__(self, clock: Clock, inner: DispatchObserver, incidents: Incidents) -> None:
        self._now = clock.now
        self._inner = inner
        self._incidents = incidents
        self._ended: deque[tuple[Any, ...]] = deque(maxlen=KEPT_REQUESTS)
        self.last = 0
        """number of the newest"""
        self.on_message, self.gaps_s = inner.on_message, inner.gaps_s

    def on_retry(self, request: Request, error: BaseException) -> None:
        self._inner.on_retry(request, error)

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self._inner.on_end(request, code, other)
        if request is None:
            self._incidents.on_refused(code, other)
            return
        if request.failures.failed or code is not StatusCode.OK:
            self._incidents.on_request(request, code)
        self.last += 1
        attempt = request.attempt
        self._ended.append(  # made into a record once a page asks, which is rare
            (
                request.request_id[:ID_LENGTH],
                request.arrived,
                self._now(),
                0.0 if attempt is None else attempt.queue_s,
                request.first_message_at if request.facts.streaming else None,
                None if attempt is None else attempt.decision,
                request.facts.prompt.isl,
                code,
                len(request.failures.failed),
                request.messages,
                request.facts.streaming,
            )
        )

    def since(self, number: int, most: int) -> list[EndedRequest]:
        """Those after this number, oldest first; of more than `most` the newest."""
        wanted = min(most, max(0, self.last - number), len(self._ended))
        newest = [
            _record_of(self.last - n, *row)
            for n, row in enumerate(islice(reversed(self._ended), wanted))
        ]
        newest.reverse()
        return newest


def _record_of(
    number: int,
    request_id: str,
    arrived: float,
    ended: float,
    queue_s: float,
    first_message_at: float | None,
    decision: Decision | None,
    prompt_tokens: int,
    code: StatusCode,
    failures: int,
    messages: int,
    streaming: bool,
) -> EndedRequest:
    return EndedRequest(
        number,
        request_id,
        arrived,
        ended,
        queue_s,
        None if first_message_at is None else first_message_at - arrived,
        None if decision is None else worker_key(decision.worker),
        prompt_tokens,
        0 if decision is None else decision.overlap_blocks,
        0 if decision is None else decision.request_blocks,
        code.name,
        failures + 1,
        messages,
        streaming,
    )


def in_flight_shown(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """The oldest requests in flight."""
    return [_shown(request) for request in islice(requests, SHOWN_IN_FLIGHT)]


def _shown(request: Request) -> dict[str, Any]:
    decision, first_at = request.decision, request.first_message_at
    return {
        "request_id": request.request_id[:ID_LENGTH],
        "arrived": request.arrived,
        "queue_s": request.queue_s,
        "ttft_s": None if first_at is None else first_at - request.arrived,
        "worker": None if decision is None else worker_key(decision.worker),
        "prompt_tokens": request.facts.prompt.isl,
        "overlap_blocks": 0 if decision is None else decision.overlap_blocks,
        "request_blocks": 0 if decision is None else decision.request_blocks,
        "messages": request.messages,
        "attempts": len(request.failures) + 1,
    }


def worker_key(worker: tuple[int, int]) -> str:
    """A worker in JSON that a browser reads: its numbers have 53 bits, ids have 64."""
    worker_id, dp_rank = worker
    return f"{worker_id}/{dp_rank}" if dp_rank else str(worker_id)
