"""KV events as an engine publishes them: of any blocks, or of those of a prompt."""

from collections.abc import Sequence

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from dynamo_router.indexer.wire import (
    EventData,
    RouterEvent,
    StorageTier,
    Stored,
    StoredBlock,
    encode_event_message,
)


def stored(*blocks: int, parent: int | None = None, scale: int = 10) -> Stored:
    """Blocks whose local hash is `scale` times their external one."""
    return Stored(parent, [StoredBlock(block, scale * block) for block in blocks])


def prompt_blocks(tokens: Sequence[int], block_size: int) -> list[StoredBlock]:
    """The full blocks of a prompt, named by their sequence hashes."""
    local = compute_block_hash_for_seq(list(tokens), block_size)
    keys = compute_seq_hash_for_block(local)
    return [StoredBlock(key, hashed) for key, hashed in zip(keys, local, strict=True)]


def message_of(
    worker: WorkerWithDpRank,
    event_id: int,
    data: EventData,
    publisher: int = 1,
    tier: StorageTier = "device",
) -> bytes:
    """The message with one event of a worker whose event ids begin at 1."""
    event = RouterEvent(worker, event_id, data, tier)
    return encode_event_message([event], publisher, max(0, event_id - 1), 0)


def prompt_message(
    worker: WorkerWithDpRank,
    tokens: Sequence[int],
    block_size: int,
    event_id: int = 1,
    publisher: int = 1,
    tier: StorageTier = "device",
) -> bytes:
    """A worker has a prompt in one of its tiers."""
    data = Stored(None, prompt_blocks(tokens, block_size))
    return message_of(worker, event_id, data, publisher, tier)
