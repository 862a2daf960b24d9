"""A router that takes workers in turn and keeps a ledger of its bookings."""

from collections.abc import Collection, Iterable
from typing import Any

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission.limits import AdmissionConfig, LoadLimits
from dynamo_router.router.affinity import AffinityConfig, SessionAffinity
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy.decision import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.slots.table import SlotTable
from dynamo_router.workers.registry import WorkerRegistry


class LedgerRouter:
    """Decides round robin. `booked` is who holds what now; releasing twice is an error."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self.registry, self.clock = registry, SystemClock()
        self.sessions = SessionAffinity(AffinityConfig(), registry, self.clock)
        self.limits = LoadLimits(AdmissionConfig(), SlotTable(1), registry)
        self.config = KvRouterConfig()
        self.uses_caches = False
        self.block_size = 1
        self.booked: dict[str, int] = {}
        self.prefilled: list[str] = []
        self.released: list[str] = []
        self.output_tokens: list[int | None] = []
        self.touched: list[str] = []
        self.decisions: list[dict[str, Any]] = []

    def decide(
        self,
        prompt: Prompt,
        request_id: str | None = None,
        *,
        excluded_workers: Collection[int] = (),
        pinned_worker: WorkerWithDpRank | None = None,
        preferred_worker: WorkerWithDpRank | None = None,
        **more: Any,
    ) -> Decision:
        eligible = self.registry.eligible(self.clock.now())
        candidates = [
            (number, worker)
            for number, worker in self.registry.numbered()
            if eligible[number]
            and worker.worker_id not in excluded_workers
            and pinned_worker in (None, worker)
        ]
        if not candidates:
            raise NoWorkersError("no workers")
        number, worker = candidates[len(self.decisions) % len(candidates)]
        self.decisions.append({"prompt": prompt, "worker": worker.worker_id, **more})
        if request_id is not None:
            assert request_id not in self.booked, "booked twice"
            self.booked[request_id] = worker.worker_id
        return Decision(
            worker=worker,
            number=number,
            overlap_blocks=0,
            request_blocks=1,
            cached_tokens=0,
            request_id=request_id,
        )

    def place(self, placement: Placement) -> Decision:
        return self.decide(
            placement.prompt,
            placement.request_id,
            excluded_workers=placement.excluded,
            even_inhibited=placement.retried,
            pinned_worker=placement.pinned,
            expected_output_tokens=placement.expected_output_tokens,
        )

    def queue_terms(self, prompt: Prompt) -> tuple[int, float]:
        return 1, 0.0

    def foreseen_ttft_s(self, request_id: str) -> tuple[float, float] | None:
        return None

    def mark_prefill_complete(self, request_id: str, *, cached_tokens: int | None = None) -> bool:
        assert request_id in self.booked
        self.prefilled.append(request_id)
        return True

    def release_prefill(self, request_id: str) -> bool:
        assert request_id in self.booked
        self.released.append(request_id)
        return True

    def touch_all(self, request_ids: Iterable[str]) -> None:
        self.touched += request_ids

    def free(self, request_id: str, *, output_tokens: int | None = None) -> bool:
        del self.booked[request_id]
        self.output_tokens.append(output_tokens)
        return True
