"""KV events as Python values: what a worker says of its cache.

The index itself never builds these: it decodes into C arrays (_events.pxd). Decoding makes tuples
of blocks and hashes; an event to publish may have any sequence.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from ...base.identity import WorkerWithDpRank

StorageTier: TypeAlias = Literal["device", "host_pinned", "disk", "external"]
TIERS: tuple[StorageTier, ...] = ("device", "host_pinned", "disk", "external")
"""From the fastest down. The kernels know a tier by its place in this list."""


class StoredBlock(msgspec.Struct, frozen=True, gc=False):
    """One cached block: its external hash, and its local hash, under Dynamo's names."""

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
