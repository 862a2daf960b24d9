"""Cache events as a KvEventBatch has them."""

from typing import Any

import numpy as np

from ...indexer.wire import StorageTier
from ...workers.trtllm_proto import common_pb
from .kv_events import BlocksRemoved, BlocksStored, KvEvent

_INT64 = 2**63
_NUMBERS: dict[StorageTier, int] = {
    "device": common_pb.KV_CACHE_TIER_DEVICE,
    "host_pinned": common_pb.KV_CACHE_TIER_HOST,
    "disk": common_pb.KV_CACHE_TIER_DISK,
}


def add_kv_event(batch: Any, event: KvEvent, event_id: int) -> None:
    """Append one cache event to a KvEventBatch."""
    if isinstance(event, BlocksStored):
        add_stored(batch, event, event_id)
    elif isinstance(event, BlocksRemoved):
        removed = batch.events.add(event_id=event_id).removed
        removed.block_hashes.extend(map(_signed, event.block_hashes))
        removed.tier = _NUMBERS[event.tier]
    else:
        batch.events.add(event_id=event_id).cleared.SetInParent()


def add_stored(batch: Any, event: BlocksStored, event_id: int) -> None:
    """Append one stored event for a chain of blocks."""
    stored = batch.events.add(event_id=event_id).stored
    first = event.blocks[0]
    if first.parent_hash is not None:
        stored.parent_block_hash = _signed(first.parent_hash)
    stored.tier = _NUMBERS[event.tier]
    if first.lora_name is not None:
        stored.lora_name = first.lora_name
    if first.cache_namespace is not None:
        stored.cache_salt = first.cache_namespace
    for block in event.blocks:
        tokens = np.frombuffer(block.token_ids, dtype="<u4")
        stored.blocks.add(
            block_hash=_signed(block.block_hash),
            token_ids=tokens.tolist(),
            block_size=len(tokens),
            cache_level=0,
        )


def _signed(block_hash: int) -> int:
    """The wire's int64: two's complement of our u64."""
    return block_hash - 2 * _INT64 if block_hash >= _INT64 else block_hash
