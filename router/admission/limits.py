"""How much is too much: the knobs of admission, and the two questions they answer. Pure.

A worker is *busy* when it takes no more requests at all, and *saturated* when a request that went
there would only wait there, so that it had better wait here. Both are asked anew for every request,
of the load as it is then: nothing is remembered, so nothing can stay latched once the load is gone.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ...process.settings import bad_setting, is_finite, option
from ...slots.table import SlotTable
from ...workers.registry import WorkerRegistry
from ..policy import Candidates, Mask, Policy, ShedBound
from .objectives import DefaultObjectives, Objectives
from .tenants import TenantConfig, TenantShares
from .ticket import QUEUE_POLICIES, QueuePolicy
from .weights import WeightedShares

UNKNOWN_BATCH_TOKENS = 10_000_000
"""What stands for an engine's token budget where it is not known (Dynamo's number)."""

DEFAULT_ITL_MS = 25.0
"""Mean ITL objective where neither a request nor a setting names one."""

ENGINE = "engine"
"""The cap on requests that is what each engine says of itself."""
_CAP = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """When requests wait, or are turned away. Raises ConfigError, naming the key, on a bad value.

    All thresholds are off by default. Who waits is then up to the policy, if it has a say in it.
    """

    GROUP: ClassVar[str] = "Queue and objectives"

    hold: bool = option(
        True,
        "With a policy that forecasts, and no queue threshold: requests wait in the router, not in"
        " an engine, while every worker computes prompts or has its cache booked out.",
        "--router-hold",
    )
    shed: bool | None = option(
        None,
        "With a policy that forecasts: refuse a request that would miss its TTFT objective, or make"
        " about as many answers miss their ITL objective as it adds, wherever it went. Not given:"
        " by objectives that the request or --slo-ttft-ms and --slo-itl-ms name, not by defaults.",
        "--router-shed",
    )
    queue_threshold: float | None = option(
        None,
        "Requests wait while every worker has more prefill tokens queued than this share of its"
        " batch budget.",
        "--router-queue-threshold",
        env=("DYN_ROUTER_QUEUE_THRESHOLD",),
    )
    queue_policy: QueuePolicy | None = option(
        None,
        "Order of the queue: first come, last come, fewest tokens to compute, or earliest start to"
        " meet the TTFT objective. Not given: fcfs with a queue threshold, else the policy's"
        " own order.",
        "--router-queue-policy",
        env=("DYN_ROUTER_QUEUE_POLICY",),
        choices=QUEUE_POLICIES,
    )
    slo_ttft_ms: float | None = option(
        None,
        "TTFT objective of requests that name none (x-dynamo-slo-ttft-ms). Not given:"
        " --slo-relative-base-ms and --slo-relative-factor times the prompt's time on an idle"
        " engine.",
        short=True,
    )
    slo_relative_base_ms: float = option(200.0, "See --slo-ttft-ms.")
    slo_relative_factor: float = option(1.5, "See --slo-ttft-ms.")
    slo_itl_ms: float | None = option(
        None,
        "Mean ITL objective of requests that name none (x-dynamo-slo-itl-ms). Not given: 25.",
        short=True,
    )
    queue_limit: int = option(
        10_000, "Most requests in the queue; further ones are refused.", "--router-queue-limit"
    )
    max_requests_per_worker: str | None = option(
        None,
        "Most requests at a worker, or at each of its ranks, before others wait in the router: a"
        " number, engine (as many as it reports to run at once), or none.",
    )
    active_decode_blocks_threshold: float | None = option(
        None,
        "A worker is busy above this share of its KV blocks, 0 to 1.",
        "--active-decode-blocks-threshold",
        env=("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",),
    )
    active_prefill_tokens_threshold: int | None = option(
        None,
        "A worker is busy above this many prefill tokens.",
        "--active-prefill-tokens-threshold",
        env=("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",),
    )
    active_prefill_tokens_threshold_frac: float | None = option(
        None,
        "A worker is busy above this many times its batch budget in prefill tokens.",
        "--active-prefill-tokens-threshold-frac",
        env=("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",),
    )

    tenants: TenantConfig = field(default_factory=TenantConfig, metadata={"inline": True})

    def __post_init__(self) -> None:
        for key in (
            "queue_threshold",
            "active_decode_blocks_threshold",
            "active_prefill_tokens_threshold",
            "active_prefill_tokens_threshold_frac",
        ):
            value = getattr(self, key)
            if value is not None and not (is_finite(value) and value >= 0):
                raise bad_setting(key, f"{value!r} must be finite and at least 0")
        for key in ("slo_ttft_ms", "slo_relative_base_ms", "slo_relative_factor", "slo_itl_ms"):
            value = getattr(self, key)
            if value is not None and not (is_finite(value) and value > 0):
                raise bad_setting(key, f"{value!r} must be finite and greater than 0")
        share = self.active_decode_blocks_threshold
        if share is not None and share > 1:
            raise bad_setting("active_decode_blocks_threshold", f"{share!r} must be from 0 to 1")
        if self.queue_policy is not None and self.queue_policy not in QUEUE_POLICIES:
            known = ", ".join(QUEUE_POLICIES)
            raise bad_setting("queue_policy", f"{self.queue_policy!r} is not one of {known}")
        cap = self.max_requests_per_worker
        if cap not in (None, ENGINE) and not _CAP.fullmatch(cap):
            text = f"{cap!r} is not none, {ENGINE} or a number from 1 on"
            raise bad_setting("max_requests_per_worker", text)
        if self.queue_limit < 1:
            raise bad_setting("queue_limit", f"{self.queue_limit!r} must be at least 1")

    @property
    def itl_objective_ms(self) -> float:
        """Mean ITL within which answers should stay."""
        return DEFAULT_ITL_MS if self.slo_itl_ms is None else self.slo_itl_ms

    @property
    def sheds_all(self) -> bool:
        """Whether a request can be refused that names no objective itself."""
        if self.shed is None:
            return self.slo_ttft_ms is not None or self.slo_itl_ms is not None
        return self.shed

    @cached_property
    def objectives(self) -> DefaultObjectives:
        """What counts for requests that name none."""
        return DefaultObjectives(
            ttft_ms=self.slo_ttft_ms,
            base_ms=self.slo_relative_base_ms,
            factor=self.slo_relative_factor,
            itl_ms=self.itl_objective_ms,
        )


class LoadLimits:
    """Who is busy and who is saturated, by what the slots say now.

    `change` replaces thresholds while the router runs. Arrays are by worker number.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        slots: SlotTable,
        registry: WorkerRegistry,
        policy: Policy | None = None,
    ) -> None:
        self._slots = slots
        self._registry = registry
        self.shares = WeightedShares(registry)
        self.tenants = TenantShares(config.tenants)
        self.seconds_to_probe: Callable[[float], float] | None = None
        """for how long load of other routers may still keep requests waiting: see PeerLoad"""
        self._foreseer = policy
        self._holder = policy if policy is not None and policy.holds else None
        self.config = config

    @property
    def config(self) -> AdmissionConfig:
        return self._config

    @config.setter
    def config(self, config: AdmissionConfig) -> None:
        self._config = config
        holds = config.hold and config.queue_threshold is None
        self._policy = self._holder if holds else None
        """where it is the one that says who waits"""
        self.policy_holds = holds and self._holder is not None
        """whether it is the policy that says who waits; else it is the queue threshold, if any"""
        self.caps = config.max_requests_per_worker is not None
        """whether a worker can have as many requests as it may"""
        self.any_busy = (
            config.active_decode_blocks_threshold is not None
            or config.active_prefill_tokens_threshold is not None
            or config.active_prefill_tokens_threshold_frac is not None
        )
        """whether a worker can be busy at all"""
        self.is_limited = self.caps or self.any_busy
        """whether a worker can have all that it may"""
        self.sheds_all = config.sheds_all
        """whether a request can be refused that names no objective itself"""

    def change(self, **thresholds: Any) -> AdmissionConfig:
        """Use other thresholds from now on; ConfigError, and nothing changed, on a bad one."""
        self.config = replace(self.config, **thresholds)
        return self.config

    def objectives(self, isl: int, asked: Objectives) -> Objectives:
        """Those of a request with so long a prompt: what it asked for, else the defaults."""
        foreseer = self._foreseer
        cold_s = None if foreseer is None else foreseer.cold_s(isl)
        return self._config.objectives.of(asked, cold_s)

    def cold_s(self, tokens: int) -> float | None:
        """Seconds in which an idle engine computes `tokens` prompt tokens; None: not known."""
        return None if self._foreseer is None else self._foreseer.cold_s(tokens)

    @property
    def requests_shed(self) -> int:
        """How many requests the policy has refused for the load; see AdmissionConfig.shed."""
        return 0 if self._foreseer is None else self._foreseer.refused

    def on_given(
        self, request_id: str, number: int, takers: Mask, tenant: str, candidates: Candidates
    ) -> None:
        """One of the takers, or another one, got a tenant's request."""
        self.shares.on_given(number, takers)
        if self.tenants.counts(tenant):
            tokens, overlaps = candidates.isl, candidates.overlaps
            if overlaps is not None:
                tokens -= min(tokens, int(overlaps[number]) * candidates.block_size)
            self.tenants.on_given(tenant, tokens, candidates.now)
            self.tenants.on_booked(request_id, tenant, candidates.isl)

    def busy(self) -> Mask:
        """Which ranks take no more. The ranks of one engine are busy together or not at all."""
        config = self.config
        mask = np.zeros(self._registry.capacity, dtype=np.bool_)
        if config.active_decode_blocks_threshold is not None:
            active = self._slots.active_blocks()
            blocks = self._registry.kv_blocks
            mask |= (blocks > 0) & (active > config.active_decode_blocks_threshold * blocks)
        tokens = self._slots.active_prefill_tokens()
        if config.active_prefill_tokens_threshold is not None:
            mask |= tokens > config.active_prefill_tokens_threshold
        if config.active_prefill_tokens_threshold_frac is not None:
            mask |= tokens > config.active_prefill_tokens_threshold_frac * self._budgets()
        if mask.any():
            for entry in self._registry.entries():
                if entry.dp_size > 1:
                    numbers = list(entry.numbers)
                    mask[numbers] = mask[numbers].all()
        return mask

    def busy_of(self, eligible: Mask, now: float) -> Mask | None:
        """Which ranks take no more; None where a request is to see whether all of these are."""
        mask = self.busy()
        return None if not (eligible & ~mask).any() and self._may_probe(now) else mask

    def shed_bound(
        self, isl: int, asked: Objectives, waited_s: float, tenant: str, now: float
    ) -> ShedBound | None:
        """Beyond what a request with so long a prompt is refused; None: it is not.

        A tenant that has less than its share in the engines is refused later by as much, one that
        has more sooner. No request is refused that is to see whether it must be.
        """
        config = self._config
        names_ttft = asked.ttft_ms is not None and not asked.is_default_ttft
        if not (self.sheds_all or names_ttft) or config.shed is False or self._may_probe(now):
            return None
        share = self.tenants.below_share(tenant, now)
        counts_itl = config.shed or config.slo_itl_ms is not None
        ttft_s, is_possible = self._ttft_to_shed_s(isl, asked)
        missed_share = share if counts_itl else math.inf
        has_more = self.tenants.has_more(tenant, now)
        return ShedBound(ttft_s * share - waited_s, missed_share, is_possible, tenant, has_more)

    def _ttft_to_shed_s(self, isl: int, asked: Objectives) -> tuple[float, bool]:
        """Seconds from its arrival within which a request is to have its first token, or is
        refused, and whether an idle engine with nothing cached would do it; inf where its TTFT
        does not matter."""
        if self._config.shed is False or self._foreseer is None:
            return math.inf, True
        cold_s, objectives = self.cold_s(isl), self.objectives(isl, asked)
        if cold_s is None or objectives.ttft_ms is None:
            return math.inf, True
        if objectives.is_default_ttft and not self._config.shed:
            return math.inf, True
        seconds = objectives.ttft_ms / 1e3
        return seconds, cold_s < seconds

    def _may_probe(self, now: float) -> bool:
        return self.seconds_to_probe is not None and self.seconds_to_probe(now) <= 0

    def full(self) -> Mask | None:
        """Which ranks have as many requests as they may; None: no such limit."""
        cap = self.config.max_requests_per_worker
        if cap is None:
            return None
        active = self._slots.active_requests()
        if cap != ENGINE:
            return active >= int(cap)
        most = self._registry.max_num_seqs
        return (most > 0) & (active >= most)

    def avoided(self, eligible: Mask) -> Mask | None:
        """Which of these had better get no more, if there are others; None: none of them.

        Never all of those that are not full.
        """
        full = self.full()
        if full is None:
            return self.shares.spent(eligible)
        spent = self.shares.spent(eligible & ~full)
        return full if spent is None else full | spent

    def why_avoided(self, eligible: Mask) -> dict[str, Mask]:
        """The same by the reason for it; empty if there would be none else."""
        full = self.full()
        masks = {} if full is None else {"has as many requests as it may": eligible & full}
        spent = self.shares.spent(eligible if full is None else eligible & ~full)
        if spent is not None:
            masks["has had the share of its weight"] = spent
        return masks if full is None or (eligible & ~full).any() else {}

    @property
    def any_wait(self) -> bool:
        """Whether a request can have to wait at all."""
        return self.policy_holds or self.config.queue_threshold is not None or self.caps

    @property
    def queue_policy(self) -> QueuePolicy:
        """Who goes first of those that wait."""
        return self.config.queue_policy or "fcfs"

    @property
    def orders_by_tokens(self) -> bool:
        """Whether it matters for a request's turn how many tokens it computes."""
        return self.queue_policy in ("wspt", "deadline") or self._orders_as_policy

    def order_penalty_s(self, uncached_tokens: int) -> float:
        """Seconds that a request counts as having come later, by the policy's own order."""
        if self._policy is None or not self._orders_as_policy:
            return 0.0
        return self._policy.order_penalty_s(uncached_tokens)

    def most_wait_s(self, isl: int, uncached_tokens: int, asked: Objectives) -> float:
        """Seconds that a request can wait and meet its TTFT objective; inf where it does not
        matter, or are not known. It matters to the order `deadline`, and to the policy's own one
        where the request or a setting names the objective."""
        by_deadline = self.queue_policy == "deadline"
        if not by_deadline and self.config.queue_policy is not None:
            return math.inf
        objectives = self.objectives(isl, asked)
        if objectives.ttft_ms is None or (objectives.is_default_ttft and not by_deadline):
            return math.inf
        return objectives.ttft_ms / 1e3 - (self.cold_s(uncached_tokens) or 0.0)

    def shed_wait_s(
        self, isl: int, uncached_tokens: int, asked: Objectives, tenant: str, now: float
    ) -> float:
        """Seconds that a request can wait until it is sure to be refused; see shed_bound."""
        seconds, is_possible = self._ttft_to_shed_s(isl, asked)
        if not is_possible:
            return math.inf  # whether it is refused is up to how many others are late
        seconds *= self.tenants.below_share(tenant, now)
        return seconds - (self.cold_s(uncached_tokens) or 0.0)

    @property
    def _orders_as_policy(self) -> bool:
        """Whether those that wait go in the policy's own order: no other one was asked for."""
        return self._policy is not None and self.config.queue_policy in (None, "deadline")

    def seconds_until_free(
        self, eligible: Mask, now: float, hold: bool = True, has_more: bool = False
    ) -> float:
        """Seconds until a request that may go to these ranks should go: 0 now, inf when load falls.

        `hold`: ask the policy, if it is the one that says who waits. `has_more`: only for how long
        a tenant that has more than its share leaves them to others, be they free or not.
        Not 0 only if all of them are saturated. Where all are busy, or none is eligible, there is
        nothing to wait for: the request is refused.
        """
        policy = self._policy
        if policy is None or not hold or has_more or self.is_limited or self._registry.is_weighted:
            wait = self._seconds_until_free(eligible, now, hold, has_more)
        else:  # as nearly always: in fewer steps
            wait = policy.hold(eligible, self._slots.active_blocks(), now)
            wait = wait if wait > 0 and self._may_hold(eligible) else 0.0
        if wait > 0 and self.seconds_to_probe is not None:
            return min(wait, self.seconds_to_probe(now))
        return wait

    def _seconds_until_free(self, eligible: Mask, now: float, hold: bool, has_more: bool) -> float:
        if self.any_busy:
            eligible = eligible & ~self.busy()
        if has_more:
            return self._over_share_wait_s(eligible, now)
        if (avoided := self.avoided(eligible)) is not None:
            others = eligible & ~avoided
            if eligible.any() and not others.any():
                return math.inf  # all are full
            eligible = others
        if self._policy is not None and hold:
            wait = self._policy.hold(eligible, self._slots.active_blocks(), now)
            return wait if wait > 0 and self._may_hold(eligible) else 0.0
        share = self.config.queue_threshold
        if share is None or not eligible.any():
            return 0.0
        saturated = self._slots.active_prefill_tokens() > share * self._budgets()
        return 0.0 if (eligible & ~saturated).any() else math.inf

    def _over_share_wait_s(self, eligible: Mask, now: float) -> float:
        """The least of such a wait for a request of a tenant that has more than its share.

        0 without a policy that foresees: then only the order of those who wait is fair.
        """
        if self._policy is None or not self._may_hold(eligible):
            return 0.0
        return self._policy.hold_over_share(eligible, self._slots.active_blocks(), now)

    def _may_hold(self, eligible: Mask) -> bool:
        """Whether a policy's hold is to be believed.

        No request waits for an idle fleet; nor for prompts of callers that booked them
        and reported no more, which may be long computed, or be computed nowhere.
        """
        slots = self._slots
        if not slots.active_requests()[eligible].any():
            return False
        return not slots.has_owned or bool((slots.certain_prefill_tokens()[eligible] > 0).all())

    def waiting(self, eligible: Mask, now: float) -> Mask:
        """Which of these ranks a request waits for that may go nowhere else: those for which alone
        `seconds_until_free`, without a hold, is not 0."""
        if self.any_busy:
            eligible = eligible & ~self.busy()
        full, share = self.full(), self.config.queue_threshold
        waits = np.zeros_like(eligible) if full is None else full
        if share is not None:
            waits = waits | (self._slots.active_prefill_tokens() > share * self._budgets())
        waits = eligible & waits
        return np.zeros_like(waits) if waits.any() and self._may_probe(now) else waits

    def _budgets(self) -> Any:
        budgets = self._registry.batch_tokens
        return np.where(budgets > 0, budgets, UNKNOWN_BATCH_TOKENS)
