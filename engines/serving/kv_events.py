"""KV events of an engine: made by the engine, published by its server."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ...indexer.wire import TIERS, StorageTier

ENGINE_TIERS: tuple[StorageTier, ...] = TIERS[:3]
"""The tiers that an engine has blocks in, from the fastest down."""


class CachedBlock(NamedTuple):
    """A full block, with all that its announcement needs."""

    block_hash: int  # the engine's own id of it, u64: the external hash
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


class CacheCleared(NamedTuple):
    """All tiers were emptied, or nothing is known of them any more."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared


def chains(blocks: Iterable[CachedBlock], tier: StorageTier) -> list[BlocksStored]:
    """A tier's blocks, in their order, cut where one is not the parent of the next."""
    events: list[BlocksStored] = []
    for block in blocks:
        if events and events[-1].blocks[-1].block_hash == block.parent_hash:
            events[-1].blocks.append(block)
        else:
            events.append(BlocksStored([block], tier))
    return events
