"""The mock engine's prefix cache in plain Python: what the native one is held against.

A block is in one of two pools: active (some request holds it; reference-counted) or inactive
(cached, free to be evicted in LRU order). A full block is known by its sequence hash and can be
shared; a partial block belongs to one request, has a negative id and is never cached.

Invariants: active + inactive <= capacity. A request holds its full blocks from the first one on
and lets go of the last one first, so a cached block's parent is cached too. Replaying `events`
into a set gives, after every call, exactly the full blocks that are here.
"""

from collections.abc import Iterator
from typing import Protocol

from oracles.lower_tiers import LowerTiers

from dynamo_router.workers.mocker.tiers import TierConfig
from dynamo_router.workers.serving.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CachedBlock,
    KvEvent,
)

USUAL_LEVEL = 1
PROMISED_LEVEL = 2


class Holder(Protocol):
    """What the cache asks of a request."""

    hashes: list[int]

    def cached_block(self, position: int) -> CachedBlock: ...


class KvManager:
    """The two pools and the four signals use, deref, destroy and promote."""

    def __init__(self, capacity: int, tiers: TierConfig, block_size: int) -> None:
        """`capacity`: blocks, full and partial, active and inactive together."""
        block_s = [block_size * tiers.kv_bytes_per_token / speed for _, speed in tiers.lower]
        self.capacity = capacity
        self._holders: dict[int, int] = {}  # active block -> requests that hold it
        self._inactive: dict[int, tuple[int, int]] = {}  # its level and order: the least leaves
        self._order = 0
        self._lineage = tiers.eviction == "lineage"
        self.lower = LowerTiers(tiers, block_s)
        self._cached: dict[int, CachedBlock] = {}  # full blocks; a parent comes before its children
        self._last_partial = 0
        self.now = 0.0  # when what is asked for begins to be loaded
        self.ready = 0.0  # when all that was asked for of late is on the device
        self._ready: dict[int, float] = {}
        self._events: list[KvEvent] = []

    @property
    def active_blocks(self) -> int:
        return len(self._holders)

    @property
    def holders(self) -> dict[int, int]:
        """Full block -> requests that hold it, 0 for an inactive one."""
        return {block: self._holders.get(block, 0) for block in self._cached}

    @property
    def inactive_blocks(self) -> int:
        return len(self._inactive)

    def take_events(self) -> list[KvEvent]:
        """What changed in the cache since the last call, in order."""
        events, self._events = self._events, []
        return events

    def cached_blocks(self) -> Iterator[CachedBlock]:
        """Every full block in the cache, parents first."""
        return iter(self._cached.values())

    def match(self, hashes: list[int], limit: int) -> int:
        """How many leading ones of the first `limit` hashes are cached."""
        cached = self._cached
        for depth in range(limit):
            if hashes[depth] not in cached and not self.lower.has(hashes[depth]):
                return depth
        return limit

    def inactive_among(self, hashes: list[int], first: int, last: int) -> int:
        """How many of hashes[first:last] no request holds: cached or not, using them needs room."""
        holders = self._holders
        return sum(block not in holders for block in hashes[first:last])

    def use(self, sequence: Holder, first: int, last: int, computed: int) -> bool:
        """Hold full blocks first..last-1 of `sequence`, one more holder each; all or none.

        Blocks that are not on the device come onto it; those of the first `computed` ones from a
        lower tier. False if that would need more room than
        evicting every inactive block gives.
        """
        hashes, holders, inactive = sequence.hashes, self._holders, self._inactive
        if len(holders) + self.inactive_among(hashes, first, last) > self.capacity:
            return False
        missing: list[int] = []
        for position in range(first, last):
            block = hashes[position]
            self.ready = max(self.ready, self._ready.get(block, 0.0))
            if block in holders:
                holders[block] += 1
            elif block in inactive:
                del inactive[block]
                holders[block] = 1
            else:
                missing.append(position)
        if missing:
            self._bring(sequence, missing, computed)
        return True

    def _bring(self, sequence: Holder, missing: list[int], computed: int) -> None:
        """Blocks that the device has not come onto it, loaded or computed."""
        hashes = sequence.hashes
        taken: list[BlocksRemoved] = []
        for position in missing:
            block = hashes[position]
            self._ready[block] = 0.0
            tier = self.lower.take(block)
            if tier is not None:
                if position < computed:
                    self._ready[block] = self.lower.load(tier, self.now)
                    self.ready = max(self.ready, self._ready[block])
                if not taken or taken[-1].tier != tier:
                    taken.append(BlocksRemoved([], tier))
                taken[-1].block_hashes.append(block)
        self._free_blocks(len(missing))
        for position in missing:
            self._holders[hashes[position]] = 1
        self._store(sequence, missing)
        if self.lower.told:
            self._events += taken

    def use_partial(self) -> int | None:
        """A new partial block with one holder: its id. None if there is no room."""
        if len(self._holders) >= self.capacity:
            return None
        self._free_blocks(1)
        self._last_partial -= 1
        self._holders[self._last_partial] = 1
        return self._last_partial

    def promote(self, partial: int, sequence: Holder, position: int) -> None:
        """`partial` has become full: its holder now holds block `position` of `sequence`.

        If that block is here already the two become one and the partial's room is free again.
        """
        del self._holders[partial]
        block = sequence.hashes[position]
        if block in self._holders:
            self._holders[block] += 1
            return
        if block in self._inactive:
            self._holders[block] = 1
            del self._inactive[block]
        else:
            self._bring(sequence, [position], 0)

    def deref(self, sequence: Holder, held: int, returning: int | None) -> None:
        """Let go of the first `held` full blocks, the last one first; unheld ones turn inactive."""
        holders, inactive = self._holders, self._inactive
        for position in reversed(range(held)):
            block, level = sequence.hashes[position], USUAL_LEVEL
            if returning is not None:
                level = PROMISED_LEVEL if position < returning else 0
            left = holders[block] - 1
            if left:
                holders[block] = left
            else:
                del holders[block]
                inactive[block] = max([level, *self._behind(block)]), self._next_order()

    def destroy(self, partial: int) -> None:
        """Give up a partial block; nothing of it stays."""
        del self._holders[partial]

    def check_integrity(self) -> None:
        """AssertionError if an invariant is broken. Walks the whole cache: for tests."""
        full = {block for block in self._holders if block >= 0}
        inactive = set(self._inactive)
        assert len(self._holders) + len(inactive) <= self.capacity, "over capacity"
        assert all(count > 0 for count in self._holders.values()), "held by nobody"
        assert all(self._holders[b] == 1 for b in self._holders if b < 0), "shared partial block"
        assert not full & inactive, "both active and inactive"
        assert full | inactive == set(self._cached), "cached blocks are not the two pools"
        seen: set[int | None] = {None}
        for block in self._cached.values():
            assert block.parent_hash in seen, "a cached block's parent is not before it"
            seen.add(block.block_hash)

    def _free_blocks(self, blocks: int) -> None:
        """Evict until `blocks` more fit; the caller knows that they can."""
        excess = len(self._holders) + len(self._inactive) + blocks - self.capacity
        evicted: list[tuple[CachedBlock, int]] = []
        while len(evicted) < excess:
            block = min(filter(self._may_leave, self._inactive), key=self._inactive.__getitem__)
            level, _ = self._inactive.pop(block)
            evicted.append((self._cached.pop(block), level))
            parent = evicted[-1][0].parent_hash
            if self._lineage and parent in self._inactive and self._may_leave(parent):
                self._inactive[parent] = self._inactive[parent][0], self._next_order()
        if evicted:
            self._events += self.lower.push_down(evicted)
            self._events.append(BlocksRemoved([block.block_hash for block, _ in evicted]))

    def _may_leave(self, block: int) -> bool:
        return not self._lineage or not self._behind(block)

    def _behind(self, block: int) -> list[int]:
        """The levels of the blocks behind this one that nobody holds."""
        cached = self._cached
        return [
            level
            for other, (level, _) in self._inactive.items()
            if cached[other].parent_hash == block
        ]

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _store(self, sequence: Holder, positions: list[int]) -> None:
        """Cache new blocks; announce each run of neighbours as one chain."""
        previous = -2
        chain: list[CachedBlock] = []
        for position in positions:
            if position != previous + 1:
                chain = []
                self._events.append(BlocksStored(chain))
            block = sequence.cached_block(position)
            self._cached[block.block_hash] = block
            chain.append(block)
            previous = position
