"""A trace in virtual time: a KvRouter, as it serves, in front of simulated engines.

Only the clock is the simulation's. The engines are a VirtualFleet. KV events reach the router as
messages of the event plane, late and incomplete as asked for, and missing ones are asked for and
sent again as over NATS. The same arguments give the same run.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...base.errors import InvalidRequestError, NoWorkersError
from ...base.identity import WorkerWithDpRank
from ...engines.mocker import EVEN_SPEEDS, EngineConfig, VirtualFleet
from ...indexer.event_index import EventIndex
from ...router.admission import Ticket
from ...router.decider import new_queue, seconds_until_taken, ticket_of
from ...router.disagg import DisaggConfig
from ...router.kv_router import KvRouter
from ...router.placement import Placement
from ...server.prefetch import PrefetchPlan, ask_held, ask_sent
from ...workers.retention import Span, returning_spans
from .changing_fleet import ChangingFleet, EngineRole, FleetControl
from .handoffs import Handoffs, RoleConfig
from .prepared_trace import SimulatedTrace
from .published import EngineReports, LlmD
from .recovery import SimulatedRecovery
from .replicas import ReplicaConfig, ReplicaNetwork
from .request_log import FAILED, REJECTED, RequestLog

MOST_ROUNDS = 10_000
"""in which neither time passes nor an answer comes, before a run counts as stalled"""


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """The engines of a simulation, and how their KV events travel: delay in s, share lost."""

    workers: int
    engine: EngineConfig
    speeds: tuple[float, ...] = EVEN_SPEEDS  # over and over if there are more workers
    event_delay_s: float = 0.0
    event_loss: float = 0.0
    session_hints: bool = False  # each request says how much of it will return
    roles: RoleConfig = RoleConfig()  # engines beside the workers: see Handoffs
    disagg: DisaggConfig = DisaggConfig()
    told: bool = True  # the router knows the engines' blocks and budgets
    changing: bool = False  # the numbers of engines are the most at a time; none is there yet


class _Clock:
    """Virtual time, set by the simulation."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Simulation:
    """One run. `new_router` makes the router under test from the clock it must use.

    `router` and `fleet` are there to be looked at while it runs, and `engines` to be changed where
    the fleet is changing.
    """

    def __init__(
        self,
        trace: SimulatedTrace,
        fleet: FleetSpec,
        new_router: Callable[[_Clock], KvRouter],
        *,
        seed: int = 0,
        replicas: ReplicaConfig | None = None,
    ) -> None:
        self._trace = trace
        self._clock = _Clock()
        replicas = replicas or ReplicaConfig()
        self.routers = [new_router(self._clock) for _ in range(replicas.routers)]
        self.router = self.routers[0]
        self._index = self.router.index if self.router.uses_caches else None
        self._event_driven = isinstance(self._index, EventIndex)
        roles = fleet.roles
        whole, apart = fleet.workers, roles.engines > 0 and fleet.disagg.disagg != "off"
        decoding = roles.decode_workers + whole if apart else roles.engines + whole
        self.fleet = VirtualFleet(
            fleet.engine,
            roles.engines + whole,
            speeds=fleet.speeds,
            record_events=self._event_driven,
            event_loss=fleet.event_loss,
            seed=seed,
        )
        self._delay = fleet.event_delay_s
        self._hints = fleet.session_hints
        self._handoffs = None
        if apart:
            self._handoffs = Handoffs(
                roles,
                fleet.disagg,
                new_router(self._clock),
                self.router,
                self.fleet,
                trace,
                frozenset(range(roles.decode_workers, decoding)),
            )
        self._decoding = decoding
        self.engines: ChangingFleet | None = None
        if fleet.changing:
            apart_places: dict[EngineRole, range] = {
                "aggregated": range(roles.decode_workers, decoding),
                "decode": range(roles.decode_workers),
                "prefill": range(decoding, roles.engines + whole),
            }
            routers_of: dict[EngineRole, KvRouter] = {
                "aggregated": self.router,
                "decode": self.router,
                "prefill": self.router if self._handoffs is None else self._handoffs.prefill,
            }
            self.engines = ChangingFleet(
                fleet.engine,
                self.fleet,
                apart_places,
                routers_of,
                self._lose,
                sizes_known=fleet.told,
            )
        for worker in () if fleet.changing else range(roles.engines + whole):
            told = fleet.engine if fleet.told else None
            routers = self.routers
            if self._handoffs is not None and worker >= decoding:
                routers = [self._handoffs.prefill]
            for router in routers:
                router.add_worker(
                    worker,
                    dp_size=fleet.engine.dp_size,
                    total_kv_blocks=None if told is None else told.num_gpu_blocks,
                    max_num_batched_tokens=None if told is None else told.max_num_batched_tokens,
                    max_num_seqs=None if told is None else told.max_num_seqs,
                )
        self._network = None
        if len(self.routers) > 1 and replicas.replica_sync:
            self._network = ReplicaNetwork(self.routers, replicas, seed)
        lossy = self._event_driven and fleet.event_loss > 0
        self._recovery = None
        if lossy:
            self._recovery = SimulatedRecovery(
                self.router,
                self.fleet,
                loss=fleet.event_loss,
                delay_s=self._delay,
                seed=seed,
            )
        informed = [each.strategy for each in self.routers if isinstance(each.strategy, LlmD)]
        self._reports = None
        if informed:
            self._reports = EngineReports(self.fleet, roles.engines + whole, informed)
        self.prefetches = PrefetchPlan()
        elsewhere = []
        way = fleet.disagg.disagg, fleet.disagg.disagg_policy
        if self._handoffs is not None and way == ("conditional", "forecast"):
            elsewhere.append(partial(seconds_until_taken, self._handoffs.prefill))
        self._waiting = [new_queue(router, elsewhere) for router in self.routers]
        self._queues = self.router.limits.any_wait
        self._queue_max = 0
        size = len(trace)
        self._arrival = trace.arrivals_s.copy()
        self._due = [
            (time, place)
            for place, time in enumerate(self._arrival.tolist())
            if not math.isnan(time)
        ]  # sorted, and so a heap
        self._status = np.zeros(size, np.uint8)
        self._worker = np.full(size, -1, np.int32)
        self._first = np.full(size, np.nan)
        self._last = np.full(size, np.nan)
        self._cached = np.zeros(size, np.int64)
        self._preemptions = np.zeros(size, np.int64)
        self._queued = np.zeros(size)
        self._first_failure = ""

    def run(
        self,
        on_request: Callable[[int], None] | None = None,
        *,
        control: FleetControl | None = None,
    ) -> RequestLog:
        """Route the whole trace and run to its end. `on_request` gets the number routed so far.

        `control` changes the fleet on the way, until nothing arrives and runs any more.
        """
        if (control is None) != (self.engines is None):
            raise ValueError("a changing fleet needs a control, and no other has one")
        routed = 0
        with ExitStack() as stack:
            for router in self.routers:
                stack.enter_context(router)
            handoffs = self._handoffs
            if handoffs is not None:
                stack.enter_context(handoffs.prefill)
            while self._due or self._is_moving or (handoffs is not None and handoffs.blocked):
                if control is not None and self._change(control):
                    continue
                self._pass_time(self._due[0][0] if self._due else math.inf)
                # Not what we waited for, perhaps: an answer can call for the next turn before.
                now = self._due[0][0] if self._due else math.inf
                if now == math.inf and (self._is_moving or (handoffs and handoffs.blocked)):
                    raise self._stalled()
                while self._due and self._due[0][0] == now:
                    self._arrive(heapq.heappop(self._due)[1], now)
                    routed += 1
                    if on_request is not None:
                        on_request(routed)
        # Whoever asks the router afterwards asks at the last answer, not at the end of time.
        self._clock.time = float(np.nanmax(self._last, initial=self._arrival.max()))
        return self.log()

    def _change(self, control: FleetControl) -> bool:
        """Whether the fleet's next change came before anything else, and was made."""
        engines, due = self.engines, self._due[0][0] if self._due else math.inf
        assert engines is not None
        at = min(engines.next_time, control.next_time)
        if at > due or at == math.inf:
            return False
        if at > self._clock.time:
            self._pass_time(at)
            if self._due and self._due[0][0] < at:  # an answer has called for a turn before
                return True
            self._clock.time = at
        if engines.next_time <= at:
            engines.act(at)
        if control.next_time <= at:
            control.act(at)
        return True

    def _lose(self, request_id: str, now: float) -> None:
        """An engine was killed that had the request."""
        place = int(request_id)
        self._status[place] = FAILED
        self._first_failure = self._first_failure or f"request {place}: its engine was stopped"
        self._call_follower(place, now)

    def _pass_time(self, until: float) -> None:
        """Move to `until`, or to the arrival of a turn that is called for on the way."""
        if self._recovery is not None:
            while (due := self._recovery.next_time) < until:
                if until == math.inf and not self.fleet.is_busy:
                    return
                self._move(due)
                if self._due and self._due[0][0] <= due:
                    return
                self._recovery.act()
        self._move(until)

    def _move(self, until: float) -> None:
        now, before, rounds = -math.inf, -math.inf, 0
        while now < until and not (self._due and self._due[0][0] <= now):
            # While requests wait, any answer may be what they wait for, or the time alone.
            queues = [queue for queue in self._waiting if len(queue)]
            # A request that was turned away meanwhile can have called for the next turn.
            asked_at = min(until, self._due[0][0]) if self._due else until
            for queue in queues:
                asked_at = min(asked_at, self._clock.time + queue.ask_again_s)
            if self._network is not None and (self.fleet.is_busy or until < math.inf):
                asked_at = min(asked_at, max(self._network.next_time, self._clock.time))
            handoffs = self._handoffs
            if handoffs is not None:
                asked_at = min(asked_at, max(handoffs.next_time, self._clock.time))
            if self._reports is not None and (self.fleet.is_busy or until < math.inf):
                asked_at = min(asked_at, max(self._reports.next_time, self._clock.time))
            now = self.fleet.advance(asked_at, to_answer=bool(queues) or handoffs is not None)
            answers = self._settle()
            rounds = 0 if answers or now > before else rounds + 1
            if rounds > MOST_ROUNDS:
                raise self._stalled()
            self._clock.time = before = now
            if self._reports is not None and now < math.inf:
                self._reports.act(now)
            if handoffs is not None and now < math.inf:
                handoffs.act(now)
            if self._event_driven:
                if handoffs is not None:
                    message = self.fleet.collect(now - self._delay, self._decoding)
                    if message is not None:
                        handoffs.prefill.apply_event(message)
                message = self.fleet.collect(now - self._delay, 0, self._decoding)
                if message is not None:
                    for router in self.routers:
                        router.apply_event(message)
                    if self._recovery is not None:
                        self._recovery.notice(now)
            if self._network is not None and now < math.inf:
                self._network.act(now)
            if handoffs is not None:
                for place in [handoffs.blocked.popleft() for _ in range(len(handoffs.blocked))]:
                    if handoffs.blocked:
                        handoffs.blocked.append(place)
                        continue
                    self._queued[place] = now - self._arrival[place]
                    self._route(place, now)
                if handoffs.blocked:
                    continue
            for queue in self._waiting:
                while (ticket := queue.next()) is not None:
                    place = int(ticket.request_id)
                    self._queued[place] = now - ticket.arrived
                    self._route(place, now)

    @property
    def _is_moving(self) -> bool:
        """Whether anything goes on that is not an arrival."""
        handoffs = self._handoffs
        return self.fleet.is_busy or (handoffs is not None and handoffs.is_moving)

    def _stalled(self) -> RuntimeError:
        engines = range(len(self.fleet.stats()) // self.fleet.config.dp_size)
        return RuntimeError(
            f"the simulation stands still at {self._clock.time} s: {len(self._due)} arrivals to "
            f"come, {sum(map(len, self._waiting))} requests queued; held and cached blocks "
            f"{[self.fleet.pools(engine) for engine in engines]}; hand-offs {self._handoffs}"
        )

    def _settle(self) -> int:
        """Tell the router what the engines have answered; how many answers that were."""
        clock, handoffs = self._clock, self._handoffs
        emissions = self.fleet.take_emissions()
        for time, place, kind, cached, preemptions in zip(
            emissions.times.tolist(),
            emissions.requests.tolist(),
            emissions.kinds.tolist(),
            emissions.cached_tokens.tolist(),
            emissions.preemptions.tolist(),
            strict=True,
        ):
            clock.time, router = time, self._router_of(place)
            if handoffs is not None:
                if handoffs.on_answer(place, kind, cached, time):
                    continue
                if handoffs.remote[place]:
                    cached = int(handoffs.cached[place])
            if kind & 1:
                router.mark_prefill_complete(str(place), cached_tokens=cached)
                self._first[place] = time
            if kind & 2:
                router.free(str(place), output_tokens=self._trace.output_tokens(place))
                self._last[place], self._cached[place] = time, cached
                self._preemptions[place] = preemptions
                self._call_follower(place, time)
        return len(emissions.times)

    def log(self) -> RequestLog:
        """The log as far as the run has come; its arrays go on to change."""
        handoffs, first_s, gaps = self._handoffs, self._first, self.fleet.gaps()
        if handoffs is not None and handoffs.is_ahead:
            first_s, gaps = handoffs.first_ahead(first_s, gaps)
        return RequestLog(
            arrival_s=self._arrival,
            status=self._status,
            worker=self._worker,
            first_s=first_s,
            last_s=self._last,
            cached_tokens=self._cached,
            preemptions=self._preemptions,
            gaps=gaps,
            engines=self.fleet.stats(),
            end_s=self._clock.time,
            lost_messages=self.fleet.lost_messages,
            announcements=self._recovery.announcements if self._recovery else 0,
            replays=self._recovery.replays if self._recovery else 0,
            queued_s=self._queued,
            queue_max=self._queue_max,
            first_failure=self._first_failure,
            remote=None if handoffs is None else handoffs.remote,
            handoff_s=None if handoffs is None else handoffs.handoff_s,
            transfer_s=None if handoffs is None else handoffs.transfer_s,
        )

    def _arrive(self, place: int, now: float) -> None:
        """A request comes: it goes to an engine at once, or waits."""
        router = self._router_of(place)
        queue = self._waiting[place % len(self.routers)]
        if self._handoffs is not None and self._handoffs.blocked:
            self._handoffs.blocked.append(place)
            return
        if not self._queues or queue.is_open(None, self._trace.requests[place].tenant):
            self._route(place, now)
            return

        def ticket() -> Ticket:
            prompt, tenant = self._trace.prompt(place), self._trace.requests[place].tenant
            return ticket_of(router, Placement(prompt, str(place), now, tenant=tenant))

        try:
            queue.enter(ticket, self._trace.requests[place].tenant)
            worker = ask_held(self.prefetches, router, str(place), self._trace.prompt(place))
            self._prefetch(place, worker, now)
        except NoWorkersError as error:
            self._turn_away(place, now, error)
        self._queue_max = max(self._queue_max, sum(map(len, self._waiting)))

    def _route(self, place: int, now: float) -> None:
        trace, request_id, router = self._trace, str(place), self._router_of(place)
        request = trace.requests[place]
        output_tokens = trace.output_tokens(place)
        try:
            placement = Placement(
                trace.prompt(place),
                request_id,
                float(self._arrival[place]),
                tenant=request.tenant,
                expected_output_tokens=output_tokens,
            )
            if self._handoffs is None:
                decision = router.place(placement)
            else:
                whole = self._handoffs.begin(placement, place, now)
                if whole is None:
                    self._worker[place] = self._handoffs.target_of(place)
                    return
                decision = whole
            self._prefetch(place, ask_sent(self.prefetches, router, request_id, decision), now)
            local, sequence = trace.hashes(place)
            self.fleet.submit(
                decision.worker.worker_id,
                place,
                rank=decision.worker.dp_rank,
                prompt_tokens=request.input_length,
                output_tokens=output_tokens,
                local_hashes=local,
                sequence_hashes=sequence,
                now=now,
                retention=self._retention(place),
                followed_after_s=trace.followers[place][1] if place in trace.followers else None,
            )
            self._worker[place] = decision.worker.worker_id
        except (NoWorkersError, InvalidRequestError) as error:
            if self._handoffs is not None:
                if isinstance(error, NoWorkersError) and error.overloaded and self._is_moving:
                    self._handoffs.blocked.appendleft(place)
                    return
                self._handoffs.prefill.free(request_id)
            router.free(request_id)
            self.prefetches.on_booked(request_id, None)
            self._turn_away(place, now, error)

    def _prefetch(self, place: int, worker: WorkerWithDpRank | None, now: float) -> None:
        """The engine is asked to load for a request, if any is: see router.prefetch."""
        if worker is None:
            return
        local, sequence = self._trace.hashes(place)
        full = self._trace.requests[place].input_length // self.fleet.config.block_size
        blocks = None
        if self.fleet.config.tiers.prefetch:
            blocks = self.fleet.prefetch(
                worker.worker_id, local[:full], sequence[:full], now, worker.dp_rank
            )
        self.prefetches.on_answer(str(place), worker, blocks)

    def _retention(self, place: int) -> Sequence[Span] | None:
        """What a request's client asks its engine to keep, where it says it."""
        if not self._hints:
            return None
        return returning_spans(self._trace.returning_tokens(place), self.fleet.config.block_size)

    def _router_of(self, place: int) -> KvRouter:
        """Requests go to the routers in turn."""
        return self.routers[place % len(self.routers)]

    def _turn_away(self, place: int, now: float, error: Exception) -> None:
        self._status[place] = REJECTED if isinstance(error, NoWorkersError) else FAILED
        self._first_failure = self._first_failure or f"request {place}: {error}"
        self._call_follower(place, now)

    def _call_follower(self, place: int, now: float) -> None:
        """The request at `place` is over, however: the next turn of its session will come."""
        if place in self._trace.followers:
            follower, delay = self._trace.followers[place]
            self._arrival[follower] = now + delay
            heapq.heappush(self._due, (now + delay, follower))
