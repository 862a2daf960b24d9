"""What a user of the library writes: it passes mypy --strict and pyright as it stands.

The comment behind a reveal_type is the type that both must name. Nothing here is ever run.
"""

from collections.abc import Sequence
from typing import reveal_type

import numpy as np

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.indexer import (
    ApproximateIndex,
    RadixTree,
    block_hashes,
    compute_block_hash_for_seq,
    compute_seq_hash_for_block,
    decode_event_message,
    sequence_hashes,
)


def route(prompt: Sequence[int]) -> int:
    config = KvRouterConfig(block_size=16, router_temperature=0.5, use_kv_events=False)
    reveal_type(config.block_size)  # int
    with KvRouter(config) as router:
        router.add_worker(1, dp_size=2, address="engine:8000")
        worker_id, rank, overlap = router.best_worker(prompt, "request-1", lora_name="adapter")
        reveal_type(overlap)  # int
        decision = router.decide(np.asarray(prompt, np.uint32), "request-2", pinned_worker=(1, 0))
        reveal_type(decision.worker.dp_rank)  # int
        reveal_type(decision.overlap_blocks)  # int
        reveal_type(router.mark_prefill_complete("request-1"))  # bool
        reveal_type(router.free("request-1", output_tokens=7))  # bool
        for worker, blocks in router.overlaps(prompt).items():
            reveal_type(worker.worker_id)  # int
            reveal_type(blocks)  # int
        for candidate in router.explain(prompt).candidates:
            reveal_type(candidate.cost)  # float
        reveal_type(router.remove_worker(1))  # list[str]
    return worker_id + rank


def look_up(tokens: Sequence[int], message: bytes) -> None:
    local_hashes = compute_block_hash_for_seq(tokens, 16, lora_name=None)
    reveal_type(local_hashes)  # list[int]
    reveal_type(compute_seq_hash_for_block(local_hashes))  # list[int]
    arrays = block_hashes(np.arange(64), 16)
    reveal_type(arrays.dtype.itemsize)  # int
    sequence_hashes(arrays, parent=1)
    tree = RadixTree(max_blocks=1000)
    tree.store((1, 0), None, local_hashes, local_hashes)
    match = tree.match(arrays)
    for worker, blocks in match.scores.items():
        reveal_type(worker.worker_id)  # int
        reveal_type(blocks)  # int
    tree.clear_all_blocks(1)
    reveal_type(len(tree))  # int
    for event in decode_event_message(message):
        reveal_type(event.event_id)  # int
    ApproximateIndex(ttl_s=60.0).close()
