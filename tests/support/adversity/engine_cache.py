"""What an engine says that it has cached now, and how much of a prompt that is."""

from collections.abc import Collection
from typing import Any

from grpc import aio

from dynamo_router.indexer.hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from dynamo_router.workers.trtllm_proto import SERVICE, common_pb

DEVICE = (common_pb.KV_CACHE_TIER_UNSPECIFIED, common_pb.KV_CACHE_TIER_DEVICE)


async def cached_blocks(channel: aio.Channel) -> set[int]:
    """The blocks on a mock engine's device by their prefixes' hashes, from the state it tells."""
    subscribe: Any = channel.unary_stream(
        f"/{SERVICE}/SubscribeKvEvents",
        common_pb.SubscribeKvEventsRequest.SerializeToString,
        common_pb.KvEventBatch.FromString,
    )
    call = subscribe(common_pb.SubscribeKvEventsRequest(), timeout=20, wait_for_ready=True)
    held: set[int] = set()
    try:
        async for batch in call:
            for event in batch.events:
                if event.stored.tier in DEVICE:
                    held |= {block.block_hash % 2**64 for block in event.stored.blocks}
            if batch.snapshot.index + 1 == batch.snapshot.count:
                return held
    finally:
        call.cancel()
    raise AssertionError("the engine's state ended early")


def leading_blocks(prompt: list[int], held: Collection[int], block_size: int) -> int:
    """How many leading blocks of a prompt are among those held."""
    hashes = compute_seq_hash_for_block(compute_block_hash_for_seq(prompt, block_size))
    for number, sequence_hash in enumerate(hashes):
        if int(sequence_hash) not in held:
            return number
    return len(hashes)
