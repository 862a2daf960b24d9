"""What a request would cost each worker, in blocks; the cheapest worker is the best one.

    cost = prefill_load_scale * max(0, prefill - saved) + decode blocks
           + decode_active_request_weight * active requests
    prefill = (active prefill tokens + prompt tokens) / block size
    saved = credit * overlap + the lower tiers' weights * their overlaps
    credit = overlap_score_credit / (1 + credit_decay * prefill queued beyond the least busy
             eligible worker's, in prompts)

Pure; arrays are aligned by worker number.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError
from ...base.identity import WorkerWithDpRank
from ._dynamo_cost import evaluate
from .decision import CandidateTerms

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]


LOWER_TIER_WEIGHTS = ("host_cache_hit_weight", "disk_cache_hit_weight")


@dataclass(frozen=True, kw_only=True)
class CostParams:
    """Weights of the cost function; the defaults are Dynamo's.

    Raises ConfigError, naming the key, on a weight that is negative or not finite, and on one of
    a lower tier above 1: a block that has to be loaded saves no more than the block.
    """

    overlap_score_credit: float = 1.0  # blocks of prefill that a cached block saves
    credit_decay: float = 0.0  # how fast that fades with prefill queued beyond the least busy's
    prefill_load_scale: float = 1.0  # weight of prefill against decode
    decode_active_request_weight: float = 0.0  # blocks that an active request counts for
    host_cache_hit_weight: float = 0.75  # as the credit, for blocks in host memory; at most 1
    disk_cache_hit_weight: float = 0.25  # and on disk or in external storage; at most 1
    track_prefill_tokens: bool = True  # False: prefill costs nothing here

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"{each.name} must be finite and at least 0, not {value!r}", key=each.name
                )
            if each.name in LOWER_TIER_WEIGHTS and value > 1:
                raise ConfigError(f"{each.name} must be in 0..1, not {value!r}", key=each.name)


def tier_weights_given(params: CostParams) -> bool:
    """Whether a weight of a lower tier was set."""
    return any(getattr(params, key) != getattr(CostParams, key) for key in LOWER_TIER_WEIGHTS)


def lower_saving(params: CostParams, host: Any, disk: Any) -> Any:
    """Blocks of prefill that blocks in the lower tiers save; of numbers or of arrays."""
    return params.host_cache_hit_weight * host + params.disk_cache_hit_weight * disk


def params_from_legacy_weight(weight: float) -> tuple[float, float]:
    """The (prefill_load_scale, overlap_score_credit) that an overlap_score_weight stands for.

    The old formula weighed the uncached prefill as a whole, so a cached block was worth a full
    one: credit 1. Weight 0 meant "ignore the cache and the prefill".
    """
    return (weight, 1.0) if weight > 0 else (0.0, 0.0)


class CostInputs(NamedTuple):
    """A prompt before the workers. Arrays are by worker number; None stands for zeros."""

    isl: int
    """the prompt's length in tokens"""
    block_size: int
    overlaps: Blocks | None
    """leading blocks of the prompt in the device's cache"""
    prefill_tokens: Counts | None
    """active without this request, as are `active_requests`"""
    potential_blocks: Floats | None
    """decode blocks with this request"""
    active_requests: Counts | None
    eligible: Mask
    host_overlaps: Blocks | None = None
    """blocks beyond the device's, as are `disk_overlaps`"""
    disk_overlaps: Blocks | None = None


def score(params: CostParams, inputs: CostInputs) -> Floats:
    """The cost of every worker in blocks, inf where it is not eligible.

    ValueError if an array's length differs from that of `eligible`, or isl is 0.
    """
    return evaluate(params, *inputs, False)


def terms(
    params: CostParams,
    workers: Iterable[tuple[int, WorkerWithDpRank]],
    inputs: CostInputs,
    *,
    reasons: Mapping[int, str] | None = None,
    index_states: Mapping[int, str] | None = None,
) -> list[CandidateTerms]:
    """What made up the costs that `score` gives for the same inputs, for each (number, worker).

    A worker that is not eligible has the cost it would have. `reasons` says why it is not, and
    `index_states` how much its overlap can be trusted, where the caller knows.
    """
    rows = evaluate(params, *inputs, True).tolist()
    result = []
    for number, worker in workers:
        raw_prefill, credit, overlap, decode, requests, cost = rows[number]
        usable = bool(inputs.eligible[number])
        result.append(
            CandidateTerms(
                worker=worker,
                number=number,
                eligible=usable,
                reason="" if usable else (reasons or {}).get(number, "not eligible"),
                overlap_blocks=_at(inputs.overlaps, number),
                host_overlap_blocks=_at(inputs.host_overlaps, number),
                disk_overlap_blocks=_at(inputs.disk_overlaps, number),
                raw_prefill_blocks=raw_prefill,
                credit=credit,
                effective_overlap_blocks=overlap,
                decode_blocks=decode,
                active_requests=int(requests),
                cost=cost,
                dynamo_cost=cost,
                index_state=(index_states or {}).get(number, ""),
            )
        )
    return result


def _at(blocks: Blocks | None, number: int) -> int:
    return 0 if blocks is None else int(blocks[number])
