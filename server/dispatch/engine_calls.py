"""EngineCalls: begins and ends the calls of attempts at their workers."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Any

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...router.kv_router import KvRouter
from ...router.pairs import PairDecision
from ...router.placement import Placement
from ...workers.channels import Metadata
from ...workers.dialects import rank_metadata
from ...workers.failures import EngineCallError, Origin
from ...workers.health import HealthMonitor
from ..handoff import PrefillLeg
from ..prefetch import Prefetcher
from .ledger import AttemptLedger
from .request import NO_TRACE, Attempt, AttemptClient, Request, TakenBack
from .status import OvertakenError

CLOCK_SLACK_S = 0.05
"""A call that ends by its deadline may do so that much before we think it should."""
ABORT_TIMEOUT_S = 2.0
MAX_PENDING_ABORTS = 1024

Answers = AsyncGenerator[bytes, None]


class EngineCalls:
    """What both attempts of a request need of the side of the engines.

    An attempt is in the ledger from `send` on; one that failed is judged there, and what comes back
    is the error for the client if no other worker answers.
    """

    def __init__(
        self,
        router: KvRouter,
        monitor: HealthMonitor,
        clock: Clock,
        ledger: AttemptLedger,
        prefetcher: Prefetcher,
        notes_forecasts: bool,
    ) -> None:
        self._registry = router.registry
        self._foreseen_ttft_s = router.foreseen_ttft_s if notes_forecasts else None
        self._monitor = monitor
        self._reports = monitor.reports
        self._now = clock.now
        self._ledger = ledger
        self._prefetcher = prefetcher
        self.aborts = Aborts()

    def new_attempt(
        self,
        placement: Placement,
        pair: PairDecision,
        began: float,
        queue_s: float,
        leg: PrefillLeg | None = None,
        client: AttemptClient | None = None,
    ) -> Attempt:
        """An attempt that was booked just now, by a decision that began then. `leg` is that of its
        prefill worker, if it has one, and `client` the way to both."""
        now, decision, foreseen = self._now(), pair.decode, self._foreseen_ttft_s
        worker_id = decision.worker.worker_id
        return Attempt(
            decision,
            worker_id,
            placement.request_id,
            self._monitor.client(worker_id) if leg is None else client,
            now,
            now,
            placement.prompt.isl - decision.cached_tokens if leg is None else 0,
            queue_s,
            now - began,
            pair,
            leg,
            None if foreseen is None else foreseen(placement.request_id),
        )

    def send(self, request: Request, attempt: Attempt, metadata: Metadata) -> Answers | None:
        """Begin an attempt; None if its worker has no address any more."""
        client, worker = attempt.client, attempt.decision.worker
        if request.carrier is not None:
            self._ledger.on_sent(request, attempt)
            if request.trace is not NO_TRACE:
                request.trace.sent(request, attempt, metadata)
            call = attempt.call = request.carrier.send(request, attempt)
            return _answers(call)
        if client is None:
            return None
        entry = self._registry.entry(worker.worker_id)
        if entry is not None and entry.dp_size > 1:
            metadata = (*metadata, *rank_metadata(entry, worker.dp_rank))
        self._ledger.on_sent(request, attempt)
        if request.trace is not NO_TRACE and attempt is request.attempt:
            metadata = request.trace.sent(request, attempt, metadata)
        body = request.body if request.stream is None else request.newest_body
        decision, prefetcher = attempt.decision, self._prefetcher
        if prefetcher.plan.held or decision.host_overlap_blocks or decision.disk_overlap_blocks:
            prefetcher.on_sent(request.request_id, body, decision)
        left = None if request.deadline == math.inf else request.deadline - attempt.sent_at
        call = attempt.call = client.generate(body, timeout=left, metadata=metadata)
        return _answers(call)

    def failed(self, request: Request, attempt: Attempt, origin: Origin, details: str) -> Exception:
        """There was no answer, nor a status that says why."""
        code = StatusCode.OK if origin is Origin.EMPTY else StatusCode.UNAVAILABLE
        return self._ledger.on_failed(request, attempt, origin, code, details)

    def failed_by(self, request: Request, attempt: Attempt, error: EngineCallError) -> Exception:
        """Its call ended with a status."""
        attempt.call = None
        origin, details = error.origin, error.details()
        if error.code() is StatusCode.DEADLINE_EXCEEDED and self.is_late(request, attempt):
            origin = Origin.DEADLINE
        if origin is Origin.SILENCE and attempt.leg is not None and attempt.client is not None:
            self.aborts.send(attempt.client, request.request_id)
        return self._ledger.on_failed(request, attempt, origin, error.code(), details, error)

    def taken_back(self, request: Request, attempt: Attempt) -> Exception:
        """Its call was cancelled, and not because its client went away."""
        code, why = StatusCode.CANCELLED, attempt.taken_back
        if why is TakenBack.OVERTAKEN:
            self._reports.given_up(attempt.worker_id)
            return OvertakenError(why.text)
        if why is None:  # its channel was closed
            why_not = Origin.WORKER_DOWN, code, "it was removed"
        else:
            why_not = why.origin, code, why.text
        return self._ledger.on_failed(request, attempt, *why_not)

    async def stop(self, request: Request, attempt: Attempt, answers: Answers) -> None:
        """Have the worker stop what still runs there, as far as we know."""
        call, client = attempt.call, attempt.client
        assert call is not None
        attempt.call = None
        call.cancel()
        if request.carrier is None:
            assert client is not None
            self.aborts.send(client, request.request_id)
        # A generator, which must not be left to the collector.
        await answers.aclose()

    def is_late(self, request: Request, attempt: Attempt | None) -> bool:
        """Whether its time is over: its client's deadline, or a limit of ours."""
        if attempt is not None and attempt.taken_back in (TakenBack.WRITE, TakenBack.TOTAL):
            return True
        return self._now() >= request.deadline - CLOCK_SLACK_S


class Aborts:
    """Sends aborts in the background, each bounded in time, all bounded in number.

    The stream of such a request was cancelled already, so an abort that is lost costs little: a
    worker that cannot be reached has ended it, or is gone.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """not sent, because too many were on their way"""

    @property
    def pending(self) -> int:
        return len(self._tasks)

    def send(self, client: AttemptClient, request_id: str) -> None:
        if len(self._tasks) >= MAX_PENDING_ABORTS:
            self.dropped += 1
            return
        task = asyncio.create_task(_send(client, request_id), name=f"abort-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for those on their way, which is bounded by their timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks)


def _answers(call: Any) -> Answers:
    answers: Answers = call if hasattr(call, "deliver") else aiter(call)
    return answers


async def _send(client: AttemptClient, request_id: str) -> None:
    with contextlib.suppress(EngineCallError):
        await client.abort(request_id, timeout=ABORT_TIMEOUT_S)
