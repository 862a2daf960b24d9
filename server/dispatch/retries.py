"""Retries: which attempts of a request failed, whether to make another, and who was to blame. Pure.

And how many requests may be on a further attempt at a time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import field

from ...workers.failures import Blame, Origin, Retry, Verdict
from ...workers.request_reports import RequestReports

BROKEN_TRANSPORTS = 2
"""A request under which this many connections broke is not sent to a further worker: it may be
what breaks them."""


class FailedAttempt(NamedTuple):
    """One worker's failure."""

    worker_id: int
    origin: Origin
    verdict: Verdict
    details: str
    reports: RequestReports | None = None
    """where its worker is judged; None: among those that the dispatcher sends to"""


class FailedAttempts(msgspec.Struct, eq=False):
    """The failed attempts of one request, which may be at `_most` workers."""

    _most: int
    failed: list[FailedAttempt] = field(default_factory=list)
    """all of them; test `if failures.failed` where every request passes"""
    _begin: int = 0  # of those that count now
    _settled: int = 0  # of the failures, reported

    def __len__(self) -> int:
        return len(self.failed)

    def __iter__(self) -> Iterator[FailedAttempt]:
        return iter(self.failed)

    def add(self, attempt: FailedAttempt) -> None:
        self.failed.append(attempt)

    def begin_anew(self) -> set[int]:
        """Count from here on, as a stream does that goes on elsewhere; the workers that failed."""
        failed = self.worker_ids
        self._begin = len(self.failed)
        return failed

    @property
    def worker_ids(self) -> set[int]:
        """The workers that failed, of those that count."""
        return {attempt.worker_id for attempt in self._counted}

    @property
    def _counted(self) -> list[FailedAttempt]:
        return self.failed[self._begin :]

    @property
    def last(self) -> FailedAttempt:
        return self.failed[-1]

    @property
    def may_go_on(self) -> bool:
        """Whether a further worker may be tried, as far as the failures say."""
        last = self.last.verdict
        if last.retry is Retry.NO or len(self._counted) >= self._most:
            return False
        if self.is_deadly:
            return False
        if last.retry is Retry.ONCE:
            alike = sum(attempt.verdict.retry is Retry.ONCE for attempt in self._counted)
            return alike < 2
        return True

    @property
    def is_deadly(self) -> bool:
        """Whether it is suspected of breaking the workers that it is sent to."""
        broken = sum(attempt.origin is Origin.TRANSPORT for attempt in self._counted)
        return broken >= BROKEN_TRANSPORTS

    @property
    def is_own_fault(self) -> bool:
        """Whether the last attempt failed because of the request, or of who sent it."""
        own = (Blame.CLIENT, Blame.REQUEST)
        return bool(self.failed) and self.last.verdict.blame in own

    @property
    def repeats_work(self) -> bool:
        """Whether a further attempt asks something again of a fleet that may be short of it."""
        return self.last.verdict.blame is not Blame.TRANSPORT

    def take_suspects(self, *, served: bool) -> list[FailedAttempt]:
        """Attempts whose workers are to blame if another one served the request; each once.

        If two of them failed alike and none served it, it is the request's fault; and so it is if
        the only one refused it.
        """
        new, self._settled = self.failed[self._settled :], len(self.failed)
        doubted = (Blame.EITHER, Blame.REQUEST) if served else (Blame.EITHER,)
        return [attempt for attempt in new if attempt.verdict.blame in doubted]

    def describe(self) -> list[str]:
        """worker:cause of each, for the log."""
        return [f"{attempt.worker_id}:{attempt.verdict.cause}" for attempt in self.failed]


class RetryBudget:
    """Bounds the work that retries add: a fleet that fails for want of room gets no storm of them.

    At most `share` of the requests in flight, and at least `least`, are on a second or later
    attempt that has not begun to answer. A request whose worker is gone does not count: what it
    asked of that worker is not asked twice.
    """

    def __init__(self, share: float, least: int) -> None:
        self.share = share
        self.least = least
        self.retrying = 0
        """attempts that count now"""
        self.granted = 0
        """retries that counted, ever"""
        self.refused = 0
        """retries that were not made for want of budget, ever"""

    def limit(self, in_flight: int) -> int:
        """How many may be retrying beside each other."""
        return max(self.least, int(self.share * in_flight))

    def take(self, in_flight: int) -> bool:
        """One more retry, if the budget has it. Give it back by `give_back`."""
        if self.retrying >= self.limit(in_flight):
            self.refused += 1
            return False
        self.retrying += 1
        self.granted += 1
        return True

    def give_back(self) -> None:
        """A retry began to answer, or ended."""
        assert self.retrying > 0
        self.retrying -= 1
