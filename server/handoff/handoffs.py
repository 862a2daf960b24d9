"""Handoffs: decides the pairs of workers of one decode pool, and carries and counts their legs."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...base.clock import Clock
from ...base.errors import InvalidRequestError, NoWorkersError
from ...router.decider import Decider
from ...router.disagg import DisaggConfig, PairRule, Verdict
from ...router.pairs import NoCapacityError, PairDecision
from ...router.placement import Placement
from ...router.prompt import Prompt
from ...workers.channels import Metadata
from ...workers.dialects import EngineClient
from ...workers.handoffs import is_divisible, plan_handoff, why_not_paired
from ...workers.health import HealthMonitor
from ...workers.trtllm_proto import length_delimited
from ..request_limits import HandoffLimits
from .call import HandoffCall, HandoffClient
from .leg import PrefillLeg, PrefillWorkers
from .outcomes import HandoffOutcomes

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
        self._turn, self._fell = asyncio.Lock(), asyncio.Event()
        decider.on_load_fell.append(self._fell.set)

    def decide_pair(
        self, placement: Placement, pool: PrefillWorkers
    ) -> tuple[PairDecision, PrefillLeg | None]:
        """Choose the workers of a request, of which these may compute its prompt, and book it.

        Raises what KvRouter.place_pair does. The leg, if a prefill worker has one, must be ended.
        """
        pair = self._decider.decide_pair(placement, pool.router, self.rule)
        if pair.prefill is None:
            return pair, None
        return pair, PrefillLeg(pool, pair.prefill, placement.request_id, self._clock)

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
        return HandoffClient(
            decode, partial(self._start, decode, leg, (request_id, attempt_id), pair, max_tokens)
        )

    def _start(
        self,
        decode: EngineClient,
        leg: PrefillLeg,
        ids: tuple[str, str],
        pair: PairDecision,
        max_tokens: int,
        request: bytes,
        timeout: float | None,
        metadata: Metadata,
    ) -> HandoffCall:
        if ids[0] != ids[1]:
            request += length_delimited(1, ids[1].encode())
        plan = plan_handoff(request, max_tokens)
        return HandoffCall(self.outcomes, leg, decode, plan, ids, pair, timeout, metadata)

    def pool_for(self, placement: Placement, body: bytes) -> PrefillWorkers | None:
        """Whose workers may compute the prompt of a request, a serialized GenerateRequest."""
        if self._partners is None or self.rule.config.disagg == "off":
            return None
        pool = self._partners(placement.prompt)
        if pool is None:
            return None
        _, refusal = pool.monitor.limits.check(placement.prompt.isl, 0)
        if refusal is not None or self._why_not(pool) is not None:
            self.rule.note(Verdict(False, "no_pair"))
            return None
        if not is_divisible(body):
            self.rule.note(Verdict(False, "whole"))
            return None
        return pool

    def _why_not(self, pool: PrefillWorkers) -> str | None:
        ours, theirs = _dialect_of(self._monitor), _dialect_of(pool.monitor)
        if ours is None or theirs is None:
            return None
        return why_not_paired(theirs, ours)


def _dialect_of(monitor: HealthMonitor) -> str | None:
    """What the workers of a pool speak; None while none takes requests."""
    return next((each.client.dialect for each in monitor.engines if each.takes_requests), None)
