"""CacheMirror: what an engine holds, by its events, in hashes that routers know. Pure.

Engines name blocks by ids of their own. A block's content hash is of its tokens, which an event
that stores it carries; what is behind an unpublished block belongs to no known prefix.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...indexer.hashing import block_hashes
from ...indexer.wire import StorageTier
from ...kv_events.dialects import EventsRefused
from ..serving import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    KvEvent,
)

_TIERS: dict[str, StorageTier] = {
    **dict.fromkeys(("CPU", "CPU_PINNED", "CPU_TIER1"), "host_pinned"),
    **dict.fromkeys(("CPU_TIER2", "DISK", "NVME", "STORAGE"), "disk"),
    **dict.fromkeys(("EXTERNAL", "NETWORK", "REMOTE", "SHARED"), "external"),
}
"""By medium; others are the device."""


class CacheMirror:
    """The blocks of one engine, all its ranks."""

    def __init__(self, block_size: int, dp_size: int = 1) -> None:
        self.block_size, self.dp_size = block_size, dp_size
        self._ranks: list[dict[StorageTier, dict[int, CachedBlock]]] = [
            {tier: {} for tier in ENGINE_TIERS} for _ in range(dp_size)
        ]

    def apply(self, rank: int, events: Iterable[Mapping[str, Any]]) -> list[KvEvent]:
        """What changed, by events as vLLM writes them. A repeated event changes nothing.

        EventsRefused for blocks larger than `block_size`, or of a rank that there is not.
        """
        if rank >= self.dp_size:
            raise EventsRefused(f"events of rank {rank}: there are {self.dp_size}")
        changes: list[KvEvent] = []
        for event in events:
            kind = event["type"]
            if kind == "AllBlocksCleared":
                changes += self.clear(rank)
            elif kind == "BlockStored":
                changes += self._store(rank, event)
            elif kind == "BlockRemoved":
                changes += self._remove(rank, event)
        return changes

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

    def _store(self, rank: int, event: Mapping[str, Any]) -> list[KvEvent]:
        spec_kind = str(event.get("kv_cache_spec_kind") or "full")
        if not spec_kind.startswith(("full", "mla")):
            return []  # other groups of a hybrid model name no blocks of prefixes
        tier = self._tier_of(event)
        if tier is None:
            return []
        parent = event.get("parent_block_hash")
        if parent is not None:
            parent = _number(parent)
        if not self._known(rank, parent):  # no event of it came: nothing is known of the prefix
            return []
        chain = self._full_blocks(event)
        if not chain:
            return []
        lora_name = event.get("lora_name") or None
        namespace = event.get("cache_salt") or self._inherited_salt(rank, parent, event)
        tokens = np.array([t for _, block in chain for t in block], dtype="<u4")
        local = block_hashes(
            tokens, self.block_size, lora_name=lora_name, cache_namespace=namespace
        )
        data, width = tokens.tobytes(), 4 * self.block_size
        here = self._ranks[rank][tier]
        runs: list[list[CachedBlock]] = [[]]
        for place, ((block_hash, _), local_hash) in enumerate(
            zip(chain, local.tolist(), strict=True)
        ):
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

    def _inherited_salt(
        self, rank: int, parent: int | None, event: Mapping[str, Any]
    ) -> str | None:
        """The first block of a chain names its salt among its keys, the others inherit it."""
        if parent is not None:
            above = [blocks[parent] for blocks in self._ranks[rank].values() if parent in blocks]
            return above[0].cache_namespace if above else None
        keys = (event.get("extra_keys") or [None])[0] or ()
        return next((k for k in keys if isinstance(k, str) and k != event.get("lora_name")), None)

    def _full_blocks(self, event: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
        """Name and tokens of those up to the first that no prompt of token ids can match."""
        size, tokens, keys = event["block_size"], event["token_ids"], event.get("extra_keys") or ()
        if size > self.block_size:
            raise EventsRefused(f"blocks of {size} tokens, the engine reported {self.block_size}")
        found = []
        for place, block_hash in enumerate(event["block_hashes"]):
            own = tokens[place * size : (place + 1) * size]
            own_keys = keys[place] if place < len(keys) else None
            if block_hash is None or len(own) < self.block_size:
                break
            if any(not isinstance(key, str | int) for key in own_keys or ()):
                break  # a block of more than its tokens (images)
            found.append((_number(block_hash), own))
        return found

    def _remove(self, rank: int, event: Mapping[str, Any]) -> list[KvEvent]:
        tier = self._tier_of(event)
        if tier is None:
            return []
        here = self._ranks[rank][tier]
        hashes = (_number(value) for value in event["block_hashes"] if value is not None)
        gone = [value for value in hashes if value in here]
        for block_hash in gone:
            del here[block_hash]
        return [BlocksRemoved(gone, tier)] if gone else []

    def _tier_of(self, event: Mapping[str, Any]) -> StorageTier | None:
        """None: outside of the engine."""
        medium = str(event.get("medium") or "").upper()
        tier = _TIERS.get(medium, "device")
        if tier == "external" or str(event.get("locality") or "").upper() == "REMOTE":
            return None
        return tier


def _number(block_hash: int | bytes) -> int:
    """A block's name: 64 bits, of a longer one the last."""
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash & 2**64 - 1
