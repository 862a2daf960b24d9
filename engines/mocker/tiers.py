"""TierConfig: the caches below a mock engine's device, and what leaves a cache first."""

import math
from dataclasses import dataclass
from typing import ClassVar

from ...process.settings import bad_setting, option

EVICTIONS = ("lru", "lineage", "multi-lru")
_GIGABYTE = 1e9


@dataclass(frozen=True, kw_only=True)
class TierConfig:
    """Host memory and disk of one engine. ConfigError, naming the key, if out of range."""

    GROUP: ClassVar[str] = "Mock engines"

    host_blocks: int = option(
        0, "KV-cache blocks in host memory, for what the device evicts; 0: none.", short=True
    )
    disk_blocks: int = option(0, "KV-cache blocks on disk, for what host memory evicts; 0: none.")
    host_bandwidth_gbps: float = option(
        25.0, "Gigabytes a second from host memory onto the device."
    )
    disk_bandwidth_gbps: float = option(10.0, "Gigabytes a second from disk onto the device.")
    kv_bytes_per_token: int = option(
        131072, "Bytes of keys and values of a token; the default is a dense 8B model's."
    )
    hide_tiers: bool = option(False, "Use host memory and disk, but do not announce their blocks.")
    prefetch: bool = option(
        True,
        "Load blocks from host memory and disk ahead of a request when a router asks for it; off:"
        " UNIMPLEMENTED.",
        "--engine-prefetch",
    )
    eviction: str = option(
        "lru",
        "What leaves a full device first: what was used longest ago (lru), or of the blocks that"
        " no other follows the one that was longest without use and followers (lineage), or of"
        " the most seldom used quarter that has any, by Dynamo's four classes of use, what was used"
        " longest ago (multi-lru).",
        choices=EVICTIONS,
    )

    def __post_init__(self) -> None:
        for key in ("host_blocks", "disk_blocks"):
            if not 0 <= getattr(self, key) < 2**31:
                raise bad_setting(key, f"{getattr(self, key)} must be in 0..2**31-1")
        for key in ("host_bandwidth_gbps", "disk_bandwidth_gbps", "kv_bytes_per_token"):
            value = getattr(self, key)
            if not 0 < value < math.inf:
                raise bad_setting(key, f"{value} must be finite and greater than 0")
        if self.eviction not in EVICTIONS:
            raise bad_setting("eviction", f"{self.eviction!r} is none of {', '.join(EVICTIONS)}")

    @property
    def lower(self) -> tuple[tuple[int, float], ...]:
        """(blocks, bytes a second onto the device) of each tier below it, from the fastest down."""
        return (
            (self.host_blocks, self.host_bandwidth_gbps * _GIGABYTE),
            (self.disk_blocks, self.disk_bandwidth_gbps * _GIGABYTE),
        )
