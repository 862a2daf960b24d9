"""The mock engine's prefix cache in plain Python: what the native one is held against.

A block is in one of two pools: active (some request holds it; reference-counted) or inactive
(cached, free to be evicted in LRU order). A full block is known by its sequence hash and can be
shared; a partial block belongs to one request, has a negative id and is never cached.

Invariants: active + inactive <= capacity. A request holds its full blocks from the first one on
and lets go of the last one first, so a cached block's parent is cached too. Replaying `events`
into a set gives, after every call, exactly the full blocks that are here.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from oracles.frequencies import Frequencies
from oracles.lower_tiers import HEATS, HOTTEST_USUAL, USUAL_LEVEL, Kept, LowerTiers

from dynamo_router.engines.mocker.tiers import TierConfig
from dynamo_router.engines.serving.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CachedBlock,
    KvEvent,
)
from dynamo_router.workers.retention import Span


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
        self._block_size = block_size
        self._holders: dict[int, int] = {}  # active block -> requests that hold it
        self._inactive: dict[int, Kept] = {}  # the least leaves
        self._last_kept: dict[int, Kept] = {}  # of every block that was ever let go of
        # Of a block's followers that nobody holds: the highest level that one was given since there
        # are any, and the last time at which one above the usual level falls.
        self._behind: dict[int | None, tuple[int, float]] = {}
        self._order = 0
        self._lineage = tiers.eviction == "lineage"
        self._frequencies = Frequencies(capacity) if tiers.eviction == "multi-lru" else None
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
        self._count(hashes[first:last])
        return True

    def _bring(self, sequence: Holder, missing: list[int], computed: int) -> None:
        """Blocks that the device has not come onto it, loaded or computed."""
        hashes = sequence.hashes
        taken: list[BlocksRemoved] = []
        for position in missing:
            block = hashes[position]
            self._ready[block] = 0.0
            if below := self.lower.kept(block):
                self._last_kept[block] = below
            else:
                self._last_kept.pop(block, None)
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
        self._count([block])
        if block in self._holders:
            self._holders[block] += 1
            return
        if block in self._inactive:
            self._holders[block] = 1
            del self._inactive[block]
        else:
            self._bring(sequence, [position], 0)

    def deref(self, sequence: Holder, held: int, retention: Sequence[Span] | None) -> None:
        """Let go of the first `held` full blocks, the last one first; unheld ones turn inactive."""
        for position in reversed(range(held)):
            level, until = USUAL_LEVEL, math.inf
            for span in retention or ():
                if span.first <= position < span.end:
                    level, until = span.priority * HEATS, self.now + span.seconds
                    break
            block = sequence.hashes[position]
            heat = self._frequencies.heat(block) if self._frequencies else 0
            self._let_go(block, level + heat, until)

    def _count(self, blocks: Sequence[int]) -> None:
        """They are used once more."""
        for block in blocks if self._frequencies else ():
            self._frequencies.add(block)

    def _let_go(self, block: int, level: int, until: float) -> None:
        """One holder less."""
        self._holders[block] -= 1
        if self._holders[block]:
            return
        parent = self._cached[block].parent_hash
        siblings = self._followers(parent)
        del self._holders[block]
        self._inactive[block] = self._last_kept[block] = kept = self._keep(block, level, until)
        most, last = self._behind[parent] if siblings else (0, 0.0)
        if kept.level > HOTTEST_USUAL:
            last = max(last, kept.until)
        self._behind[parent] = max(most, kept.level), last

    def _keep(self, block: int, level: int, until: float) -> Kept:
        """How a block is kept that was to be at this level: at that of its followers at least."""
        if level <= HOTTEST_USUAL:
            until = 0.0
        if self._followers(block):
            most, last = self._behind[block]
            if most >= level:
                level, until = most, max(until, last)
        return Kept(level, self._next_order(), until if level > HOTTEST_USUAL else math.inf)

    def pass_time(self, now: float) -> None:
        """Levels that end by `now` do, in the order of time; a follower's before its parent's."""
        self.now = self.ready = now
        self.lower.expire(now)
        place = {block: position for position, block in enumerate(self._cached)}
        while True:
            due = [
                (kept.until, -place[block], block)
                for block, kept in self._inactive.items()
                if kept.until <= self.now
            ]
            if not due:
                return
            at, _, block = min(due)
            most, last = self._behind.get(block, (0, 0.0))
            if self._followers(block) and last > at:
                self._inactive[block] = Kept(most, self._next_order(), last)
            else:
                usual = USUAL_LEVEL
                if self._frequencies and self._followers(block):
                    usual = min(max(most, USUAL_LEVEL), HOTTEST_USUAL)
                self._inactive[block] = Kept(usual, self._next_order(), math.inf)
            self._last_kept[block] = self._inactive[block]

    def prefetch(self, sequence: Holder, blocks: int, now: float) -> int:
        """Bring what the device misses of the first `blocks`; how many those are."""
        depth = self.match(sequence.hashes, blocks)
        on_device = 0
        while on_device < depth and sequence.hashes[on_device] in self._cached:
            on_device += 1
        if on_device == depth:
            return 0
        self.pass_time(now)
        if not self.use(sequence, 0, depth, depth * self._block_size):
            return 0
        for block in reversed(sequence.hashes[:depth]):
            kept = self._last_kept.get(block, Kept(USUAL_LEVEL, 0, math.inf))
            self._let_go(block, kept.level, kept.until)
        return depth - on_device

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
        evicted: list[tuple[CachedBlock, Kept]] = []
        while len(evicted) < excess:
            block = min(filter(self._may_leave, self._inactive), key=self._inactive.__getitem__)
            evicted.append((self._cached.pop(block), self._inactive.pop(block)))
            parent = evicted[-1][0].parent_hash
            if self._lineage and parent in self._inactive and self._may_leave(parent):
                order = self._next_order()
                self._inactive[parent] = self._inactive[parent]._replace(order=order)
        if evicted:
            self._events += self.lower.push_down(evicted)
            self._events.append(BlocksRemoved([block.block_hash for block, _ in evicted]))

    def _may_leave(self, block: int) -> bool:
        return not self._lineage or not self._followers(block)

    def _followers(self, block: int | None) -> list[int]:
        """The blocks behind this one that nobody holds."""
        if block is None:
            return []
        cached = self._cached
        return [other for other in self._inactive if cached[other].parent_hash == block]

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
