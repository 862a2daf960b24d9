"""Outcomes of requests at the workers that served or failed them: judged, counted, acted upon."""

from collections import Counter
from collections.abc import Callable

from ..base.clock import Clock
from .failures import CONNECTION_CAUSES, Blame, Verdict
from .outliers import OutlierDetector, OutlierPolicy

_NOT_THEIRS = frozenset((Blame.CLIENT, Blame.REQUEST, Blame.US))


class RequestReports:
    """The dispatcher says here how each attempt went, with one of the ends below.

    Who is an outlier is judged by `outliers` and published from here: `on_changed(worker_id)` is
    called for each worker that may have been taken out or let in, one whose requests were
    reported first. `on_lost(worker_id)` is called when a connection broke. Unknown ids are
    ignored: they left meanwhile.
    """

    def __init__(
        self,
        clock: Clock,
        policy: OutlierPolicy | None,
        *,
        on_changed: Callable[[int], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self.outliers = OutlierDetector(policy)
        self._now = clock.now
        self._on_changed = on_changed
        self._on_lost = on_lost
        self._known: set[int] = set()
        self.errors: Counter[tuple[int, str]] = Counter()
        """failed attempts by worker and cause, of the workers that are registered"""

    def set_alive(self, worker_id: int, alive: bool) -> None:
        """Whether a worker answers its probes: who is out may depend on how many do."""
        self._known.add(worker_id)
        self.outliers.set_alive(worker_id, alive)
        self._publish(worker_id)

    def forget(self, worker_id: int) -> None:
        """A worker left."""
        self._known.discard(worker_id)
        self.outliers.remove(worker_id)
        for key in [key for key in self.errors if key[0] == worker_id]:
            del self.errors[key]

    # An attempt's way

    def sent(self, worker_id: int) -> None:
        """A request was sent to a worker."""
        if worker_id in self.outliers.in_trouble and self.outliers.on_start(worker_id):
            self._on_verdict(worker_id)

    def answered(self, worker_id: int, seconds: float) -> None:
        """The first message came, `seconds` later."""
        if self.outliers.on_answer(worker_id, self._now(), seconds):
            self._on_verdict(worker_id)

    # Its end: one of these

    def succeeded(self, worker_id: int, seconds: float) -> None:
        if self.outliers.on_success(worker_id, self._now(), seconds):
            self._on_verdict(worker_id)

    def blank(self, worker_id: int, seconds: float, *, pinned: bool) -> None:
        """Its answer, after `seconds`, has no token.

        That may be what the prompt calls for. A worker of which it is true much more often than of
        others is out of order, and must not attract requests by being done with them at once.
        """
        if pinned:
            self.succeeded(worker_id, seconds)
            return
        now = self._now()
        if worker_id in self._known:
            self.errors[worker_id, "blank"] += 1
        self.outliers.penalize(worker_id, now, seconds)
        self.outliers.on_undecided(worker_id, now)
        self._on_verdict(worker_id)

    def failed(
        self, worker_id: int, verdict: Verdict, seconds: float, *, pinned: bool = False
    ) -> None:
        """It failed after `seconds`. With Blame.EITHER, say later how that was decided.

        Nothing but a broken connection or silence is held against the worker of a pinned request:
        a client that pins requests that fail could take it away.
        """
        outliers, now, blame = self.outliers, self._now(), verdict.blame
        changed = False
        if blame is Blame.SLOW:
            changed = outliers.on_slow(worker_id, now, now - seconds)
        elif blame is Blame.WORKER:
            outliers.penalize(worker_id, now, seconds)
            changed = outliers.on_fault(worker_id, now) or True
        elif blame in (Blame.EITHER, Blame.OVERLOAD) and not pinned:
            changed = outliers.penalize(worker_id, now, seconds)
            if blame is Blame.OVERLOAD:
                outliers.on_no_verdict(worker_id)
        elif outliers.on_no_verdict(worker_id):
            changed = True
        self.noticed(worker_id, verdict)
        if changed:
            self._on_verdict(worker_id)

    def noticed(self, worker_id: int, verdict: Verdict) -> None:
        """Count a failure, and see to a broken connection, but hold nothing else against it."""
        if worker_id in self._known and verdict.blame not in _NOT_THEIRS:
            self.errors[worker_id, verdict.cause] += 1
        if verdict.cause in CONNECTION_CAUSES:
            self._on_lost(worker_id)

    def given_up(self, worker_id: int) -> None:
        """It ended in a way that says nothing of the worker."""
        if self.outliers.on_no_verdict(worker_id):
            self._on_verdict(worker_id)

    # How Blame.EITHER was decided

    def convicted(self, worker_id: int, verdict: Verdict) -> None:
        """Another worker served the request: it was the worker's fault."""
        if worker_id in self._known and verdict.blame in _NOT_THEIRS:
            self.errors[worker_id, verdict.cause] += 1  # it was not counted then
        if self.outliers.on_fault(worker_id, self._now()):
            self._on_verdict(worker_id)

    def undecided(self, worker_id: int) -> None:
        """No other worker tried."""
        if self.outliers.on_undecided(worker_id, self._now()):
            self._on_verdict(worker_id)

    # What is seen of those under way

    def stuck(self, worker_id: int, since: float) -> None:
        """A request sent at `since` has waited for its first message for far too long."""
        if self.outliers.on_stuck(worker_id, self._now(), since):
            self._on_verdict(worker_id)

    def _on_verdict(self, worker_id: int) -> None:
        self._on_changed(worker_id)
        self._publish(worker_id)

    def _publish(self, done: int) -> None:
        """Who else is out may depend on one worker: publish all that may be, but that one."""
        for worker_id in self.outliers.troubled:
            if worker_id != done:
                self._on_changed(worker_id)
