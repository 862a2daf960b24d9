"""The policies that a comparison can name, as routers.

kv                     the default policy of mode kv
dynamo:SCALE           mode kv with Dynamo's cost at that prefill_load_scale
dynamo:SCALE+queue     the same with its queue: threshold 0, the shortest prompt first (wspt)
lmetric, llm-d, preble what others have published: see published.py
llm-d:P:Q:M            with these weights of prefix, queue and memory
preble:BALANCE         with another load over the least, above which no prefix is followed
forecast, or the name of a policy that an installed package offers
round-robin, random, least-loaded, power-of-two
prefix-hash:BLOCKS     by the hash of the prompt's first blocks (of the trace: 512 tokens)
chwbl:FACTOR[:BLOCKS]  consistent hashing with bounded loads; 2 blocks if not given
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...base.clock import Clock
from ...base.errors import ConfigError
from ...router.config import DYNAMO, KvRouterConfig
from ...router.kv_router import KvRouter
from ...router.policies import known_policies
from ...router.policy import LMetric, Policy
from .baselines import BoundedConsistentHash, PrefixHash
from .published import LlmD, Preble

LOAD_MODES = ("round-robin", "random", "least-loaded", "power-of-two")
CHWBL_BLOCKS = 2
WITH_QUEUE = "+queue"
# By name: the policy, and how many numbers its variants take.
PUBLISHED: Mapping[str, tuple[Callable[..., Policy], int]] = {
    "lmetric": (LMetric, 0),
    "llm-d": (LlmD, 3),
    "preble": (Preble, 1),
}


@dataclass(frozen=True)
class PolicyVariant:
    """A policy under test: the two names that its runs carry, and the router's settings."""

    mode: str
    policy: str
    config: KvRouterConfig
    new_policy: Callable[[], Policy] | None = None  # else the one that `config` names

    def new_router(self, clock: Clock, seed: int) -> KvRouter:
        """A router without workers that follows the policy."""
        policy = self.new_policy() if self.new_policy is not None else None
        return KvRouter(self.config, clock=clock, seed=seed, strategy=policy)


def parse_policies(
    names: str, *, block_size: int, trace_block_size: int, base: KvRouterConfig | None = None
) -> list[PolicyVariant]:
    """The policies named in a list with commas, in its order, on top of the settings in `base`.

    Names of the same policy count once. Raises ConfigError for a name that is unknown or malformed.
    """
    found: dict[str, PolicyVariant] = {}
    # A booking lives as long as its request: the service renews it with every token.
    base = replace(
        base or KvRouterConfig(), block_size=block_size, active_request_expiry_secs=math.inf
    )
    for name in (part.strip() for part in names.split(",")):
        variant = _parse(name, base, trace_block_size)
        found.setdefault(variant.policy, variant)
    return list(found.values())


def _parse(name: str, base: KvRouterConfig, trace_block_size: int) -> PolicyVariant:
    kind, *values = name.split(":")
    try:
        if name in LOAD_MODES:
            return PolicyVariant(name, name, replace(base, mode=name))  # type: ignore[arg-type]  # is a Mode
        if name == "kv":
            config = replace(base, mode="kv")
            return PolicyVariant("kv", config.policy_name, config)
        if kind in PUBLISHED and len(values) in (0, PUBLISHED[kind][1]):
            published, numbers = PUBLISHED[kind][0], tuple(map(float, values))
            if not all(0 <= each < math.inf for each in numbers):
                raise ValueError("its numbers must be finite and at least 0")
            policy = ":".join((kind, *(f"{each:g}" for each in numbers)))
            return PolicyVariant(kind, policy, base, lambda: published(*numbers))
        if kind == DYNAMO and len(values) == 1:
            queued = values[0].endswith(WITH_QUEUE)
            config = replace(
                base,
                mode="kv",
                policy=DYNAMO,
                prefill_load_scale=float(values[0].removesuffix(WITH_QUEUE)),
                overlap_score_weight=None,
            )
            policy = config.policy_name
            if queued:
                policy += WITH_QUEUE
                admission = replace(config.admission, queue_threshold=0.0, queue_policy="wspt")
                config = replace(config, admission=admission)
            return PolicyVariant("kv", policy, config)
        if kind == "prefix-hash" and len(values) == 1:
            trace_blocks = int(values[0])
            blocks = _router_blocks(trace_blocks, trace_block_size, base.block_size)
            PrefixHash(blocks)  # refuses what cannot be
            return PolicyVariant(kind, f"{kind}:{trace_blocks}", base, lambda: PrefixHash(blocks))
        if kind == "chwbl" and len(values) in (1, 2):
            factor = float(values[0])
            trace_blocks = int(values[1]) if len(values) == 2 else CHWBL_BLOCKS
            blocks = _router_blocks(trace_blocks, trace_block_size, base.block_size)
            BoundedConsistentHash(factor, blocks)
            policy = f"{kind}:{factor:g}"
            if trace_blocks != CHWBL_BLOCKS:
                policy += f":{trace_blocks}"
            return PolicyVariant(kind, policy, base, lambda: BoundedConsistentHash(factor, blocks))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"compare: {name!r}: {error}", key="compare") from None
    if name in known_policies():
        config = replace(base, mode="kv", policy=name)
        return PolicyVariant("kv", config.policy_name, config)
    raise ConfigError(
        f"compare: {name!r} is none of kv, {', '.join(known_policies())}, {', '.join(LOAD_MODES)}, "
        f"{DYNAMO}:SCALE{WITH_QUEUE}, {', '.join(PUBLISHED)}, prefix-hash:BLOCKS, chwbl:FACTOR",
        key="compare",
    )


def _router_blocks(trace_blocks: int, trace_block_size: int, block_size: int) -> int:
    if trace_blocks < 1:
        raise ValueError("at least one block is hashed")
    return max(1, trace_blocks * trace_block_size // block_size)
