"""PrefillLeg: the part of a request that its prefill worker runs, and what it counts as there."""

from collections.abc import Callable
from typing import Protocol

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...router.decider import Decider
from ...router.disagg import Landing, PairRule
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.dialects import DP_RANK_KEY, EngineClient, rank_metadata
from ...workers.engine_facts import EngineFacts
from ...workers.failures import EngineCallError, Origin
from ...workers.health import HealthMonitor


class PrefillWorkers(Protocol):
    """A pool of workers that compute prompts for others."""

    router: KvRouter
    monitor: HealthMonitor

    prefills: int
    """legs that have begun there and not ended"""


class PrefillLeg:
    """Booked by `KvRouter.place_pair`, until `end`, which must be called."""

    def __init__(
        self,
        pool: PrefillWorkers,
        decision: Decision,
        landing: Landing | None,
        booking_id: str,
        decider: Decider,
        rule: PairRule,
        clock: Clock,
        is_first: bool,
    ) -> None:
        """`decider` has those who wait, `rule` what lands where: `landing`, until this ends."""
        self.decision = decision
        self.worker_id = decision.worker.worker_id
        engine = pool.monitor.engine(self.worker_id)
        self.client: EngineClient | None = None if engine is None else engine.client
        self.facts = EngineFacts() if engine is None else engine.facts
        self.reports = pool.monitor.reports
        self.is_computing = False
        """its worker has the request, and has not answered"""
        self.began = self.computed_at = clock.now()
        self.cached_tokens = 0
        """of the prompt, found by its worker"""
        self.is_first = is_first
        """its worker's token may go to the client at once"""
        self.has_spoken = False
        """that token went, and the decode worker has not begun yet"""
        self.held_s = 0.0
        """seconds that the client took to take that token"""
        self._on_decoded: Callable[[], object] | None = None
        self.pool, self._booking_id, self._now = pool, booking_id, clock.now
        self._landing, self._decider, self._rule = landing, decider, rule
        self._ended = False
        pool.prefills += 1

    @property
    def address(self) -> str:
        return "?" if self.client is None else self.client.address

    @property
    def rank(self) -> tuple[int, int]:
        """Its rank among those of its worker, from 0, and how many these are."""
        worker = self.decision.worker
        entry = self.pool.router.registry.entry(worker.worker_id)
        return (0, 1) if entry is None else (worker.dp_rank - entry.dp_start, entry.dp_size)

    def metadata(self, metadata: Metadata) -> Metadata:
        """What goes with its call, of that which goes with the decode worker's."""
        worker = self.decision.worker
        entry = self.pool.router.registry.entry(worker.worker_id)
        others = tuple(each for each in metadata if each[0] != DP_RANK_KEY)
        return (*others, *rank_metadata(entry, worker.dp_rank))

    def begin(self) -> None:
        """It is sent."""
        self.is_computing, self.began = True, self._now()
        self.reports.sent(self.worker_id)

    def on_computed(self, cached_tokens: int | None = None) -> None:
        """Its worker has answered, and found this much of the prompt cached, where it says so."""
        self.is_computing = False
        self.computed_at, self.cached_tokens = self._now(), cached_tokens or 0
        took = self.computed_at - self.began
        router = self.pool.router
        router.mark_prefill_complete(self._booking_id, cached_tokens=cached_tokens)
        self.reports.answered(self.worker_id, took)
        self.reports.succeeded(self.worker_id, took)
        self._decider.poll()  # who waits may have the prefill worker's next turn

    def on_decoded(self) -> None:
        """The decode worker has begun."""
        self.has_spoken = False
        if self._on_decoded is not None:
            self._on_decoded()
            self._on_decoded = None

    def when_decoded(self, call: Callable[[], object]) -> None:
        """Have `call` called when the decode worker begins, whose client has a token before."""
        self._on_decoded = call

    def touch(self) -> None:
        """It goes on: its booking does not expire."""
        if not self._ended:
            self.pool.router.touch(self._booking_id)

    def suspect(self, silent_s: float) -> None:
        """Its worker has been silent for this many seconds."""
        self.pool.monitor.suspect(self.worker_id, silent_s)

    def end(self) -> None:
        """Its blocks were read, or no worker will read them. Idempotent."""
        if self._ended:
            return
        self._ended, self._on_decoded = True, None
        if self.is_computing:
            self.is_computing = False
            self.reports.given_up(self.worker_id)
        self.pool.router.free(self._booking_id, output_tokens=1)
        self.pool.prefills -= 1
        if self._landing is not None:
            self._rule.on_landed(self._landing)


class PrefillFailedError(EngineCallError):
    """The prefill worker failed its leg; the decode worker has no part in it."""

    def __init__(
        self,
        leg: PrefillLeg,
        origin: Origin,
        code: StatusCode,
        details: str,
        public: str | None = None,
    ) -> None:
        super().__init__(origin, code, details, public=public)
        self.leg = leg
