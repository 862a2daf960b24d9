"""What `KvRouter.place_pair` answers, and how it is chosen from two pools' candidates."""

from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from ..base.errors import NoWorkersError
from ..base.identity import WorkerWithDpRank
from ..workers.registry import WorkerRegistry
from .disagg import Landing, LocalForecast, PairFacts, PairRule, RemoteForecast, Verdict, judge
from .policy import (
    Candidates,
    Decision,
    Floats,
    Foreseen,
    Mask,
    Policy,
    Preferred,
    Rng,
    choose,
    discounted,
)
from .runners_up import rank_others

BOOKED_OUT = 0.95
"""Share of a decode worker's blocks up to which it takes a prompt that is handed over."""


class NoCapacityError(NoWorkersError):
    """No decode worker has room for a prompt that is to be handed over."""


class PairDecision(msgspec.Struct, frozen=True):
    """Where a request goes. Each leg is booked in its own router, under the request's id, until
    `free` there; no `prefill`: the worker of `decode` computes the prompt itself."""

    decode: Decision
    prefill: Decision | None = None
    reason: str = ""
    local_s: float | None = None
    """the sums that were compared, where they were"""
    remote_s: float | None = None
    first_token_s: float | None = None
    """after the decision, as it was forecast of the way that was chosen"""
    landing: Landing | None = None
    """of the prompt at the decode worker, until the rule hears `on_landed`"""

    @property
    def verdict(self) -> dict[str, Any]:
        """Where the prompt is computed and why, with the seconds that were compared."""
        return {
            "prefill": "local" if self.prefill is None else "remote",
            "reason": self.reason,
            "local_s": self.local_s,
            "remote_s": self.remote_s,
        }

    def to_dict(self) -> dict[str, Any]:
        prefill = None if self.prefill is None else self.prefill.to_dict()
        found = {**structs.asdict(self), "decode": self.decode.to_dict(), "prefill": prefill}
        del found["landing"]
        return found


class Leg(NamedTuple):
    """A worker that was chosen for a leg, not booked yet, and what the request would meet there."""

    number: int
    candidates: Candidates
    foreseen: Foreseen | None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, on the worker's device."""
        found = self.candidates
        if found.overlaps is None:
            return 0
        return min(int(found.overlaps[self.number]) * found.block_size, found.isl)

    @property
    def uncached_tokens(self) -> int:
        return self.candidates.isl - self.cached_tokens


def among(candidates: Candidates, eligible: Mask, *, computed: bool = False) -> Candidates:
    """The same request before other workers; `computed`: by another worker, so that each is
    spared its whole prefill."""
    found = copy(candidates)
    found.eligible, found.chosen = eligible, None
    if computed:
        blocks = np.uint32(-(-candidates.isl // candidates.block_size))
        found.saved_prefill_blocks = np.full(len(eligible), blocks, np.uint32)
        found.host_overlaps = found.disk_overlaps = None
    return found


def with_capacity(candidates: Candidates, kv_blocks: Any, output_tokens: int | None) -> Mask:
    """Which workers have capacity for the prompt and its answer beside all that is booked there.

    One whose cache has no known size, or that has no request, counts as such.
    """
    answer = -(-(output_tokens or 0) // candidates.block_size)
    blocks = candidates.potential_blocks + answer
    fits: Mask = (
        (kv_blocks <= 0) | (blocks <= BOOKED_OUT * kv_blocks) | (candidates.active_requests == 0)
    )
    return fits


class Side:
    """One pool before a request, under the lock of its router: who may take a leg of it."""

    def __init__(
        self,
        candidates: Candidates,
        policy: Policy,
        rng: Rng,
        registry: WorkerRegistry,
        preferred: Preferred | None = None,
    ) -> None:
        self.candidates = candidates
        self.registry = registry
        self._policy, self._rng, self._preferred = policy, rng, preferred

    def best(self, eligible: Mask) -> Leg:
        """The worker among these that the policy chooses for the whole of the prompt."""
        found = among(self.candidates, eligible)
        return self._leg(choose(self._policy, found, self._rng, preferred=self._preferred), found)

    def best_target(self, eligible: Mask, extra_s: Floats) -> Leg:
        """The same for a prompt that another worker computes and hands over in `extra_s`."""
        found = among(self.candidates, eligible, computed=True)
        costs = self._policy.score(found) + extra_s
        if self._preferred is not None:
            costs = discounted(self._preferred, costs)
        return self._leg(self._policy.pick(costs, self._rng), found)

    def as_target(self, number: int) -> Leg:
        """A worker that was chosen, with the prompt handed over."""
        return self._leg(number, among(self.candidates, self.candidates.eligible, computed=True))

    def mask(self, ids: Iterable[int]) -> Mask:
        """True for every rank of these workers."""
        mask = np.zeros(len(self.candidates.eligible), np.bool_)
        for entry in filter(None, map(self.registry.entry, ids)):
            mask[list(entry.numbers)] = True
        return mask

    def others(self, leg: Leg, count: int) -> tuple[int, ...]:
        """Ids of other workers that might have had a leg, the best one first."""
        able = (self.candidates.eligible, None, None)
        return rank_others(self._policy, leg.candidates, able, self.registry, leg.number, count)

    def all_busy(self, threshold: float | None) -> bool:
        """Whether each has more prompt tokens than this many times its batch budget. One whose
        budget is not known is not busy."""
        if threshold is None:
            return False
        budgets, tokens = self.registry.batch_tokens, self.candidates.prefill_tokens
        calm = (budgets <= 0) | (tokens <= threshold * budgets)
        return not bool((self.candidates.eligible & calm).any())

    def is_above(self, number: int, share: float | None) -> bool:
        """Whether the request would bring a worker above this share of its blocks."""
        blocks = int(self.registry.kv_blocks[number])
        if share is None or blocks <= 0:
            return False
        return bool(self.candidates.potential_blocks[number] > share * blocks)

    def _leg(self, number: int, candidates: Candidates) -> Leg:
        return Leg(number, candidates, self._policy.foresee(candidates, number))


def choose_pair(
    rule: PairRule,
    decode: Side,
    prefill: Side | None,
    output_tokens: int | None,
    queue_threshold: float | None,
) -> tuple[Verdict, Leg, Leg | None]:
    """The verdict, the decode worker's leg, and the prefill worker's where that computes. The rule
    takes note of a prompt that the decode worker is given.

    NoCapacityError where the prompt may only be handed over, and no worker has room.
    """
    here, config = decode.candidates, rule.config
    whole = decode.mask(rule.aggregated)
    takers = here.eligible & ~whole
    if prefill is None or config.disagg == "off" or not takers.any():
        if rule.needs_pairs:
            raise NoWorkersError("no prefill worker may take the prompt, and none runs it alone")
        reason = "off" if config.disagg == "off" else "no_pair"
        return Verdict(False, reason), decode.best(here.eligible), None
    fits = with_capacity(here, decode.registry.kv_blocks, output_tokens)
    targets = takers & fits
    always = config.disagg == "always"
    computing = here.eligible & whole if always else here.eligible
    if not targets.any():
        if not (computing & fits).any():
            raise NoCapacityError("no decode worker has room for the prompt", overloaded=True)
        return Verdict(False, "no_room"), decode.best(computing & fits), None
    source = prefill.best(prefill.candidates.eligible)
    there, computed_s = source.foreseen, 0.0
    if there is not None:
        computed_s = there.wait_s + there.prefill_s
    extra_s = _handoffs_s(
        rule,
        prefill.registry.worker(source.number),
        among(here, targets),
        decode.registry,
        here.now + computed_s,
    )
    if source.foreseen is None:  # then one choice, by load and cache, is for both
        chosen = decode.best(targets | (here.eligible & whole))
        if whole[chosen.number]:
            return Verdict(False, "aggregated"), chosen, None
        target = decode.as_target(chosen.number)
    else:
        target = decode.best_target(targets, extra_s)
        chosen = decode.best(computing) if computing.any() else target
    handoff_s = float(extra_s[target.number])
    local, remote = None, None
    worker = decode.registry.worker(chosen.number)
    if computing.any():
        step_s = 0.0 if chosen.foreseen is None else chosen.foreseen.decode_step_s
        price = rule.price(worker, step_s, here.now)
        local, remote = _forecasts(chosen, source, target, handoff_s, price, rule.is_ahead)
    threshold = config.disagg_prefill_busy_threshold
    facts = PairFacts(
        here.isl,
        chosen.cached_tokens,
        prefill.all_busy(queue_threshold if threshold is None else threshold),
        decode.is_above(chosen.number, config.disagg_decode_busy_threshold),
        local,
        remote,
    )
    verdict = judge(config, facts)
    if verdict.remote:
        return verdict, target, source
    if chosen.foreseen is not None:
        rule.on_local(worker, chosen.foreseen.prefill_s, here.now)
    return verdict, chosen, None


def _forecasts(
    chosen: Leg, source: Leg, target: Leg, handoff_s: float, price: float, is_ahead: bool
) -> tuple[LocalForecast | None, RemoteForecast | None]:
    """What a prompt meets on `chosen`, and on its way over `source` to `target`."""
    here, there, landing = chosen.foreseen, source.foreseen, target.foreseen
    if here is None or there is None or landing is None:
        return None, None
    own_s = here.wait_s, here.prefill_s, here.memory_s
    return (
        LocalForecast(*own_s, here.delay_s, here.stalled_s, here.step_s, price),
        RemoteForecast(
            there.wait_s, there.prefill_s, there.delay_s, handoff_s, landing.memory_s, is_ahead
        ),
    )


def _handoffs_s(
    rule: PairRule,
    source: WorkerWithDpRank,
    candidates: Candidates,
    registry: WorkerRegistry,
    computed_at: float,
) -> Floats:
    """Seconds of a hand-off from `source` to each eligible worker, by what it has cached."""
    seconds = np.zeros(len(candidates.eligible))
    uncached = candidates.uncached_tokens()
    for number in np.flatnonzero(candidates.eligible).tolist():
        landing = rule.landing(source.worker_id, registry.worker(number), int(uncached[number]))
        seconds[number] = rule.handoff_s(landing, computed_at)
    return seconds
