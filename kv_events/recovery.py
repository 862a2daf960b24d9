"""Event recovery: what a router does about events it missed, as a state machine without I/O.

The event feed drives it by the clock, a simulation in virtual time, a test step by step. Its caller
sends the requests that it returns; it changes the index itself.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceStatus
from .resync import ReplayPlanner, ResyncPlanner
from .resync_wire import ResyncRequest

TICK_S = 0.25
"""Between two calls of `keep_up`."""
REPLAY_TICK_S = 0.05
"""Between two calls of `fill_gaps` while one is waiting."""


class RecoveryActions(NamedTuple):
    """What one step decided: the requests to send, and what it changed in the index."""

    ask: list[ResyncRequest]
    given_up: list[WorkerWithDpRank] = []
    """whose missing events did not come: they are rebuilding from now on"""
    degraded: list[WorkerWithDpRank] = []
    """who were asked for their caches and did not answer"""


class EventRecovery:
    """Asks sources of one index for missing events, and for announcements of their caches.

    For an index that holds events behind a gap back (`EventIndex.await_replays`). `fill_gaps` is
    due when `gap_noticed`, and every REPLAY_TICK_S while `waiting`; `keep_up` is due every TICK_S.
    Times are seconds of any clock that never goes back.
    """

    def __init__(self, index: EventIndex) -> None:
        self._index = index
        self._replays, self._resyncs = ReplayPlanner(), ResyncPlanner()
        self._alarms = -1  # of the index at the last `fill_gaps`

    @property
    def gap_noticed(self) -> bool:
        """Whether a source came into need of being asked since the last `fill_gaps`."""
        return self._index.alarms != self._alarms

    @property
    def waiting(self) -> bool:
        """Whether there was a gap at the last `fill_gaps`."""
        return self._replays.waiting

    def fill_gaps(self, now: float) -> RecoveryActions:
        """Ask for missing events; give up the gaps that stay open."""
        self._alarms = self._index.alarms
        plan = self._replays.plan(self._index.recovering(), now)
        for worker in plan.give_up:
            self._index.give_up(worker)
        return RecoveryActions(plan.ask, given_up=plan.give_up)

    def keep_up(
        self,
        sources: Iterable[SourceStatus],
        registered: Iterable[WorkerWithDpRank],
        now: float,
    ) -> RecoveryActions:
        """Ask for announcements: of `sources`, the index's, those that are rebuilding or degraded,
        and of the `registered` workers those without a message yet.
        """
        plan = self._resyncs.plan(sources, registered, now)
        for worker in plan.degraded:
            self._index.mark_degraded(worker)
        return RecoveryActions([ResyncRequest(*worker) for worker in plan.ask], [], plan.degraded)

    def forget_gaps(self) -> None:
        """Begin to wait anew for every gap: until now no answer could arrive."""
        self._replays = ReplayPlanner()
