"""What a fleet or its load can have that a router is given, or sees: where it still may do badly.

Unlike a model error. Chosen before anything was run, from the traffic alone: a cache that is nearly
full has about 2.2 times the blocks that differ among the requests in flight, were each engine to
have an equal part of them and take 20 ms a token (of the train split: the sizes that the policy
was once mended with). The report's families, sizes and bandwidths are none of the train's.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ...engines.mocker import TierConfig
from ..traces import TraceRequest
from ..traffic import TrafficSpec, generate_traffic

FLOOD = 10.0
"""Times the requests of all the others, that one tenant sends."""
_SECOND_STREAM = 1 << 40  # block ids between those of the others and of the one
_SECOND_SEED = 10_000


class Condition(NamedTuple):
    """What is not as in the family's plain cell. None: it is."""

    num_gpu_blocks: int | None = None
    tiers: TierConfig | None = None
    others: float | None = None
    """the load of all tenants but one, in parts of the fleet's; that one sends FLOOD times as much
    """

    @property
    def load(self) -> float:
        """Of all requests, in parts of the fleet's."""
        return 1.0 if self.others is None else self.others * (1 + FLOOD)


class _Tiers(NamedTuple):
    """Sizes in parts of the device's cache, bandwidths in GB/s."""

    host: float
    disk: float
    host_gbps: float
    disk_gbps: float

    def of(self, device_blocks: int) -> TierConfig:
        return TierConfig(
            host_blocks=round(self.host * device_blocks),
            disk_blocks=round(self.disk * device_blocks),
            host_bandwidth_gbps=self.host_gbps,
            disk_bandwidth_gbps=self.disk_gbps,
        )


class ConditionPlan(NamedTuple):
    """Of one split: which families have which condition, and the sizes that make it."""

    tiers: _Tiers
    tiered: tuple[str, ...]
    near_full: Mapping[str, int]  # blocks of an engine
    flooded: tuple[str, ...]
    others: float

    def conditions(self, device_blocks: int) -> Mapping[str, Mapping[str, Condition]]:
        """By name and family, for engines whose caches have `device_blocks` otherwise."""
        tiers = self.tiers.of(device_blocks)
        return {
            "visible-tiers": {family: Condition(tiers=tiers) for family in self.tiered},
            "near-full": {
                family: Condition(num_gpu_blocks=blocks)
                for family, blocks in self.near_full.items()
            },
            "near-full-tiers": {
                family: Condition(num_gpu_blocks=blocks, tiers=self.tiers.of(blocks))
                for family, blocks in self.near_full.items()
            },
            "flood": {family: Condition(others=self.others) for family in self.flooded},
        }


PLANS: Mapping[str, ConditionPlan] = {
    "train": ConditionPlan(
        tiers=_Tiers(host=1.0, disk=3.0, host_gbps=25.0, disk_gbps=10.0),
        tiered=("conversation", "tenants"),
        near_full={"conversation": 1920, "tenants": 1024},
        flooded=("conversation",),
        others=0.15,
    ),
    "validate": ConditionPlan(
        tiers=_Tiers(host=2.0, disk=2.5, host_gbps=20.0, disk_gbps=8.0),
        tiered=("documents", "bursts"),
        near_full={"documents": 1792, "bursts": 1056},
        flooded=("documents",),
        others=0.2,
    ),
    "report": ConditionPlan(
        tiers=_Tiers(host=1.5, disk=4.0, host_gbps=30.0, disk_gbps=7.0),
        tiered=("documents", "agents"),
        near_full={"agents": 960, "bursts": 1088},
        flooded=("tenants",),
        others=0.18,
    ),
}


def flooded_traffic(
    spec: TrafficSpec, requests: int, *, rate: float, seed: int, first_id: int
) -> list[TraceRequest]:
    """Requests of two streams of one kind, which share nothing, by time; `rate` is of both.

    Their tenants are "others" and "flood".
    """
    others = generate_traffic(spec, requests, rate=rate / (1 + FLOOD), seed=seed, first_id=first_id)
    flood = generate_traffic(
        spec,
        requests,
        rate=rate * FLOOD / (1 + FLOOD),
        seed=seed + _SECOND_SEED,
        first_id=first_id + _SECOND_STREAM,
    )
    both = [msgspec.structs.replace(each, tenant="others") for each in others]
    both += [msgspec.structs.replace(each, tenant="flood") for each in flood]
    return sorted(both, key=lambda each: each.timestamp_ms)[:requests]


def unnamed_flood(
    spec: TrafficSpec, requests: int, *, rate: float, seed: int, first_id: int
) -> list[TraceRequest]:
    """The same, of tenants without names: the router cannot distinguish them."""
    made = flooded_traffic(spec, requests, rate=rate, seed=seed, first_id=first_id)
    return [msgspec.structs.replace(each, tenant="") for each in made]
