"""Who says where a request goes, and when it is its turn: this process's router, or another one.

The dispatcher asks; `Decisions` is all that it needs of the answering side.
"""

from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Protocol

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...router.admission import (
    NO_OBJECTIVES,
    NORMAL,
    AdmissionQueue,
    Lane,
    Objectives,
    Ticket,
    Urgency,
)
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...router.prompt import Prompt
from ..admission import Admission
from .request import NO_TRACE, Flight


class Bookings(Protocol):
    """What is said of a request after it was booked, under its booking's id; as KvRouter has it."""

    def mark_prefill_complete(
        self, request_id: str, *, cached_tokens: int | None = None
    ) -> object: ...

    def release_prefill(self, request_id: str) -> object: ...

    def add_output_tokens(self, request_id: str, generated: int) -> None: ...

    def touch_all(self, request_ids: Iterable[str]) -> None: ...

    def free(self, request_id: str, *, output_tokens: int | None = None) -> object: ...


class Decisions(Protocol):
    """Chooses workers for flights, and books them there as `flight.booking_id`.

    Raises what KvRouter.decide does, and RequestAbortedError for a flight that was aborted while it
    waited. `again`: an attempt after a failed one, which does not queue.
    """

    @property
    def bookings(self) -> Bookings:
        """Where the rest of a booking's life is told."""
        ...

    def at_once(self, flight: Flight, *, again: bool) -> Decision | None:
        """The decision, if it can be had without waiting; else ask for it `in_turn`."""
        ...

    async def in_turn(self, flight: Flight, *, again: bool) -> Decision:
        """Wait for the flight's turn and the decision. Cancel the task to give it up."""
        ...

    async def second(self, twin: Flight) -> Decision:
        """A worker for an attempt beside another one, not among `twin.unfit`."""
        ...

    def is_open(self, tenant: str) -> bool:
        """Whether a tenant's request that may go anywhere would be booked without waiting."""
        ...

    def give_up(self, request_id: str, error: Exception) -> bool:
        """End a flight's waiting with an error; False if it does not wait."""
        ...

    def load_fell(self) -> None:
        """Somebody who waits might go."""


class RouterDecisions:
    """Those of a KvRouter in this process, with the queue in front of it, if there is one.

    `before_decision` is called with each request that is about to be given to a worker, before it
    is booked there: be quick. `on_held`: the same, with each one that begins to wait.
    """

    def __init__(self, router: KvRouter, clock: Clock, admission: Admission | None) -> None:
        self._router = router
        self._sessions = router.sessions
        self._now = clock.now
        self._admission = admission
        self.before_decision: Callable[[Flight], None] | None = None
        self.on_held: Callable[[Flight, Prompt], None] | None = None

    @property
    def bookings(self) -> Bookings:
        return self._router

    def at_once(self, flight: Flight, *, again: bool) -> Decision | None:
        admission = self._admission
        if again or admission is None or admission.is_open(self._lane(flight), flight.tenant):
            return self._decide(flight, again=again)
        return None

    async def in_turn(self, flight: Flight, *, again: bool) -> Decision:
        assert self._admission is not None, "nobody waits without a queue"
        ticket = partial(self._ticket, flight, self._lane(flight))
        async with self._admission.turn(ticket, flight.tenant):
            flight.check_aborted()  # after it was its turn, before it took it
            return self._decide(flight, again=again)

    async def second(self, twin: Flight) -> Decision:
        return self._router.decide(
            twin.facts.prompt,
            twin.booking_id,
            excluded_workers=twin.unfit,
            expected_output_tokens=twin.facts.max_tokens or None,
            tenant=twin.tenant,
        )

    def is_open(self, tenant: str) -> bool:
        return self._admission is None or self._admission.queue.is_open(None, tenant)

    def give_up(self, request_id: str, error: Exception) -> bool:
        return self._admission is not None and self._admission.give_up(request_id, error)

    def load_fell(self) -> None:
        if self._admission is not None:
            self._admission.poll()

    def _lane(self, flight: Flight) -> Lane:
        return flight.pinned if flight.session is None else self._wanted(flight)[0]

    def _ticket(self, flight: Flight, lane: Lane) -> Ticket:
        if self.on_held is not None:
            self.on_held(flight, flight.facts.prompt)
        about = flight.urgency, lane, flight.objectives, flight.tenant
        prompt, arrived = flight.facts.prompt, flight.arrived
        return ticket_of(self._router, prompt, flight.request_id, arrived, *about)

    def _decide(self, flight: Flight, *, again: bool) -> Decision:
        """Choose a worker and book the request there; an inhibited one only `again`."""
        facts, began = flight.facts, self._now()
        excluded = flight.unfit
        if flight.attempts.failed:
            excluded = excluded | flight.attempts.worker_ids
        else:
            flight.queue_s = began - flight.arrived
        flight.booking_id = flight.request_id
        if self.before_decision is not None:
            self.before_decision(flight)
        session, pinned, preferred = flight.session, flight.pinned, None
        if session is not None:
            pinned, preferred = self._wanted(flight, excluded)
        decision = self._router.decide(
            facts.prompt,
            flight.booking_id,
            excluded_workers=excluded,
            even_inhibited=again,
            pinned_worker=pinned,
            preferred_worker=preferred,
            expected_output_tokens=facts.max_tokens or None,
            tenant=flight.tenant,
        )
        if session is not None:
            self._sessions.bind(session, decision.worker)
        flight.decision, flight.decision_s = decision, self._now() - began
        if flight.trace is not NO_TRACE:
            flight.trace.decided(flight)
        return decision

    def _wanted(
        self, flight: Flight, excluded: Set[int] = frozenset()
    ) -> tuple[WorkerWithDpRank | None, WorkerWithDpRank | None]:
        """The worker that it must go to, and the one that it had better go to."""
        if flight.pinned is not None:
            return flight.pinned, None
        bound = self._sessions.wanted(flight.session, excluded)
        return (None, None) if bound is None else (bound.pinned, bound.preferred)


def admission_of(router: KvRouter) -> Admission | None:
    """The queue that a router's configuration asks for; None if nobody is to wait."""
    return Admission(queue_of(router)) if router.limits.any_wait else None


def queue_of(router: KvRouter) -> AdmissionQueue:
    """A queue that asks a router when a worker is free, as its configuration says."""
    limits = router.limits
    return AdmissionQueue(
        router.seconds_until_free,
        policy=limits.queue_policy,
        limit=limits.config.queue_limit,
        wait_times=router.wait_times,
        now=router.clock.now,
        shares=limits.tenants,
        over_share_wait_s=partial(router.seconds_until_free, has_more=True),
    )


def ticket_of(
    router: KvRouter,
    prompt: Prompt,
    request_id: str,
    arrived: float,
    urgency: Urgency = NORMAL,
    lane: Lane = None,
    asked: Objectives = NO_OBJECTIVES,
    tenant: str = "",
) -> Ticket:
    """The ticket of a request that came at `arrived`, by the router's clock."""
    tokens, penalty_s = router.queue_terms(prompt)
    latest = arrived + router.limits.most_wait_s(prompt.isl, tokens, asked)
    return Ticket(request_id, arrived, tokens, urgency, lane, penalty_s, latest, tenant)
