"""PrefetchPlan: what is asked of which engine for which request, and what came of it. Pure.

A request that is held is expected where it would go now; one that was sent, where it is, if that
engine is busy and will look at it only after its running step. Blocks of host memory and disk that
the engine has of it are worth asking for. What was loaded where the request then did not go is
wasted.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...router.kv_router import KvRouter
from ...router.placement import Placement
from ...router.policy import Decision
from ...router.prompt import Prompt

LEAST_BLOCKS = 4
"""Below the device; fewer are loaded sooner than an engine can be asked."""
MOST_PENDING = 16
"""Questions that one engine has not answered."""


@dataclass(slots=True)
class PrefetchCounts:
    """Since the plan was made; they only grow."""

    asked: int = 0
    blocks: int = 0
    """that engines reported to load"""
    wasted: int = 0
    """of those, for requests that went elsewhere or nowhere"""


@dataclass(slots=True)
class _Question:
    blocks: int | None = None  # None: no answer yet
    used: bool | None = None  # whether the request went there; None: it is not known yet


class PrefetchPlan:
    """Bounded by the requests in flight. After `wants` was true, an answer is given in any case."""

    def __init__(self) -> None:
        self.counts = PrefetchCounts()
        self._open: dict[tuple[str, WorkerWithDpRank], _Question] = {}
        self.held: dict[str, WorkerWithDpRank] = {}
        """where a request that waits is expected, of those that an engine was asked for"""
        self._pending: Counter[int] = Counter()  # by worker id
        self._unable: set[int] = set()

    def wants(self, request_id: str, decision: Decision) -> bool:
        """Whether to ask the engine of a decision, which holds now, to load what it has below."""
        worker = decision.worker
        below = decision.host_overlap_blocks + decision.disk_overlap_blocks
        if below < LEAST_BLOCKS or worker.worker_id in self._unable:
            return False
        if (request_id, worker) in self._open or request_id in self.held:
            return False
        return self._pending[worker.worker_id] < MOST_PENDING

    def on_held(self, request_id: str, worker: WorkerWithDpRank) -> None:
        """The engine is asked for a request that waits."""
        self.held[request_id] = worker
        self._ask(request_id, worker, None)

    def on_sent(self, request_id: str, worker: WorkerWithDpRank) -> None:
        """The engine is asked for a request that is sent there."""
        self._ask(request_id, worker, True)

    def on_booked(self, request_id: str, worker: WorkerWithDpRank | None) -> None:
        """The request waits no more: it goes to a worker, or is over. Idempotent."""
        expected = self.held.pop(request_id, None)
        if expected is not None:
            self._open[request_id, expected].used = expected == worker
            self._settle(request_id, expected)

    def on_answer(self, request_id: str, worker: WorkerWithDpRank, blocks: int | None) -> None:
        """What the engine loads; None: it does not know how, and is not asked again."""
        if blocks is None:
            self._unable.add(worker.worker_id)
        self._pending[worker.worker_id] -= 1
        if not self._pending[worker.worker_id]:
            del self._pending[worker.worker_id]
        self.counts.blocks += blocks or 0
        self._open[request_id, worker].blocks = blocks or 0
        self._settle(request_id, worker)

    def on_worker_gone(self, worker_id: int) -> None:
        """It left: one that comes under its id may be able."""
        self._unable.discard(worker_id)

    def check_integrity(self) -> None:
        """AssertionError if what is remembered does not agree. For tests."""
        assert all((each, worker) in self._open for each, worker in self.held.items())
        unanswered = [worker.worker_id for (_, worker), q in self._open.items() if q.blocks is None]
        assert Counter(unanswered) == self._pending
        assert all(
            question.blocks is None or question.used is None for question in self._open.values()
        )
        assert 0 <= self.counts.wasted <= self.counts.blocks

    def _ask(self, request_id: str, worker: WorkerWithDpRank, used: bool | None) -> None:
        self.counts.asked += 1
        self._pending[worker.worker_id] += 1
        self._open[request_id, worker] = _Question(used=used)

    def _settle(self, request_id: str, worker: WorkerWithDpRank) -> None:
        """Forget a question once both are known."""
        question = self._open[request_id, worker]
        if question.blocks is None or question.used is None:
            return
        del self._open[request_id, worker]
        if not question.used:
            self.counts.wasted += question.blocks


def can_prefetch(router: KvRouter) -> bool:
    """Whether it is asked for, and any engine has reported blocks below its device."""
    return router.config.router_prefetch and router.uses_caches and router.index.lower_tiers


def ask_held(
    plan: PrefetchPlan,
    router: KvRouter,
    request_id: str,
    prompt: Prompt,
    unfit: Set[int] = frozenset(),
) -> WorkerWithDpRank | None:
    """The worker to ask for a request that begins to wait in the router: where it would go now.

    None: no worker. `unfit` are workers that it may not go to.
    """
    if not can_prefetch(router) or router.config.admission.sheds_all:
        return None  # to shed is for those whose turn it is
    try:
        decision = router.place(Placement(prompt, excluded=unfit))
    except RouterError:
        return None  # no worker would take it now
    if not plan.wants(request_id, decision):
        return None
    plan.on_held(request_id, decision.worker)
    return decision.worker


def ask_sent(
    plan: PrefetchPlan, router: KvRouter, request_id: str, decision: Decision
) -> WorkerWithDpRank | None:
    """The worker to ask for a request that was booked there: the same, if it has to wait there.

    None: no worker. The plan gets the booking in any case.
    """
    worker = decision.worker
    if plan.held:  # else no booking is of interest to it
        plan.on_booked(request_id, worker)
    if not can_prefetch(router) or not plan.wants(request_id, decision):
        return None
    if router.requests_of(worker.worker_id) < 2:
        return None
    plan.on_sent(request_id, worker)
    return worker
