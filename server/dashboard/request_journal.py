"""What became of the last requests, for a timeline of them."""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...router.policy import Decision
from ..dispatch import DispatchObserver, Flight
from .incidents import Incidents

KEPT_REQUESTS = 1024
SHOWN_IN_FLIGHT = 128
ID_LENGTH = 96


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
        self.on_message = inner.on_message

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        self._inner.on_retry(flight, error)

    def on_end(self, flight: Flight | None, code: StatusCode) -> None:
        self._inner.on_end(flight, code)
        if flight is None:
            self._incidents.on_refused(code)
            return
        if flight.attempts.failed or code is not StatusCode.OK:
            self._incidents.on_request(flight, code)
        self.last += 1
        self._ended.append(  # in words once a page asks: nobody does for most of them
            (
                flight.request_id[:ID_LENGTH],
                flight.arrived,
                self._now(),
                flight.queue_s,
                flight.first_message_at if flight.messages and flight.facts.streaming else None,
                flight.decision,
                flight.facts.prompt.isl,
                code,
                len(flight.attempts.failed),
                flight.messages,
                flight.facts.streaming,
            )
        )

    def since(self, number: int, most: int) -> list[EndedRequest]:
        """Those after this number, oldest first; of more than `most` the newest."""
        wanted = min(most, max(0, self.last - number), len(self._ended))
        newest = [
            _told(self.last - n, *row)
            for n, row in enumerate(islice(reversed(self._ended), wanted))
        ]
        newest.reverse()
        return newest


def _told(
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


def flights_shown(flights: Iterable[Flight]) -> list[dict[str, Any]]:
    """The oldest requests in flight."""
    return [_flight(flight) for flight in islice(flights, SHOWN_IN_FLIGHT)]


def _flight(flight: Flight) -> dict[str, Any]:
    decision = flight.decision
    return {
        "request_id": flight.request_id[:ID_LENGTH],
        "arrived": flight.arrived,
        "queue_s": flight.queue_s,
        "ttft_s": flight.first_message_at - flight.arrived if flight.messages else None,
        "worker": None if decision is None else worker_key(decision.worker),
        "prompt_tokens": flight.facts.prompt.isl,
        "overlap_blocks": 0 if decision is None else decision.overlap_blocks,
        "request_blocks": 0 if decision is None else decision.request_blocks,
        "messages": flight.messages,
        "attempts": len(flight.attempts) + 1,
    }


def worker_key(worker: tuple[int, int]) -> str:
    """A worker in JSON that a browser reads: its numbers have 53 bits, ids have 64."""
    worker_id, dp_rank = worker
    return f"{worker_id}/{dp_rank}" if dp_rank else str(worker_id)
