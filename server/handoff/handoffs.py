"""Handoffs: decides the pairs of workers of one decode pool, and carries and counts their legs."""

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import structlog

from ...base.clock import Clock
from ...base.errors import InvalidRequestError, NoWorkersError
from ...router.decider import Decider, seconds_until_taken
from ...router.disagg import DisaggConfig, PairRule, Verdict
from ...router.pairs import NoCapacityError, PairDecision
from ...router.placement import Placement
from ...router.prompt import Prompt
from ...workers.channels import Metadata
from ...workers.dialects import EngineClient
from ...workers.handoffs import (
    Connector,
    Fit,
    Half,
    Meetings,
    RemotePrefillHint,
    Shape,
    fit,
    plan_handoff,
    plan_queued,
)
from ...workers.health import HealthMonitor
from ...workers.trtllm_proto import length_delimited
from ..request_limits import HandoffLimits
from .call import HandoffCall, HandoffClient
from .leg import PrefillLeg, PrefillWorkers
from .outcomes import HandoffOutcomes
from .queued import QueuedCall
from .reading import Readings
from .sharing import SharedRequest

log = structlog.get_logger(__name__)
T = TypeVar("T")
Partners = Callable[[Prompt], PrefillWorkers | None]
"""Whose workers may compute a prompt now; None: only those of the pool itself."""


class Handoffs:
    """Of one pool of decode workers; `rule` decides, and has what was learnt of its links.

    `partners` names the prefill workers of a prompt; None: there never are any.
    """

    def __init__(
        self,
        decider: Decider,
        monitor: HealthMonitor,
        clock: Clock,
        config: DisaggConfig = DisaggConfig(),  # noqa: B008  # it is frozen
        limits: HandoffLimits = HandoffLimits(),  # noqa: B008
        partners: Partners | None = None,
    ) -> None:
        self.rule = PairRule(config)
        self.outcomes = HandoffOutcomes(self.rule, limits, clock, decider.router.block_size)
        self.waiting = 0
        """requests that wait until a decode worker has capacity for their prompts"""
        self._decider, self._monitor, self._clock = decider, monitor, clock
        self._partners = partners
        self.is_possible = partners is not None
        """whether there may ever be prefill workers"""
        self.meetings = Meetings()
        outcomes = self.outcomes
        self.readings = Readings(
            lambda: monitor.ready_clients(), lambda: outcomes.failures.update(unread=1)
        )
        self._fits: dict[PrefillWorkers, Fit | None] = {}
        """of pools that were asked, until a worker of either half changes"""
        self._watched: set[PrefillWorkers] = set()
        self._refusal = ""  # as it was logged last
        self._each_runs_whole: bool | None = None
        monitor.listeners.append(self._on_changed)
        if self.is_possible:
            decider.elsewhere.append(self._seconds_until_free)
        self._turn, self._fell = asyncio.Lock(), asyncio.Event()
        self._on_load_fell = decider.on_load_fell

    def change(self, config: DisaggConfig, limits: HandoffLimits) -> None:
        """Use these settings for requests that come from now on. What was learnt stays."""
        self.rule.config, self.outcomes.limits = config, limits

    def decide_pair(
        self, placement: Placement, pool: PrefillWorkers, is_first: bool = False
    ) -> tuple[PairDecision, PrefillLeg | None]:
        """Choose the workers of a request, of which these may compute its prompt, and book it.
        `is_first`: see `sends_first`.

        Raises what KvRouter.place_pair does. The leg, if a prefill worker has one, must be ended.
        """
        rule = self.rule if self._runs_whole(pool) else self.rule.for_pairs_alone()
        if is_first:
            rule = rule.for_first_ahead()
        request_id = placement.request_id
        pair = self._decider.decide_pair(placement, pool.router, rule)
        try:
            leg = None
            if pair.prefill is not None:
                leg = PrefillLeg(
                    pool, pair.prefill, pair.landing, request_id, self._decider, self.rule,
                    self._clock, is_first,
                )  # fmt: skip
            for note in self.outcomes.on_pair:
                note(request_id, pair)
        except BaseException:  # the caller does not know of the bookings
            self._decider.router.free(request_id)
            if leg is not None:
                leg.end()
            elif pair.prefill is not None:
                pool.router.free(request_id)
                if pair.landing is not None:
                    self.rule.on_landed(pair.landing)
            raise
        return pair, leg

    def is_full(self, pool: PrefillWorkers) -> bool:
        """Whether these workers may keep no more prompts of this pool, none of which was read."""
        fits = self.fit(pool)
        if fits is None or fits.connector is None or not fits.connector.must_read:
            return False
        return len(self.readings.tasks) >= self.outcomes.limits.max_unread_prompts

    def sends_first(self, pool: PrefillWorkers, shared: SharedRequest) -> bool:
        """Whether the token that these workers make of a request may go to its client before the
        prompt is handed over. The decode workers must go on from it, and the request from there at
        another pair, if they fail."""
        fits = self.fit(pool)
        if fits is None or fits.connector is None or not fits.connector.hands_first:
            return False
        return self.outcomes.limits.disagg_handoff != Shape.QUEUE.value and shared.goes_on

    def check_trusted(self) -> None:
        """InvalidRequestError for a request whose client says which leg of another one it is,
        unless a setting trusts that: it names hosts which engines connect to."""
        if not self.outcomes.limits.trust_handoff_fields:
            text = "disaggregated_params is the router's to set (--trust-handoff-fields)"
            raise InvalidRequestError(text, field="disaggregated_params")

    async def await_capacity(self, decide: Callable[[], T], within_s: float | None) -> T:
        """What `decide` returns once a decode worker has capacity for the prompt, in the order in
        which requests came. NoWorkersError (overloaded) if too many wait, or it takes longer than
        `within_s`."""
        limit = self._decider.router.limits.config.queue_limit
        if self.waiting >= limit:
            raise NoWorkersError(
                f"{self.waiting} requests wait for capacity on a decode worker", overloaded=True
            )
        if not self.waiting:
            self._on_load_fell.append(self._fell.set)
        self.waiting += 1
        try:
            async with asyncio.timeout(within_s), self._turn:
                while True:
                    try:
                        return decide()
                    except NoCapacityError:
                        self._fell.clear()
                        await self._fell.wait()
        except TimeoutError:
            text = "no decode worker had capacity for the prompt in time"
            raise NoWorkersError(text, overloaded=True) from None
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._on_load_fell.remove(self._fell.set)

    def client(
        self,
        pair: PairDecision,
        leg: PrefillLeg,
        request_id: str,
        number: int,
        max_tokens: int,
    ) -> HandoffClient | None:
        """The way to both workers of a pair, for attempt `number` of a request, from 0; None if
        the decode worker has no address any more. Engines know each attempt by an id of its own."""
        decode = self._monitor.client(pair.decode.worker.worker_id)
        if decode is None:
            return None
        attempt_id = request_id if not number else f"{request_id}~{number}"
        fits = self.fit(leg.pool)
        if fits is None or fits.connector is None:
            return None  # it fitted when the pair was chosen, just now
        start = partial(self._start, decode, leg, (request_id, attempt_id), pair)
        return HandoffClient(decode, partial(start, max_tokens, fits.connector))

    def _start(
        self,
        decode: EngineClient,
        leg: PrefillLeg,
        ids: tuple[str, str],
        pair: PairDecision,
        max_tokens: int,
        connector: Connector,
        request: bytes,
        timeout: float | None,
        metadata: Metadata,
    ) -> HandoffCall | QueuedCall:
        if ids[0] != ids[1]:
            request += length_delimited(1, ids[1].encode())
        limits = self.outcomes.limits
        if limits.disagg_handoff == Shape.QUEUE.value and connector.takes_queue:
            # A worker that has some of the prompt is worth waiting for; else any will do.
            chosen = leg.worker_id if leg.decision.cached_tokens else None
            hint = RemotePrefillHint(
                chosen, limits.max_local_prefill_length, limits.max_prefill_queue_size
            )
            request = plan_queued(request, hint)
            return QueuedCall(self.outcomes, leg, decode, request, ids, pair, timeout, metadata)
        facts = leg.facts
        parallel = facts.tensor_parallel_size or 1, facts.pipeline_parallel_size or 1
        meeting = self.meetings.new(*leg.rank, parallel, connector.number_bits)
        meeting = meeting._replace(request_id=ids[1])
        plan = plan_handoff(request, max_tokens, connector, facts.transfer, meeting)
        return HandoffCall(
            self.outcomes, leg, decode, plan, ids, pair, timeout, metadata, self.readings
        )

    def pool_for(self, placement: Placement, shared: SharedRequest) -> PrefillWorkers | None:
        """Whose workers may compute the prompt of a request.

        InvalidRequestError if two workers cannot share it, NoWorkersError if there is no pair for
        it, where no worker runs whole requests."""
        if self._partners is None:
            return None
        if self.rule.config.disagg == "off" and self._runs_whole(None):
            return None
        pool = self._partners(placement.prompt)
        runs_whole = self._runs_whole(pool)
        fits = None if pool is None else self.fit(pool)
        refusal = "no prefill worker is ready" if pool is None else ""
        refusal = fits.refusal if fits is not None else refusal
        if pool is None or refusal:
            if not runs_whole:
                raise NoWorkersError(f"no decode worker runs a request alone, and {refusal}")
            if pool is not None:
                self.rule.note(Verdict(False, "no_pair"))
            return None
        _, too_long = pool.monitor.limits.check(placement.prompt.isl, 0)
        why_not = None if too_long is None else InvalidRequestError(too_long)
        reason, why_not = ("no_pair", why_not) if why_not else ("whole", shared.why_whole)
        if why_not is None:
            return pool
        if not runs_whole:
            raise why_not
        self.rule.note(Verdict(False, reason))
        return None

    def _runs_whole(self, pool: PrefillWorkers | None) -> bool:
        """Whether the workers run requests that they share with no worker of this pool."""
        if self._each_runs_whole is None:
            engines = self._monitor.engines
            self._each_runs_whole = all(each.facts.transfer.runs_whole for each in engines)
        if pool is None or not self._each_runs_whole:
            return self._each_runs_whole
        fits = self.fit(pool)
        return fits is None or fits.connector is None or fits.connector.runs_whole

    def fit(self, pool: PrefillWorkers) -> Fit | None:
        """What the workers of a pool and these have in common; None while one half has none that
        takes requests."""
        if pool not in self._fits:
            if pool not in self._watched:
                self._watched.add(pool)
                pool.monitor.listeners.append(self._on_changed)
            found = self._fits[pool] = fit(_half(pool.monitor), _half(self._monitor))
            refusal = found.refusal if found is not None else ""
            if refusal and refusal != self._refusal:
                log.warning("prefill and decode workers do not fit", reason=refusal)
            self._refusal = refusal
        return self._fits[pool]

    def refusal(self, pool: PrefillWorkers) -> str:
        """Why no prompt goes from the workers of a pool to these; empty where it can."""
        found = self.fit(pool)
        return "" if found is None else found.refusal

    def _seconds_until_free(self) -> float:
        """Until a prefill worker is that these workers may be handed prompts by; inf: none is, or
        it is lengths that decide, which would bring prompts to workers that are not free."""
        config = self.rule.config
        if (config.disagg, config.disagg_policy) != ("conditional", "forecast"):
            return math.inf
        pools = [pool for pool, fits in self._fits.items() if fits is not None and fits.connector]
        return min((seconds_until_taken(pool.router) for pool in pools), default=math.inf)

    def _on_changed(self) -> None:
        self._fits.clear()
        self._each_runs_whole = None


def _half(monitor: HealthMonitor) -> Iterable[Half]:
    for each in monitor.engines:
        if each.takes_requests:
            yield Half(each.url.address, each.client.dialect, each.facts)
