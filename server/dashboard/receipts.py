"""Why recent requests went where they did: every candidate's cost terms, as of the decision."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import structlog

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...router.kv_router import KvRouter
from ...router.pairs import PairDecision
from ...router.placement import Placement
from ...router.policy import CandidateTerms, Explanation
from ...router.steps import Steps
from ..loop_share import TimeShare, answer_share, finish_in_turns
from .bounds import Bounds
from .request_journal import worker_key

SHARE = 0.002
"""Of the event loop's time, in the long run, that receipts are made in."""
BURST_S = 0.006
"""In which some thirty are made: more, after each pause, are a tenth of a short chat's CPU."""
KEPT_RECEIPTS = 128
KEPT_RANKS = 32_768
"""Candidates in all receipts together; with many workers there are fewer receipts."""
LEAST_KEPT = 4
SHOWN_CANDIDATES = 32

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Receipt:
    """One decision. Its candidates are put into words at the first question."""

    at: float
    explanation: Steps[Explanation] | Explanation
    disagg: dict[str, Any] | None = None
    """where its prompt is computed, and what was compared; then how late its first token was"""


class Receipts:
    """Receipts of the newest requests, by request id.

    `before_decision` is called before a request is booked: see Decider. Only the terms are
    kept, no prompt. Where decisions come faster than SHARE allows, some have no receipt, and are
    not in `bounds`.
    """

    def __init__(self, router: KvRouter, clock: Clock) -> None:
        self._router = router
        self._now = clock.now
        self._kept: OrderedDict[str, Receipt] = OrderedDict()
        self.bounds = Bounds(router)
        self.share = TimeShare(SHARE, burst_s=BURST_S)
        self._failed = False
        self._answers = answer_share()
        self._finishing = asyncio.Lock()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._kept

    def before_decision(self, placement: Placement) -> None:
        """Keep what the policy will compare. Never in the way of the request."""
        now = self._now()
        if not self.share.is_due(now):
            return
        self.share.begin()
        try:
            router, prompt, asked = self._router, placement.prompt, placement.objectives
            bound = router.sessions.wanted(placement.session)
            steps = router.explain_steps(prompt, asked=asked, bound=bound)
            self.bounds.note(placement)
        except Exception:
            # The decision itself will say what is wrong; a policy of others may fail here alone.
            if not self._failed:
                log.warning("decisions cannot be explained", exc_info=True)
            self._failed = True
            return
        finally:
            self.share.spent(self.share.lap(), now)
        self._kept[placement.request_id] = Receipt(now, steps)
        self._kept.move_to_end(placement.request_id)
        ranks = max(1, self._router.registry.capacity)
        while len(self._kept) > max(LEAST_KEPT, min(KEPT_RECEIPTS, KEPT_RANKS // ranks)):
            self._kept.popitem(last=False)

    def on_pair(self, request_id: str, pair: PairDecision) -> None:
        """It was decided where the prompt of a request is computed."""
        kept = self._kept.get(request_id)
        if kept is not None:
            kept.disagg = pair.verdict
            if pair.prefill is not None:
                kept.disagg["prefill_worker"] = worker_key(pair.prefill.worker)

    def on_regret(self, request_id: str, seconds: float) -> None:
        """The first token of a request came later than was forecast, by these seconds."""
        kept = self._kept.get(request_id)
        if kept is not None and kept.disagg is not None:
            kept.disagg["regret_s"] = seconds

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """What was compared for this request; None if there is no receipt."""
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        async with self._finishing:
            if not isinstance(kept.explanation, Explanation):
                kept.explanation = await finish_in_turns(kept.explanation, self._answers)
        more = {} if kept.disagg is None else {"disagg": kept.disagg}
        return {"at": kept.at, **explanation_shown(kept.explanation), **more}


def explanation_shown(explanation: Explanation, chosen: str | None = None) -> dict[str, Any]:
    """An explanation for a page: the cheapest candidates, and how many more there are."""
    ranked = sorted(explanation.candidates, key=_rank)
    shown = ranked[:SHOWN_CANDIDATES]
    shown += [row for row in ranked[SHOWN_CANDIDATES:] if worker_key(row.worker) == chosen]
    rows = []
    for row in shown:
        fields = row.to_dict()
        del fields["worker_id"], fields["dp_rank"], fields["number"]
        rows.append({"worker": worker_key(row.worker), **fields})
    head = explanation.to_dict([])
    head["cheapest"] = [worker_key(worker) for worker in explanation.cheapest[:SHOWN_CANDIDATES]]
    best = max((row.overlap_blocks for row in explanation.candidates if row.eligible), default=0)
    head |= {"candidates": rows, "candidate_count": len(ranked), "best_overlap_blocks": best}
    return head


def _rank(row: CandidateTerms) -> tuple[bool, float, WorkerWithDpRank]:
    return not row.eligible, row.cost, row.worker
