"""Whom to ask for what was missed, and when to give up. Pure; driven by recovery.py.

A source with a gap is asked for the missing events (ReplayPlanner); one whose cache is not known
any more, or not yet, for an announcement of all of it (ResyncPlanner).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..base.identity import WorkerWithDpRank
from ..indexer.source import Missing, SourceState, SourceStatus
from .resync_wire import ResyncRequest

REPLAY_WAIT_S = 0.2
"""Between two requests for the same missing events."""
GAP_TIMEOUT_S = 1.0
"""How long a gap may stay as it is, and the index with it, before it is given up."""
RESTORED_GAP_TIMEOUT_S = 10.0
"""The same for a source read from a file: its engine may have to find the event plane again."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LIVELY_WAIT_S = 2.0
"""Longest wait between two requests to a source that has sent something since the first."""
ASKS_BEFORE_DEGRADED = 5


@dataclass
class _Gap:
    missing: Missing
    since: float
    asks: int = 0
    next_ask: float = float("-inf")


@dataclass(frozen=True)
class ReplayPlan:
    """What to ask for now, and whose gaps stay open."""

    ask: list[ResyncRequest]
    give_up: list[WorkerWithDpRank]


class ReplayPlanner:
    """Asks each recovering source at once, then every 0.2 s; gives a gap up after 1 s.

    A source that was exact when we went deaf, and may have missed nothing, is asked ever more
    slowly instead, up to every 30 s: its next message decides.
    """

    def __init__(self) -> None:
        self._gaps: dict[WorkerWithDpRank, _Gap] = {}

    @property
    def waiting(self) -> bool:
        """Whether there was a gap when last looked."""
        return bool(self._gaps)

    def plan(self, recovering: Iterable[SourceStatus], now: float) -> ReplayPlan:
        before, self._gaps = self._gaps, {}
        plan = ReplayPlan([], [])
        for source in recovering:
            missing = source.missing
            assert missing is not None  # or it would not be recovering
            gap = before.get(source.worker)
            if gap is None or gap.missing[:2] != missing[:2]:
                gap = _Gap(missing, now)  # new, or closed in part
            is_doubt = missing.last is None and not source.restored
            timeout_s = RESTORED_GAP_TIMEOUT_S if source.restored else GAP_TIMEOUT_S
            if not is_doubt and now - gap.since >= timeout_s:
                plan.give_up.append(source.worker)
                continue
            self._gaps[source.worker] = gap
            if now >= gap.next_ask:
                wait = min(REPLAY_WAIT_S * 2.0**gap.asks, LONGEST_WAIT_S)
                gap.next_ask = now + (wait if is_doubt else REPLAY_WAIT_S)
                gap.asks += 1
                plan.ask.append(ResyncRequest(*source.worker, *missing))
        return plan


@dataclass
class _Pending:
    asks: int = 0
    asked: float = float("-inf")
    messages: int = 0

    def is_due(self, source: SourceStatus | None, now: float) -> bool:
        if not self.asks:
            return True
        wait = min(FIRST_WAIT_S * 2.0 ** (self.asks - 1), LONGEST_WAIT_S)
        if source is not None and source.beats and source.messages > self.messages:
            wait = min(wait, LIVELY_WAIT_S)
        return now >= self.asked + wait


@dataclass(frozen=True)
class ResyncPlan:
    """Whom to ask now, and who did not answer often enough to be called degraded."""

    ask: list[WorkerWithDpRank]
    degraded: list[WorkerWithDpRank]


class ResyncPlanner:
    """Asks each source that needs it at once, then after 0.5 s, 1 s, ... up to every 30 s.

    A rebuilding source needs it. So does a registered one without a message yet: it may have
    cached a lot before we listened. One that speaks the protocol, and has sent something since it
    was asked, is asked every 2 s at least: its answer got lost. A source that fell silent for good
    costs one message in 30 s.
    """

    def __init__(self) -> None:
        self._pending: dict[WorkerWithDpRank, _Pending] = {}

    def plan(
        self,
        sources: Iterable[SourceStatus],
        registered: Iterable[WorkerWithDpRank],
        now: float,
    ) -> ResyncPlan:
        by_worker = {source.worker: source for source in sources}
        needy = {worker for worker in registered if _is_silent(by_worker.get(worker))}
        needy |= {
            worker
            for worker, source in by_worker.items()
            if source.state in (SourceState.REBUILDING, SourceState.DEGRADED)
        }
        for worker in self._pending.keys() - needy:
            del self._pending[worker]
        ask, degraded = [], []
        for worker in sorted(needy):
            source = by_worker.get(worker)
            pending = self._pending.setdefault(worker, _Pending())
            if not pending.is_due(source, now):
                continue
            if pending.asks >= ASKS_BEFORE_DEGRADED:
                if source is not None and source.state is SourceState.REBUILDING:
                    degraded.append(worker)
            pending.asks += 1
            pending.asked = now
            pending.messages = source.messages if source else 0
            ask.append(worker)
        return ResyncPlan(ask, degraded)


def _is_silent(source: SourceStatus | None) -> bool:
    return source is None or source.state is SourceState.SILENT
