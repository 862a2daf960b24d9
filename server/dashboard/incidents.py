"""What went wrong lately: failed attempts, refused requests, and workers that came, left or are out
of order."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...base.request_record import current_record
from ...workers.registry import WorkerRegistry, WorkerState
from ..dispatch import OtherCall, Request

KEPT_INCIDENTS = 256
SETTLE_S = 0.25
"""Workers are compared with what they were so long after a change, once for all of them."""
ALIKE_S = 2.0
"""Incidents that are alike are one, if no more than this is between them."""
WORDS = 200
ID_LENGTH = 96
ILL = (WorkerState.UNHEALTHY, WorkerState.REFUSED)


@dataclass(slots=True)
class Incident:
    """`count` of them alike, the last one at `at`, seconds of the router's clock."""

    number: int
    at: float
    kind: str
    """worker, attempt or request"""
    worker: str | None
    text: str
    count: int = 1
    request_id: str = ""
    """of the last one"""
    head: int = 0
    """characters of the text that all of them have; behind them is why the last one was"""


class Incidents:
    """The last of them. `watch` the workers, and `close` in the end; on the event loop."""

    def __init__(self, registry: WorkerRegistry, clock: Clock) -> None:
        self._registry = registry
        self._now = clock.now
        self._kept: deque[Incident] = deque(maxlen=KEPT_INCIDENTS)
        self._known: dict[int, tuple[str, str]] = {}
        self._listeners: list[Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.last = 0
        """number of the newest"""
        self.last_error: Incident | None = None
        """the newest that is no worker's coming, leaving or recovery"""
        self.down_since: float | None = clock.now()
        """since when no worker takes requests; None: one does"""

    def watch(self, listeners: list[Callable[[], None]]) -> None:
        """`listeners` are called when something of the workers has changed."""
        self._listeners = listeners
        listeners.append(self._on_workers)

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listeners is not None and self._on_workers in self._listeners:
            self._listeners.remove(self._on_workers)

    def since(self, number: int) -> list[Incident]:
        """Those after this number, oldest first."""
        newest = list(islice(reversed(self._kept), max(0, self.last - number)))
        return [incident for incident in reversed(newest) if incident.number > number]

    def on_refused(self, code: StatusCode, call: OtherCall | None = None) -> None:
        """A call failed that was no request of ours, or not yet."""
        if code is StatusCode.OK:
            return
        refused = f"refused: {_words(code)}"
        if call is None:
            self._add("request", None, refused)
            return
        record = current_record()  # of a request over HTTP: it has a path of its own
        route, request_id = call.route, call.request_id
        if record is not None:
            route, request_id = record.route or route, record.request_id
        why = f": {call.details[:WORDS]}" if call.details else ""
        # Reasons quote what clients send: with another one in each they would push out all else.
        self._add("request", None, f"{route} {refused}", why, request_id=request_id)

    def on_request(self, request: Request, code: StatusCode) -> None:
        """A request had attempts that failed, or failed itself."""
        for attempt in request.failures:
            text, why = f"attempt failed: {attempt.verdict.cause}", f", {attempt.details[:WORDS]}"
            self._add("attempt", str(attempt.worker_id), text, why, request_id=request.request_id)
        if code is StatusCode.OK or code is StatusCode.CANCELLED:
            return
        decision = request.decision
        worker = None if decision is None else str(decision.worker.worker_id)
        text = f"request failed: {_words(code)}"
        self._add("request", worker, text, request_id=request.request_id)

    def compare_workers(self) -> None:
        """Note who came, left, or is in another state than before."""
        found: dict[int, tuple[str, str]] = {}
        ready = False
        for entry in self._registry.entries():
            state = entry.state.value, entry.reason
            found[entry.worker_id] = state
            ready = ready or entry.state is WorkerState.READY
            known = self._known.get(entry.worker_id)
            if known is None or known[0] != state[0]:
                text = f"{known[0]} → {state[0]}" if known else state[0]
                reason = f": {entry.reason[:WORDS]}" if entry.reason else ""
                self._add("worker", str(entry.worker_id), text + reason, bad=entry.state in ILL)
        for worker_id in self._known.keys() - found.keys():
            self._add("worker", str(worker_id), "left", bad=False)
        self._known = found
        if ready:
            self.down_since = None
        elif self.down_since is None:
            self.down_since = self._now()

    def _on_workers(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._timer = None
        self.compare_workers()

    def _add(
        self,
        kind: str,
        worker: str | None,
        text: str,
        why: str = "",
        *,
        bad: bool = True,
        request_id: str = "",
    ) -> None:
        """Those are alike that differ in `why` alone: the last one's is kept."""
        now, alike = self._now(), self._find_alike(kind, worker, text)
        self.last += 1
        count = 1
        if alike is not None:
            self._kept.remove(alike)
            count += alike.count
        request_id = request_id[:ID_LENGTH]
        incident = Incident(self.last, now, kind, worker, text + why, count, request_id, len(text))
        self._kept.append(incident)
        if bad:
            self.last_error = incident

    def _find_alike(self, kind: str, worker: str | None, text: str) -> Incident | None:
        now = self._now()
        for incident in islice(reversed(self._kept), 16):
            if now - incident.at > ALIKE_S:
                return None
            head = incident.text[: incident.head]
            if (incident.kind, incident.worker, head) == (kind, worker, text):
                return incident
        return None


def _words(code: StatusCode) -> str:
    return code.name.lower().replace("_", " ")
