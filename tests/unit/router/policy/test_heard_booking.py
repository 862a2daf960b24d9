"""What policies learn of requests that other routers have sent."""

import numpy as np
import pytest

from dynamo_router.router.policy import (
    Candidates,
    DynamoCost,
    ForecastPolicy,
    GuardedPolicy,
    HeardBooking,
)
from dynamo_router.slots.table import SlotTable
from dynamo_router.workers.registry import WorkerEntry

BLOCK = 16


@pytest.fixture
def slots() -> SlotTable:
    """Two workers, of which the second has a request of three blocks."""
    table = SlotTable(BLOCK)
    for number in range(2):
        table.add_worker(number)
    hashes = np.arange(3, dtype=np.uint64)
    table.add_request("there", 1, hashes, isl=3 * BLOCK, overlap_blocks=0, now=0.0)
    return table


def heard(slots: SlotTable, request_id: str, isl: int, cached: int) -> HeardBooking:
    eligible = np.ones(2, np.bool_)
    return HeardBooking(request_id, 1, isl, cached * BLOCK, None, slots, eligible, 1.0)


def test_a_policy_that_learns_from_bookings_alone_is_told_of_heard_ones(slots: SlotTable) -> None:
    booked: list[tuple[str, int, float, float]] = []

    class Learner(DynamoCost):
        def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
            assert candidates.overlaps is not None
            found = float(candidates.overlaps[number])
            booked.append((request_id, number, found, candidates.blocks_with(number)))

    GuardedPolicy(Learner(), "learner", DynamoCost()).on_heard(heard(slots, "r", 40, 2))
    assert booked == [("r", 1, 2.0, 3.0)]


@pytest.mark.parametrize(("isl", "cached"), [(40, 0), (40, 2), (5000, 100), (BLOCK, 1)])
@pytest.mark.parametrize("blocks", [None, 3, 2])
def test_the_forecast_foresees_the_same_as_if_it_was_shown_the_candidates(
    slots: SlotTable, isl: int, cached: int, blocks: int | None
) -> None:
    told, shown = ForecastPolicy(), ForecastPolicy()
    entry = WorkerEntry(1, total_kv_blocks=blocks, max_num_batched_tokens=64)
    for policy in (told, shown):
        policy.on_worker(1, entry)
    for name in ("a", "b"):  # the second one waits for room beside the first one's answer
        booking = heard(slots, name, isl, cached)
        told.on_heard(booking)
        shown.on_booked(name, 1, booking.candidates())
    for name in ("a", "b"):
        found = [policy._forecast.first_token(name, 2.0) for policy in (told, shown)]
        assert found[0] is not None and found[0] == found[1]
        assert found[0][1] > 0  # seconds foreseen
