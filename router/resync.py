"""When to ask an event source to announce its whole cache again. Pure; driven by the event feed."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..indexer.source import SourceState, SourceStatus
from ..runtime.identity import WorkerWithDpRank

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
ASKS_BEFORE_DEGRADED = 5


@dataclass
class _Pending:
    asks: int = 0
    next_ask: float = float("-inf")


@dataclass(frozen=True)
class ResyncPlan:
    """Whom to ask now, and who did not answer often enough to be called degraded."""

    ask: list[WorkerWithDpRank]
    degraded: list[WorkerWithDpRank]


class ResyncPlanner:
    """Asks each source that needs it at once, then after 0.5 s, 1 s, ... up to every 30 s.

    A rebuilding source needs it. So does a registered one that was never heard of: it may have
    cached a lot before we listened. A source that fell silent for good costs one message in 30 s.
    """

    def __init__(self) -> None:
        self._pending: dict[WorkerWithDpRank, _Pending] = {}

    def plan(
        self,
        sources: Iterable[SourceStatus],
        registered: Iterable[WorkerWithDpRank],
        now: float,
    ) -> ResyncPlan:
        states = {source.worker: source.state for source in sources}
        known = set(registered)
        needy = {worker for worker in known if states.get(worker) in (None, SourceState.SILENT)}
        needy |= {
            worker
            for worker, state in states.items()
            if state in (SourceState.REBUILDING, SourceState.DEGRADED)
        }
        for worker in self._pending.keys() - needy:
            del self._pending[worker]
        ask, degraded = [], []
        for worker in sorted(needy):
            pending = self._pending.setdefault(worker, _Pending())
            if now < pending.next_ask:
                continue
            if pending.asks >= ASKS_BEFORE_DEGRADED:
                if states.get(worker) is SourceState.REBUILDING:
                    degraded.append(worker)
            pending.next_ask = now + min(FIRST_WAIT_S * 2**pending.asks, LONGEST_WAIT_S)
            pending.asks += 1
            ask.append(worker)
        return ResyncPlan(ask, degraded)
