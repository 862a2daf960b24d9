"""Host memory and disk below a mock engine's device, in plain Python."""

import math
from typing import NamedTuple

from dynamo_router.engines.mocker.tiers import TierConfig
from dynamo_router.engines.serving.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CachedBlock,
    KvEvent,
)
from dynamo_router.indexer.wire import StorageTier

HEATS = 4
USUAL_LEVEL = 35 * HEATS
HOTTEST_USUAL = USUAL_LEVEL + HEATS - 1
NAMES: tuple[StorageTier, StorageTier] = ("host_pinned", "disk")


class Kept(NamedTuple):
    """How a block that nobody holds is kept."""

    level: int
    order: int  # of two at the same level the lower leaves first
    until: float  # when a level above the usual one falls to that; inf: never


class LowerTiers:
    """A block is in one tier at a time; it enters with the level that it left the one above at."""

    def __init__(self, config: TierConfig, block_s: list[float]) -> None:
        self._capacity = dict(zip(NAMES, (config.host_blocks, config.disk_blocks), strict=True))
        self._block_s = dict(zip(NAMES, block_s, strict=True))
        self.blocks: dict[StorageTier, dict[int, tuple[Kept, CachedBlock]]] = {
            name: {} for name in NAMES
        }
        self._link_free = dict.fromkeys(NAMES, 0.0)
        self._order = 0
        self.told = not config.hide_tiers

    def has(self, block_hash: int) -> bool:
        return any(block_hash in blocks for blocks in self.blocks.values())

    def kept(self, block_hash: int) -> Kept | None:
        """How a block is kept, in whatever tier."""
        for blocks in self.blocks.values():
            if block_hash in blocks:
                return blocks[block_hash][0]
        return None

    def take(self, block_hash: int) -> StorageTier | None:
        """Forget a block; where it was."""
        for name, blocks in self.blocks.items():
            if blocks.pop(block_hash, None):
                return name
        return None

    def load(self, tier: StorageTier, now: float) -> float:
        """When the tier's link has carried one block more."""
        self._link_free[tier] = max(self._link_free[tier], now) + self._block_s[tier]
        return self._link_free[tier]

    def push_down(self, came: list[tuple[CachedBlock, Kept]], depth: int = 0) -> list[KvEvent]:
        """Take in what the tier above evicted, in that order; what is told of it."""
        while depth < len(NAMES) and not self._capacity[NAMES[depth]]:
            depth += 1
        if depth == len(NAMES) or not came:
            return []
        tier = NAMES[depth]
        blocks, capacity = self.blocks[tier], self._capacity[tier]
        over = max(0, len(came) - capacity)
        excess = max(0, len(blocks) + len(came) - over - capacity)
        leaving = sorted(blocks, key=lambda block: blocks[block][0])[:excess]
        evicted = [blocks.pop(block)[::-1] for block in leaving]
        events = self.push_down([*evicted, *came[:over]], depth + 1)
        if evicted and self.told:
            events.append(BlocksRemoved(leaving, tier))
        for block, kept in came[over:]:
            self._order += 1
            blocks[block.block_hash] = kept._replace(order=self._order), block
        chains: list[BlocksStored] = []
        for block, _ in reversed(came[over:]):
            if not chains or chains[-1].blocks[-1].block_hash != block.parent_hash:
                chains.append(BlocksStored([], tier))
            chains[-1].blocks.append(block)
        return events + chains if self.told else events

    def expire(self, now: float) -> None:
        """Levels that end by now do, in the order of time; of those that came first, first."""
        for blocks in self.blocks.values():
            place = {block: position for position, block in enumerate(blocks)}
            due = [block for block, (kept, _) in blocks.items() if kept.until <= now]
            for block in sorted(
                due, key=lambda each, kept=blocks, at=place: (kept[each][0].until, at[each])
            ):
                self._order += 1
                blocks[block] = Kept(USUAL_LEVEL, self._order, math.inf), blocks[block][1]
