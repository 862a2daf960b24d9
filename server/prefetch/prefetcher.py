"""Prefetcher: asks engines to load what they have of a request that waits."""

import asyncio

from ...base.identity import WorkerWithDpRank
from ...router.kv_router import KvRouter
from ...router.placement import Placement
from ...router.policy import Decision
from ...workers.dialects import rank_metadata
from ...workers.failures import EngineCallError
from ...workers.health import HealthMonitor
from .plan import PrefetchPlan, ask_held, ask_sent

TIMEOUT_S = 2.0
"""A late answer is of no use: the request is there by then."""


class Prefetcher:
    """Does nothing where the router's settings do not ask for it, or no engine has lower tiers."""

    def __init__(self, router: KvRouter, monitor: HealthMonitor) -> None:
        self.plan = PrefetchPlan()
        self._router = router
        self._monitor = monitor
        self._tasks: set[asyncio.Task[None]] = set()
        router.registry.on_remove.append(self._on_remove)

    def on_held(self, placement: Placement, body: bytes) -> None:
        """A request begins to wait in the router; one that names its worker is not looked at.

        Its serialized GenerateRequest, `body`, is sent to the engine as it is.
        """
        if placement.pinned is None:
            request_id, prompt, unfit = placement.request_id, placement.prompt, placement.excluded
            worker = ask_held(self.plan, self._router, request_id, prompt, unfit)
            if worker is not None:
                self._ask(request_id, body, worker)

    def on_sent(self, request_id: str, body: bytes, decision: Decision) -> None:
        """A request that was held, or has blocks in lower tiers, goes to a worker; there it waits,
        if the worker is busy."""
        worker = ask_sent(self.plan, self._router, request_id, decision)
        if worker is not None:
            self._ask(request_id, body, worker)

    def on_over(self, request_id: str) -> None:
        """It is over, wherever it was; to be called while `plan.held` has any."""
        self.plan.on_booked(request_id, None)

    async def close(self) -> None:
        """Let go of the registry, and of the answers that are still to come."""
        if self._on_remove in self._router.registry.on_remove:
            self._router.registry.on_remove.remove(self._on_remove)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ask(self, request_id: str, body: bytes, worker: WorkerWithDpRank) -> None:
        question = self._load(request_id, body, worker)
        task = asyncio.create_task(question, name=f"prefetch-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, request_id: str, body: bytes, worker: WorkerWithDpRank) -> None:
        blocks: int | None = 0
        entry = self._router.registry.entry(worker.worker_id)
        metadata = rank_metadata(entry, worker.dp_rank)
        try:
            client = self._monitor.client(worker.worker_id)
            if client is not None:
                blocks = await client.prefetch(body, timeout=TIMEOUT_S, metadata=metadata)
        except EngineCallError:
            pass  # it was a favour: the request itself will show what is wrong
        finally:
            self.plan.on_answer(request_id, worker, blocks)

    def _on_remove(self, worker: WorkerWithDpRank, number: int) -> None:
        self.plan.on_worker_gone(worker.worker_id)
