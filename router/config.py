"""Configuration of a decision: KvRouterConfig.

Knobs that Dynamo has carry its names, flags and environment variables.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from ..process.setting_checks import check_finite, require_finite
from ..process.settings import MOST, bad_setting, option
from .admission import AdmissionConfig
from .affinity import AffinityConfig
from .policy import LOWER_TIER_WEIGHTS, MODES, CostParams, Mode, params_from_legacy_weight

FORECAST, DYNAMO = "forecast", "dynamo"  # the policies that are ours
_SIZES = ("router_max_index_blocks", "router_max_tree_size", "router_max_booked_blocks")
# What Dynamo's cost function is made of; other policies have no use for it.
DYNAMO_KNOBS = (
    "overlap_score_credit",
    "overlap_score_credit_decay",
    "prefill_load_scale",
    "overlap_score_weight",
    "decode_active_request_weight",
    "router_track_prefill_tokens",
)


@dataclass(frozen=True, kw_only=True)
class KvRouterConfig:
    """How a request finds its worker. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Routing"

    mode: Mode = option(
        "kv",
        "How a worker is chosen.",
        "--mode",
        "--router-mode",
        choices=MODES,
        env=("DYN_ROUTER_MODE",),
        short=True,
    )
    policy: str | None = option(
        None,
        "How mode kv weighs workers: forecast, dynamo, dynamo:SCALE, or a policy of an installed"
        " package. Not given: forecast, or dynamo where one of the knobs of its cost is set.",
        "--policy",
        "--router-policy",
        short=True,
    )
    shadow_policy: str | None = option(
        None,
        "With mode kv: a policy, or another mode, that is asked for each request too and only"
        " counted: what it would have chosen, and gained by the forecast's word.",
        "--shadow-policy",
    )
    block_size: int = option(
        64,
        "Tokens in a KV-cache block; must equal the engines'.",
        "--block-size",
        "--kv-cache-block-size",
        short=True,
    )
    overlap_score_credit: float = option(
        1.0,
        "Credit for each cached block, in blocks of prefill; 0 ignores the cache.",
        "--router-kv-overlap-score-credit",
        "--kv-overlap-score-credit",
        env=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
    )
    overlap_score_credit_decay: float = option(
        0.0,
        "How fast the credit fades on a worker with more prefill queued than the least busy.",
        "--router-kv-overlap-score-credit-decay",
        env=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
    )
    host_cache_hit_weight: float = option(
        0.75,
        "As the credit, for each further block that a worker has in host memory; 0 to 1.",
        "--router-host-cache-hit-weight",
        env=("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",),
    )
    disk_cache_hit_weight: float = option(
        0.25,
        "The same for each block after those, on disk or in external storage; 0 to 1.",
        "--router-disk-cache-hit-weight",
        env=("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",),
    )
    prefill_load_scale: float = option(
        1.0,
        "Weight of the prefill left to do against the decode load.",
        "--router-prefill-load-scale",
        "--prefill-load-scale",
        env=("DYN_ROUTER_PREFILL_LOAD_SCALE",),
    )
    overlap_score_weight: float | None = option(
        None,
        "Old name of --router-prefill-load-scale (credit 1; 0 turns both off). Wins if given.",
        "--router-kv-overlap-score-weight",
        "--kv-overlap-score-weight",
        env=("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"),
    )
    decode_active_request_weight: float = option(
        0.0,
        "Cost of each request already running on a worker, in blocks.",
        "--router-decode-active-request-weight",
        env=("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",),
    )
    router_temperature: float = option(
        0.0,
        "Softmax temperature over the costs; 0 takes the cheapest worker.",
        "--router-temperature",
        "--temperature",
        env=("DYN_ROUTER_TEMPERATURE",),
    )
    use_kv_events: bool = option(
        True,
        "Index what the engines report. Off: predict it from where requests were sent.",
        "--kv-events",
        "--router-kv-events",
        env=("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
        short=True,
    )
    router_max_index_blocks: int = option(
        2**26,
        "With KV events: most different blocks indexed in a storage tier (about 40 bytes each),"
        " engines' own hashes of shared blocks included; beyond, those of use longest ago are"
        " dropped.",
        "--router-max-index-blocks",
    )
    max_unknown_workers: int = option(
        512,
        "With KV events: most unregistered ranks that are indexed; what others publish is refused.",
        "--max-unknown-workers",
    )
    router_ttl_secs: float = option(
        120.0,
        "Of workers without KV events: seconds until a predicted block expires.",
        "--router-ttl-secs",
        "--router-ttl",
        env=("DYN_ROUTER_TTL_SECS",),
    )
    router_max_tree_size: int = option(
        2**20, "The same: most predicted blocks kept.", "--router-max-tree-size"
    )
    router_prune_target_ratio: float = option(
        0.8, "The same: part of that left after a prune.", "--router-prune-target-ratio"
    )
    router_predicted_ttl_secs: float | None = option(
        None,
        "With KV events: seconds for which the blocks of a routed request count as cached until the"
        " worker's events confirm them; 0: events alone count. Not given: longer than events are"
        " late, 0 where they are not or with Dynamo's cost.",
        "--router-predicted-ttl-secs",
        env=("DYN_ROUTER_PREDICTED_TTL_SECS",),
    )
    router_track_active_blocks: bool = option(
        True,
        "Count the blocks of running requests as decode load.",
        "--router-track-active-blocks",
        env=("DYN_ROUTER_TRACK_ACTIVE_BLOCKS",),
    )
    router_track_output_blocks: bool = option(
        False,
        "Count the blocks of generated tokens too.",
        "--router-track-output-blocks",
        env=("DYN_ROUTER_TRACK_OUTPUT_BLOCKS",),
    )
    router_assume_kv_reuse: bool = option(
        True,
        "Running requests with a common prefix share its blocks.",
        "--router-assume-kv-reuse",
        env=("DYN_ROUTER_ASSUME_KV_REUSE",),
    )
    router_track_prefill_tokens: bool = option(
        True,
        "Count the prompt tokens still to be prefilled on each worker.",
        "--router-track-prefill-tokens",
        env=("DYN_ROUTER_TRACK_PREFILL_TOKENS",),
    )
    active_request_expiry_secs: float = option(
        300.0,
        "A booking that was not released is dropped after this long.",
        "--router-active-request-expiry-secs",
        env=("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS",),
    )
    router_replica_sync: bool = option(
        False,
        "Share bookings with other routers of the same workers, over NATS.",
        "--router-replica-sync",
        env=("DYN_ROUTER_REPLICA_SYNC",),
        short=True,
    )
    router_prefetch: bool = option(
        True,
        "While a request waits, ask engines to load its blocks from host memory and disk; engines"
        " that answer UNIMPLEMENTED are asked once.",
        env_key="prefetch_waiting",  # that of a mock engine is DYNAMO_ROUTER_PREFETCH
    )
    router_max_booked_blocks: int = option(2**24, "Most blocks and requests booked as load.")
    router_max_booked_share: float = option(0.5, "Largest part of that for one caller.")
    seed: int | None = option(None, "Seed of random choices and ties.", "--seed")
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    affinity: AffinityConfig = field(default_factory=AffinityConfig, metadata={"inline": True})

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise bad_setting("mode", f"{self.mode!r} is not one of {', '.join(MODES)}")
        self._check_policy()
        for key in ("block_size", "max_unknown_workers", *_SIZES):
            require_finite(self, 1, key)
            if getattr(self, key) > MOST:
                raise bad_setting(key, f"{getattr(self, key)!r} must be at most {MOST}")
        require_finite(
            self,
            0,
            "overlap_score_credit",
            "overlap_score_credit_decay",
            "prefill_load_scale",
            "decode_active_request_weight",
            "router_temperature",
            "router_ttl_secs",
            "overlap_score_weight",
            "router_predicted_ttl_secs",
        )
        for key in LOWER_TIER_WEIGHTS:
            if not 0 <= getattr(self, key) <= 1:
                raise bad_setting(key, f"{getattr(self, key)!r} is not in 0..1")
        if self.router_predicted_ttl_secs is not None:
            if self.router_predicted_ttl_secs > MOST:
                raise bad_setting("router_predicted_ttl_secs", f"must be at most {MOST}")
            if not self.use_kv_events:
                raise bad_setting("router_predicted_ttl_secs", "needs use_kv_events")
        if not self.active_request_expiry_secs > 0:
            raise bad_setting("active_request_expiry_secs", "must be greater than 0")
        for key in ("router_max_booked_share", "router_prune_target_ratio"):
            if not 0 < getattr(self, key) <= 1:
                raise bad_setting(key, "must be in (0, 1]")
        if self.router_track_output_blocks and not self.router_track_active_blocks:
            raise bad_setting("router_track_output_blocks", "needs router_track_active_blocks")

    def _check_policy(self) -> None:
        if self.shadow_policy is not None and self.mode != "kv":
            raise bad_setting("shadow_policy", f"is compared in mode kv, not in mode {self.mode}")
        if self.policy is None:
            return
        kind, colon, given = self.policy.partition(":")
        if kind == DYNAMO and colon:
            try:
                scale = float(given)
            except ValueError:
                raise bad_setting("policy", f"{given!r} in {self.policy!r} is no number") from None
            check_finite("policy", scale, 0)
            for key in ("prefill_load_scale", "overlap_score_weight"):
                if getattr(self, key) != default_of(key):
                    raise bad_setting(key, f"the policy {self.policy!r} has set it")
        elif kind != DYNAMO and self.mode == "kv" and (knob := self._dynamo_knob()) is not None:
            raise bad_setting(knob, f"has no effect with the policy {self.policy!r}")

    def _dynamo_knob(self) -> str | None:
        """A knob of Dynamo's cost that was set to something of its own."""
        return next((key for key in DYNAMO_KNOBS if getattr(self, key) != default_of(key)), None)

    @cached_property
    def policy_name(self) -> str:
        """What a report calls this way of choosing: dynamo:SCALE for Dynamo's cost function."""
        if self.mode != "kv":
            return self.mode
        policy = self.policy
        if policy is None:
            policy = FORECAST if self._dynamo_knob() is None else DYNAMO
        if policy.partition(":")[0] == DYNAMO:
            return f"{DYNAMO}:{self.cost_params.prefill_load_scale:g}"
        return policy

    @property
    def adapts_predicted_ttl(self) -> bool:
        """Whether it is measured for how long decisions are believed."""
        ours = self.mode == "kv" and self.policy_name.partition(":")[0] != DYNAMO
        return ours and self.use_kv_events and self.router_predicted_ttl_secs is None

    @cached_property
    def cost_params(self) -> CostParams:
        """The cost function's parameters, from whichever of the two vocabularies was used."""
        scale, credit = self.prefill_load_scale, self.overlap_score_credit
        kind, colon, given = (self.policy or "").partition(":")
        if kind == DYNAMO and colon:
            scale = float(given)
        if self.overlap_score_weight is not None:
            scale, credit = params_from_legacy_weight(self.overlap_score_weight)
        return CostParams(
            overlap_score_credit=credit,
            credit_decay=self.overlap_score_credit_decay,
            prefill_load_scale=scale,
            decode_active_request_weight=self.decode_active_request_weight,
            host_cache_hit_weight=self.host_cache_hit_weight,
            disk_cache_hit_weight=self.disk_cache_hit_weight,
            track_prefill_tokens=self.router_track_prefill_tokens,
        )


def default_of(key: str) -> Any:
    """A setting's default."""
    return KvRouterConfig.__dataclass_fields__[key].default
