"""CacheMirror: what an engine holds, by what its events tell, in hashes that routers know. Pure.

Engines name blocks by ids of their own. A block's content hash is of its tokens, which an event
that stores it tells; what is behind a block that nobody was told of belongs to no known prefix.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...indexer.hashing import block_hashes
from ...indexer.wire import StorageTier
from ...kv_events.dialects import EventsRefused
from ...workers.trtllm_proto import common_pb
from ..serving import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    KvEvent,
    tier_of,
)

_U64 = 2**64 - 1


@dataclass(slots=True)
class MirrorStats:
    """Counters of one mirror; they only grow."""

    partial: int = 0
    """blocks that are not full: prompts cannot be looked up by them"""
    orphans: int = 0
    """chains behind a block that was not told of"""
    keyed: int = 0
    """chains with blocks that are of more than their tokens (images)"""
    elsewhere: int = 0
    """events about blocks outside of the engine"""


class CacheMirror:
    """The blocks of one engine, all its ranks."""

    def __init__(self, block_size: int, dp_size: int = 1) -> None:
        self.stats = MirrorStats()
        self.block_size, self.dp_size = block_size, dp_size
        self._ranks: list[dict[StorageTier, dict[int, CachedBlock]]] = [
            {tier: {} for tier in ENGINE_TIERS} for _ in range(dp_size)
        ]

    def apply(self, batch: bytes) -> tuple[int, list[KvEvent]]:
        """(rank, what changed) by a serialized KvEventBatch. What is told again changes nothing.

        EventsRefused for blocks larger than `block_size`, or of a rank that there is not.
        """
        message = common_pb.KvEventBatch.FromString(batch)
        rank = message.dp_rank
        if rank >= self.dp_size:
            raise EventsRefused(f"events of rank {rank}: there are {self.dp_size}")
        changes: list[KvEvent] = []
        for event in message.events:
            kind = event.WhichOneof("data")
            if kind == "cleared":
                changes += self.clear(rank)
            elif kind == "stored":
                changes += self._store(rank, event.stored)
            elif kind == "removed":
                changes += self._remove(rank, event.removed)
        return rank, changes

    def clear(self, rank: int) -> list[KvEvent]:
        """Forget a rank's blocks: the engine did, or events of it were lost."""
        tiers = self._ranks[rank].values()
        known = any(tiers)
        for blocks in tiers:
            blocks.clear()
        return [CacheCleared()] if known else []

    def cached_blocks(self, rank: int, tier: StorageTier) -> list[CachedBlock]:
        """A tier's blocks that can be reached, each chain in one piece, parents first."""
        here = self._ranks[rank][tier]
        behind: dict[int | None, list[CachedBlock]] = defaultdict(list)
        for block in here.values():
            behind[block.parent_hash].append(block)
        starts = [hash_ for hash_ in behind if hash_ not in here and self._known(rank, hash_)]
        waiting = [block for start in starts for block in reversed(behind[start])]
        found = []
        while waiting:
            block = waiting.pop()
            found.append(block)
            waiting += reversed(behind.get(block.block_hash, ()))
        return found

    def count(self, rank: int) -> int:
        """Blocks on the device."""
        return len(self._ranks[rank]["device"])

    def _known(self, rank: int, block_hash: int | None) -> bool:
        """Whether a block is in some tier; None: the start of a prompt, where all begin."""
        return block_hash is None or any(block_hash in t for t in self._ranks[rank].values())

    def _store(self, rank: int, stored: Any) -> list[KvEvent]:
        tier = self._tier_of(stored)
        if tier is None:
            return []
        parent = None
        if stored.HasField("parent_block_hash"):
            parent = stored.parent_block_hash & _U64
        if not self._known(rank, parent):
            self.stats.orphans += 1
            return []
        chain = self._full_blocks(stored.blocks)
        if not chain:
            return []
        lora_name, namespace = stored.lora_name or None, stored.cache_salt or None
        tokens = np.array([t for block in chain for t in block.token_ids], dtype="<u4")
        local = block_hashes(
            tokens, self.block_size, lora_name=lora_name, cache_namespace=namespace
        )
        data, width = tokens.tobytes(), 4 * self.block_size
        here = self._ranks[rank][tier]
        runs: list[list[CachedBlock]] = [[]]
        for place, (block, local_hash) in enumerate(zip(chain, local.tolist(), strict=True)):
            block_hash = block.block_hash & _U64
            made = CachedBlock(
                block_hash,
                parent,
                local_hash,
                data[place * width : (place + 1) * width],
                lora_name,
                namespace,
            )
            if here.get(block_hash) != made:
                here[block_hash] = made
                runs[-1].append(made)
            elif runs[-1]:
                runs.append([])
            parent = block_hash
        return [BlocksStored(run, tier) for run in runs if run]

    def _full_blocks(self, blocks: Iterable[Any]) -> list[Any]:
        """Those up to the first that no prompt of token ids can be looked up by."""
        found = []
        for block in blocks:
            size = len(block.token_ids)
            if size > self.block_size:
                raise EventsRefused(f"blocks of {size} tokens, it says {self.block_size}")
            if size < self.block_size:
                self.stats.partial += 1
                break
            if any(key.WhichOneof("key") in ("multimodal", "blob") for key in block.extra_keys):
                self.stats.keyed += 1
                break
            found.append(block)
        return found

    def _remove(self, rank: int, removed: Any) -> list[KvEvent]:
        tier = self._tier_of(removed)
        if tier is None:
            return []
        here = self._ranks[rank][tier]
        gone = [value & _U64 for value in removed.block_hashes if value & _U64 in here]
        for block_hash in gone:
            del here[block_hash]
        return [BlocksRemoved(gone, tier)] if gone else []

    def _tier_of(self, change: Any) -> StorageTier | None:
        tier = tier_of(change)
        if tier is None:
            self.stats.elsewhere += 1
        return tier
