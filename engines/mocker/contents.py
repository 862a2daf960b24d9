"""CacheContents: where the blocks of a mock engine's cache lie in its arena, and what is in them.

The engine's native core decides which blocks are cached; its events come here, in order, before
others see them. The arena has as many blocks as the core, which keeps some for every prompt that is
under way, so that there is always one for a block that the core has found capacity for.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..transfer import BlockState, Transfer, TransferMetrics


class CacheContents:
    """Of one rank. A block is known by its sequence hash."""

    def __init__(self, transfer: Transfer[Any], metrics: TransferMetrics) -> None:
        self.transfer, self._metrics = transfer, metrics
        self.checked = 0
        """blocks whose contents were compared"""
        self.corrupt = 0
        """blocks whose contents were another block's, or half of one"""
        self._blocks: dict[int, int] = {}

    @property
    def is_real(self) -> bool:
        """Whether the arena has memory."""
        return self.transfer.arena.blocks > 0

    def blocks_of(self, hashes: Iterable[int]) -> list[int]:
        """Blocks of the arena that have what is cached on the device."""
        return [self._blocks[each] for each in hashes]

    def store(self, hashes: Iterable[int], landed: dict[int, int] | None = None) -> None:
        """Blocks are on the device now: computed, or loaded from a lower tier, unless they have
        landed: those are taken out of `landed`, which has blocks by hash."""
        computed = []
        for each in hashes:
            if landed and each in landed:
                self._blocks[each] = landed.pop(each)
            else:
                computed.append(each)
        if computed:
            blocks = self.add(computed)
            self._blocks.update(zip(computed, blocks, strict=True))

    def remove(self, hashes: Iterable[int]) -> None:
        """They have left the device."""
        self.transfer.grants.free([self._blocks.pop(each) for each in hashes])

    def add(self, hashes: Sequence[int]) -> list[int]:
        """Blocks with these contents, which are not cached."""
        blocks = self.transfer.grants.allocate(len(hashes))
        if self.is_real:
            self.transfer.arena.fill(blocks, hashes)
        return blocks

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free those of these blocks that are their owner's still."""
        grants = self.transfer.grants
        owned = (BlockState.ALLOCATED, BlockState.LANDED)
        grants.free([each for each in blocks if grants.state(each) in owned])

    def check(self, hashes: Sequence[int], blocks: Sequence[int] | None = None) -> int:
        """Read blocks: how many have wrong contents. Those are computed again. `blocks`: where
        they are, if they are not cached."""
        if not self.is_real:
            return 0
        arena = self.transfer.arena
        places = self.blocks_of(hashes) if blocks is None else list(blocks)
        wrong = arena.wrong(places, hashes)
        self.checked += len(places)
        self.corrupt += len(wrong)
        self._metrics.on_checked(len(places), len(wrong))
        arena.fill([places[each] for each in wrong], [hashes[each] for each in wrong])
        return len(wrong)

    def clear(self) -> None:
        """The device is empty."""
        self.transfer.grants.free(list(self._blocks.values()))
        self._blocks.clear()
