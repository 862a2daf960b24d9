"""Decider: a KvRouter with its admission queue in front.

    if decider.is_open(placement):
        decision = decider.decide(placement)
    else:
        async with decider.turn(placement):
            decision = decider.decide(placement)

or `await decider.place(placement)`. Used on one event loop. Once a request is booked its life is
reported to the router (`mark_prefill_complete`, `free`), and by `poll` here that load fell.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from .admission import Admission, AdmissionQueue, Lane, Ticket
from .config import KvRouterConfig
from .kv_router import KvRouter
from .placement import Placement
from .policy import Decision

if TYPE_CHECKING:
    from .disagg import PairRule
    from .pairs import PairDecision


class Decider:
    """Decides where requests go, and when it is their turn.

    `admission`: the queue; not given: the one that the router's configuration asks for, if any.
    `before_decision` is called with each placement before it is decided: be quick.
    """

    def __init__(
        self,
        router: KvRouter,
        admission: Admission | None = None,
        *,
        before_decision: Callable[[Placement], object] | None = None,
    ) -> None:
        self.elsewhere: list[Callable[[], float]] = []
        """called for the seconds until a worker is free that takes a part of requests: none waits
        for the router's own workers meanwhile"""
        if admission is None and router.limits.any_wait:
            admission = Admission(new_queue(router, self.elsewhere))
        self.router = router
        self._admission = admission
        self._before_decision = before_decision
        self.on_load_fell: list[Callable[[], object]] = []
        """called by `poll`"""

    @property
    def queue(self) -> AdmissionQueue | None:
        """The requests that wait; None if none ever does."""
        return None if self._admission is None else self._admission.queue

    def change(self, config: KvRouterConfig) -> None:
        """Use other settings from now on: see KvRouter.change."""
        self.router.change(config)
        if self._admission is not None:
            self._admission.queue.limit = config.admission.queue_limit
            self._admission.poll()

    def is_open(self, placement: Placement) -> bool:
        """Whether the request may be decided at once; else it waits for its `turn`."""
        admission = self._admission
        if admission is None or placement.retried:
            return True
        lane = placement.pinned if placement.session is None else self._lane(placement)
        return admission.is_open(lane, placement.tenant)

    def turn(
        self, placement: Placement, on_wait: Callable[[], object] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Wait for the request's turn, and decide inside. Cancel the task to give the turn up.

        `on_wait` is called once the request waits. Raises NoWorkersError if too many do,
        InvalidRequestError if another one waits under its id, and what it is given up with.
        """
        if self._admission is None:
            raise ValueError("no request waits without a queue")
        lane = self._lane(placement)

        def ticket() -> Ticket:
            if on_wait is not None:
                on_wait()
            return ticket_of(self.router, placement, lane)

        return self._admission.turn(ticket, placement.tenant)

    def decide(self, placement: Placement) -> Decision:
        """Choose a worker and book the request there. Raises what KvRouter.decide does."""
        if self._before_decision is not None:
            self._before_decision(placement)
        return self.router.place(placement)

    def decide_pair(
        self, placement: Placement, prefill: KvRouter, rule: "PairRule"
    ) -> "PairDecision":
        """Choose the workers of both legs, and book the request there. Raises what
        KvRouter.place_pair does."""
        if self._before_decision is not None:
            self._before_decision(placement)
        return self.router.place_pair(placement, prefill, rule)

    async def place(self, placement: Placement) -> Decision:
        """The decision, once it is the request's turn."""
        if self.is_open(placement):
            return self.decide(placement)
        async with self.turn(placement):
            return self.decide(placement)

    def give_up(self, request_id: str, error: Exception) -> bool:
        """End a request's waiting with an error; False if it does not wait."""
        return self._admission is not None and self._admission.give_up(request_id, error)

    def poll(self) -> None:
        """Load fell, or a worker came: a request that waits might go."""
        admission = self._admission
        if admission is not None and (admission.waiters or admission.timer is not None):
            admission.poll()
        for call in self.on_load_fell:
            call()

    def _lane(self, placement: Placement) -> Lane:
        if placement.session is None or placement.pinned is not None:
            return placement.pinned
        bound = self.router.sessions.wanted(placement.session)
        return None if bound is None else bound.pinned


def new_queue(router: KvRouter, elsewhere: Sequence[Callable[[], float]] = ()) -> AdmissionQueue:
    """A queue that asks a router when a worker is free, as its configuration says. `elsewhere`:
    see Decider."""
    limits = router.limits

    def of_all(own_s: float, lane: Lane) -> float:
        # A cap on a worker's requests is also for those whose prompts are computed elsewhere.
        if own_s <= 0 or lane is not None or router.limits.caps:
            return own_s
        return min(own_s, *(seconds() for seconds in elsewhere))

    def free_s(lane: Lane) -> float:
        own_s = router.seconds_until_free(lane)
        return of_all(own_s, lane) if elsewhere else own_s

    def wait_times() -> Callable[[Lane], float]:
        own = router.wait_times()
        return (lambda lane: of_all(own(lane), lane)) if elsewhere else own

    return AdmissionQueue(
        free_s,
        policy=limits.queue_policy,
        limit=limits.config.queue_limit,
        wait_times=wait_times,
        now=router.clock.now,
        shares=limits.tenants,
        over_share_wait_s=partial(router.seconds_until_free, has_more=True),
    )


def ticket_of(router: KvRouter, placement: Placement, lane: Lane = None) -> Ticket:
    """The ticket with which a request waits in a lane."""
    tokens, penalty_s = router.queue_terms(placement.prompt)
    limits, isl, asked = router.limits, placement.prompt.isl, placement.objectives
    most_s = limits.most_wait_s(isl, tokens, asked)
    shed_s = limits.shed_wait_s(isl, tokens, asked, placement.tenant, router.clock.now())
    return Ticket(
        placement.request_id,
        placement.arrived,
        tokens,
        placement.urgency,
        lane,
        penalty_s,
        placement.arrived + most_s,
        placement.tenant,
        math.inf if lane is not None else placement.arrived + shed_s,
    )
