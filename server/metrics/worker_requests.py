"""How each worker served the requests that were sent to it."""

from ...base.identity import WorkerWithDpRank
from ...workers.registry import WorkerRegistry
from ..dispatch import Attempt, Request


class WorkerCounts:
    """One worker's attempts."""

    __slots__ = ("answer_s", "answers", "requests", "served", "served_s")

    def __init__(self) -> None:
        self.requests = 0
        """attempts that ended, well or not"""
        self.answers = 0
        """streams that began"""
        self.answer_s = 0.0
        """what those waited for their first message"""
        self.served = 0
        """attempts that ended well"""
        self.served_s = 0.0
        """how long those took"""


class WorkerRequests:
    """Counts by worker, on the event loop, of those that are registered: they go with it."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._counts: dict[int, WorkerCounts] = {}
        registry.on_add.append(self._on_add)
        registry.on_remove.append(self._on_remove)
        for entry in registry.entries():
            self._counts[entry.worker_id] = WorkerCounts()

    def on_first_message(self, worker_id: int, seconds: float) -> None:
        """A stream began to answer, `seconds` after it was sent."""
        counts = self._counts.get(worker_id)
        if counts is not None:
            counts.answers += 1
            counts.answer_s += seconds

    def on_end(self, request: Request, attempt: Attempt, served: bool, now: float) -> None:
        """A request that was sent to one worker or to several has ended with this attempt."""
        last = attempt.worker_id
        if request.failures.failed:
            for worker_id in request.failures.worker_ids - {last}:
                if worker_id in self._counts:
                    self._counts[worker_id].requests += 1
        counts = self._counts.get(last)
        if counts is not None:
            counts.requests += 1
            if served:
                counts.served += 1
                counts.served_s += now - attempt.sent_at

    def counts(self, worker_id: int) -> WorkerCounts | None:
        return self._counts.get(worker_id)

    def _on_add(self, worker: WorkerWithDpRank, number: int) -> None:
        self._counts.setdefault(worker.worker_id, WorkerCounts())

    def _on_remove(self, worker: WorkerWithDpRank, number: int) -> None:
        if worker.worker_id not in self._registry:  # else it has other ranks still
            self._counts.pop(worker.worker_id, None)
