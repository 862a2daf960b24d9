"""What routing can reach at best: the hit rate of one cache for all, the TTFT of an idle engine."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...engines.mocker import EngineConfig
from ..traces import TRACE_BLOCK_SIZE, TraceRequest


@dataclass(frozen=True)
class HitRateBounds:
    """Shares of all prompt tokens that no routing finds cached, or hardly: if every request goes
    through one LRU cache, of the fleet's whole capacity or without end.
    """

    pooled_lru: float
    infinite: float


def hit_rate_bounds(
    requests: Sequence[TraceRequest],
    *,
    block_size: int,
    fleet_blocks: int,
    trace_block_size: int = TRACE_BLOCK_SIZE,
) -> HitRateBounds:
    """The bounds of a fleet whose caches hold `fleet_blocks` of `block_size` tokens together."""
    pooled, infinite = (
        pooled_hit_rate(
            requests,
            block_size=block_size,
            capacity_blocks=capacity,
            trace_block_size=trace_block_size,
        )
        for capacity in (fleet_blocks, None)
    )
    return HitRateBounds(pooled, infinite)


def pooled_hit_rate(
    requests: Sequence[TraceRequest],
    *,
    block_size: int,
    capacity_blocks: int | None,
    trace_block_size: int = TRACE_BLOCK_SIZE,
) -> float:
    """Cached over all prompt tokens, for one LRU cache that every request goes through in turn.

    `capacity_blocks` of `block_size` tokens; None: without end. Prompts alone, cached as soon as
    they arrive: a fleet also caches what it generates, and a prompt only while it is computed. As
    in an engine, only full blocks hit, and the last token is computed in any case.
    """
    cache: OrderedDict[int, int] = OrderedDict()  # trace block -> tokens in it
    held = hit_tokens = 0
    capacity = None if capacity_blocks is None else capacity_blocks * block_size
    for request in requests:
        ids, length = request.hash_ids, request.input_length
        hits = 0
        for block in ids:
            if block not in cache:
                break
            hits += 1
        reusable = (length - 1) // block_size * block_size
        hit_tokens += min(hits * trace_block_size // block_size * block_size, reusable)
        last = length - (len(ids) - 1) * trace_block_size
        # The end of a prompt becomes the older end: a prefix outlives what hangs below it.
        for place in range(len(ids) - 1, -1, -1):
            block = ids[place]
            if place >= hits:
                size = trace_block_size if place < len(ids) - 1 else last
                held += size - cache.get(block, 0)
                cache[block] = size
            cache.move_to_end(block)
        while capacity is not None and held > capacity:
            held -= cache.popitem(last=False)[1]
    total = sum(request.input_length for request in requests)
    return hit_tokens / total


def idle_engine_ms(
    engine: EngineConfig, prompt_tokens: ArrayLike, cached_tokens: ArrayLike = 0
) -> NDArray[np.float64]:
    """Milliseconds from a prompt's arrival at an idle engine of speed 1 to its first token.

    It computes what is not cached, one token at least, in as few steps as it can.
    """
    prompt, cached = np.asarray(prompt_tokens, np.int64), np.asarray(cached_tokens, np.int64)
    tokens = np.maximum(prompt - cached, 1)
    step, prefill_ms = engine.max_num_batched_tokens, engine.timing.prefill_ms
    full, rest = np.divmod(tokens, step)
    attention = [
        engine.timing.attention_ms(new, before)
        for new, before in zip(
            tokens.ravel().tolist(), (prompt - tokens).ravel().tolist(), strict=True
        )
    ]
    rests = np.array([prefill_ms(each) for each in rest.ravel().tolist()], np.float64)
    once: NDArray[np.float64] = full * prefill_ms(step) + rests.reshape(rest.shape)
    found: NDArray[np.float64] = once + np.array(attention, np.float64).reshape(rest.shape)
    return found
