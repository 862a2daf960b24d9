"""What a mock engine's cache says of itself: made by the KV manager, published by the fleet."""

from typing import NamedTuple

from ...indexer.wire import StorageTier


class CachedBlock(NamedTuple):
    """A full block, with all that its announcement needs."""

    block_hash: int  # sequence hash, also the external hash
    parent_hash: int | None
    local_hash: int
    token_ids: bytes  # u32, little-endian
    lora_name: str | None
    cache_namespace: str | None


class BlocksStored(NamedTuple):
    """Blocks that came into a tier: a chain, each the parent of the next, never empty."""

    blocks: list[CachedBlock]
    tier: StorageTier = "device"

    @property
    def parent_hash(self) -> int | None:
        return self.blocks[0].parent_hash

    @property
    def block_hashes(self) -> list[int]:
        return [block.block_hash for block in self.blocks]

    @property
    def local_hashes(self) -> list[int]:
        return [block.local_hash for block in self.blocks]


class BlocksRemoved(NamedTuple):
    """Blocks that left a tier, in this order."""

    block_hashes: list[int]
    tier: StorageTier = "device"


KvEvent = BlocksStored | BlocksRemoved
