"""Requests and replayed caches for the tests of the mock engine."""

from collections.abc import Collection, Iterable

import numpy as np
from hypothesis import strategies as st

from dynamo_router.engines.serving.kv_events import BlocksStored, KvEvent
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.workers.retention import Retention, TokenRange


def request(request_id: str, tokens: Iterable[int], max_tokens: int = 1, **more: object):
    return EngineRequest(
        request_id=request_id,
        token_ids=np.array(list(tokens), dtype=np.uint32),
        max_tokens=max_tokens,
        **more,
    )


def apply(cache: set[int], events: Iterable[KvEvent], elsewhere: Collection[int] = ()) -> None:
    """Replay a tier's events as a router would, which knows only what it was told.

    A parent may be in another tier: `elsewhere`.
    """
    for event in events:
        if isinstance(event, BlocksStored):
            parent = event.parent_hash
            for block in event.blocks:
                assert block.parent_hash == parent, "a chain is broken"
                assert parent is None or parent in cache or parent in elsewhere, (
                    "stored behind an unknown parent"
                )
                assert block.block_hash not in cache, "stored twice"
                cache.add(block.block_hash)
                parent = block.block_hash
        else:
            for block_hash in event.block_hashes:
                cache.remove(block_hash)


def retentions():
    """What a client may ask to be kept: priorities around the usual one, some that end."""
    priority = st.sampled_from([0, 20, 35, 60, 100])
    duration_ms = st.sampled_from([None, 1.0, 40.0, 1500.0])
    tokens = st.integers(0, 30)
    spans = st.builds(
        TokenRange,
        token_start=tokens,
        token_end=st.none() | tokens,
        priority=priority,
        duration_ms=duration_ms,
    )
    return st.builds(
        Retention,
        token_range_retention_configs=st.lists(spans, max_size=2).map(tuple),
        decode_retention_priority=priority,
        decode_duration_ms=duration_ms,
    )
