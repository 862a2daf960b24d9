"""Conditions are held apart as everything else is, and are what they say."""

from itertools import combinations
from pathlib import Path

import msgspec

from dynamo_router.bench.evaluation.cells import (
    EvaluationCell,
    cells_of,
    request_rate,
    simulation_of,
    wants_capacity,
)
from dynamo_router.bench.evaluation.conditions import FLOOD, PLANS, flooded_traffic, unnamed_flood
from dynamo_router.bench.evaluation.kept_runs import KeptRuns
from dynamo_router.bench.evaluation.splits import SPLIT_NAMES, split_of
from dynamo_router.bench.traces.trace import parent_fault

NAMES = ["visible-tiers", "near-full", "near-full-tiers", "flood"]
REPORT = split_of("report")


def test_every_split_has_them_and_no_two_share_a_size() -> None:
    assert PLANS.keys() == set(SPLIT_NAMES)
    for one, other in combinations(PLANS.values(), 2):
        assert all(a != b for a, b in zip(one.tiers, other.tiers, strict=True))
        assert not set(one.near_full.values()) & set(other.near_full.values())
        assert one.others != other.others
    for split in map(split_of, SPLIT_NAMES):
        assert list(split.conditions) == NAMES
        assert all(families.keys() < split.traffic.keys() for families in split.conditions.values())


def test_the_reports_are_of_families_that_nobody_tunes_on_there() -> None:
    train = split_of("train").conditions
    for name, families in REPORT.conditions.items():
        assert not families.keys() & train[name].keys(), name


def test_cells_of_a_condition_are_in_the_first_fleet_with_the_sizes_that_it_names() -> None:
    fleet = REPORT.fleets[0]
    found = {(cell.family, cell.condition): cell for cell in cells_of(REPORT, quick=True)}
    tiered = simulation_of(found["agents", "visible-tiers"], REPORT, capacity=True)
    assert tiered.num_gpu_blocks == fleet.num_gpu_blocks and not tiered.search.capacity
    assert tiered.tiers.host_blocks == 1.5 * fleet.num_gpu_blocks and not tiered.tiers.hide_tiers
    assert tiered.tiers.disk_blocks == 4 * fleet.num_gpu_blocks
    few = simulation_of(found["agents", "near-full"], REPORT, capacity=True)
    assert few.num_gpu_blocks == 960 and few.tiers.host_blocks == few.tiers.disk_blocks == 0
    both = simulation_of(found["agents", "near-full-tiers"], REPORT, capacity=True)
    assert (both.num_gpu_blocks, both.tiers.host_blocks) == (960, 1440)
    for split in map(split_of, SPLIT_NAMES):
        for cell in cells_of(split):
            if cell.condition:
                assert not wants_capacity(cell, split) and not cell.error
                assert str(cell).endswith(f", {cell.condition}")


def test_one_tenant_sends_ten_times_what_all_others_do() -> None:
    cell = EvaluationCell("tenants", REPORT.fleets[0], condition="flood")
    plain = request_rate(cell._replace(condition=""), REPORT)
    rate = request_rate(cell, REPORT)
    assert rate == plain * 0.18 * (1 + FLOOD)
    made = flooded_traffic(
        REPORT.traffic["tenants"], 2200, rate=rate, seed=301, first_id=REPORT.first_id
    )
    count = sum(request.tenant == "others" for request in made)
    assert len(made) == 2200 and 140 <= count <= 260  # 200 in the mean
    assert {request.tenant for request in made} == {"others", "flood"}
    unnamed = unnamed_flood(
        REPORT.traffic["tenants"], 2200, rate=rate, seed=301, first_id=REPORT.first_id
    )
    assert unnamed == [msgspec.structs.replace(each, tenant="") for each in made]
    times = [request.timestamp_ms for request in made]
    parents: dict[int, int] = {}
    assert times == sorted(times) and times[0] == 0
    assert all(parent_fault(request, parents) is None for request in made)
    ids = {
        tenant: {block for each in made if each.tenant == tenant for block in each.hash_ids}
        for tenant in ("others", "flood")
    }
    assert not ids["others"] & ids["flood"]
    low = REPORT.first_id
    assert all(low <= block < 2 * low for blocks in ids.values() for block in blocks)


def test_runs_of_a_condition_are_kept_apart_from_the_plain_cells(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path, requests=10)
    cell = EvaluationCell("tenants", REPORT.fleets[0], condition="flood")
    kept.add(cell, "forecast", 1, {"ttft": 1.5})
    assert kept.read(cell) and not kept.read(cell._replace(condition=""))
