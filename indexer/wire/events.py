"""KV events as Python values: what a worker says of its cache. Made by wire.py and the publishers.

The index itself never builds these: it decodes into C arrays (_events.pxd). Decoding makes tuples
of blocks and hashes; whoever makes an event to publish may give any sequence.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from ...runtime.identity import WorkerWithDpRank

StorageTier: TypeAlias = Literal["device", "host_pinned", "disk", "external"]
TIERS: tuple[StorageTier, ...] = ("device", "host_pinned", "disk", "external")
"""From the fastest down. The kernels know a tier by its place in this list."""


class StoredBlock(msgspec.Struct, frozen=True, gc=False):
    """One cached block: the engine's own id of it, and the local hash of its tokens."""

    block_hash: int
    tokens_hash: int


class Stored(msgspec.Struct, frozen=True):
    """Consecutive blocks now cached behind `parent_hash` (an external hash; None: at the start)."""

    parent_hash: int | None
    blocks: Sequence[StoredBlock]


class Removed(msgspec.Struct, frozen=True):
    """Blocks, by external hash, that are cached no more."""

    block_hashes: Sequence[int]


class Cleared(msgspec.Struct, frozen=True):
    """All blocks of this (worker, rank) are gone."""


EventData: TypeAlias = Stored | Removed | Cleared


class RouterEvent(msgspec.Struct, frozen=True):
    """What happened in one worker's cache; event_id grows by one per (worker, rank)."""

    worker: WorkerWithDpRank
    event_id: int
    data: EventData
    storage_tier: StorageTier = "device"
