"""Which engine is asked to load for a request, in real and in virtual time alike. Pure.

The plan remembers what is asked; whoever gets an answer here asks the engine, and tells the plan.
"""

from collections.abc import Set

from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...router.prompt import Prompt
from .plan import PrefetchPlan


def can_prefetch(router: KvRouter) -> bool:
    """Whether it is asked for, and any engine has told of blocks below its device."""
    return router.config.router_prefetch and router.uses_caches and router.index.lower_tiers


def ask_held(
    plan: PrefetchPlan,
    router: KvRouter,
    request_id: str,
    prompt: Prompt,
    unfit: Set[int] = frozenset(),
) -> WorkerWithDpRank | None:
    """The worker to ask for a request that begins to wait in the router: where it would go now.

    None: nobody. `unfit` are workers that it may not go to.
    """
    if not can_prefetch(router) or router.config.admission.shed:
        return None  # to shed is for those whose turn it is
    try:
        decision = router.decide(prompt, excluded_workers=unfit)
    except RouterError:
        return None  # nobody would take it now
    if not plan.wants(request_id, decision):
        return None
    plan.on_held(request_id, decision.worker)
    return decision.worker


def ask_sent(
    plan: PrefetchPlan, router: KvRouter, request_id: str, decision: Decision
) -> WorkerWithDpRank | None:
    """The worker to ask for a request that was booked there: the same, if it has to wait there.

    None: nobody. The plan is told of the booking in any case.
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
