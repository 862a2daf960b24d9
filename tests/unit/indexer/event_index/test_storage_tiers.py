"""Storage tiers in the event index: each goes on where the one above it ended."""

from collections.abc import Iterator
from contextlib import closing

import msgspec
import numpy as np
import pytest
from support.kv_events.messages import message_of, stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.indexer.wire.codec import encode_event_message
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    StorageTier,
    Stored,
    StoredBlock,
)

W = WorkerWithDpRank(7)
OTHER = WorkerWithDpRank(7, 1)


class Teller:
    """Tells an index what happens, in order; a block's local hash is ten times its own."""

    def __init__(self) -> None:
        self.index = EventIndex()
        self.ids = {W: 0, OTHER: 0}

    def tell(self, tier: StorageTier, data: EventData, worker: WorkerWithDpRank = W) -> None:
        self.ids[worker] += 1
        self.index.apply(message_of(worker, self.ids[worker], data, tier=tier))

    def stored(
        self,
        tier: StorageTier,
        *blocks: int,
        parent: int | None = None,
        worker: WorkerWithDpRank = W,
    ) -> None:
        self.tell(tier, stored(*blocks, parent=parent), worker)

    def overlap(self, *blocks: int, worker: WorkerWithDpRank = W) -> tuple[int, ...]:
        local = np.array([10 * b for b in blocks], dtype=np.uint64)
        return self.index.tier_scores(local).get(worker, (0, 0, 0, 0))

    def source(self, worker: WorkerWithDpRank = W) -> SourceStatus:
        return {status.worker: status for status in self.index.sources()}[worker]


@pytest.fixture
def cache() -> Iterator[Teller]:
    made = Teller()
    yield made
    made.index.close()


def test_each_tier_continues_the_one_above(cache: Teller) -> None:
    cache.stored("device", 1, 2)
    cache.stored("host_pinned", 3, parent=2)
    cache.stored("disk", 4, 5, parent=3)
    cache.stored("external", 6, parent=5)
    assert cache.overlap(1, 2, 3, 4, 5, 6, 7) == (2, 1, 2, 1)
    assert cache.overlap(1, 2, 3, 4) == (2, 1, 1, 0)
    assert cache.overlap(1, 9) == (1, 0, 0, 0)
    assert cache.source().blocks == 2 and cache.source().lower_blocks == (1, 2, 1)


def test_a_block_counts_once_in_the_highest_tier_that_has_it(cache: Teller) -> None:
    cache.stored("host_pinned", 1, 2, 3)
    cache.stored("device", 1, 2)
    cache.stored("disk", 1, 2, 3, 4)
    assert cache.overlap(1, 2, 3, 4) == (2, 1, 1, 0)


def test_a_hole_ends_it_whoever_holds_what_is_below(cache: Teller) -> None:
    cache.stored("device", 1, 2, 3, 4)
    cache.stored("host_pinned", 2, 3, 4, parent=1)
    cache.tell("device", Removed([2, 3]))
    assert cache.overlap(1, 2, 3, 4) == (1, 3, 0, 0)
    cache.tell("host_pinned", Removed([3]))
    assert cache.overlap(1, 2, 3, 4) == (1, 1, 0, 0)  # 4 is on the device, behind the hole
    cache.stored("disk", 3, parent=2)
    assert cache.overlap(1, 2, 3, 4) == (1, 1, 1, 0)


def test_host_memory_alone_begins_at_the_first_block(cache: Teller) -> None:
    cache.stored("host_pinned", 1, 2)
    assert (
        cache.overlap(1, 2) == (0, 2, 0, 0) and cache.index.scores(np.array([10], np.uint64)) == {}
    )


def test_a_tier_outlives_the_parent_it_was_stored_below(cache: Teller) -> None:
    cache.stored("device", 1, 2)
    cache.stored("host_pinned", 3, parent=2)
    cache.tell("device", Cleared())
    assert cache.overlap(1, 2, 3) == (0, 0, 0, 0)
    cache.stored("device", 1, 2)
    assert cache.overlap(1, 2, 3) == (2, 1, 0, 0)


def test_ranks_of_a_worker_have_tiers_of_their_own(cache: Teller) -> None:
    cache.stored("device", 1)
    cache.stored("device", 1, worker=OTHER)
    cache.stored("host_pinned", 2, parent=1, worker=OTHER)
    assert cache.overlap(1, 2) == (1, 0, 0, 0)
    assert cache.overlap(1, 2, worker=OTHER) == (1, 1, 0, 0)


def test_a_clear_concerns_its_tier_and_a_gap_all_of_them(cache: Teller) -> None:
    cache.stored("device", 1)
    cache.stored("host_pinned", 2, parent=1)
    cache.stored("disk", 3, parent=2)
    cache.tell("host_pinned", Cleared())
    assert cache.overlap(1, 2, 3) == (1, 0, 0, 0) and cache.source().lower_blocks == (0, 1, 0)
    assert cache.source().state is SourceState.EXACT
    cache.ids[W] += 1
    cache.stored("disk", 1)
    assert cache.overlap(1, 2, 3) == (0, 0, 1, 0) and cache.source().blocks == 0
    assert cache.source().state is SourceState.REBUILDING
    cache.tell("disk", Cleared())
    assert cache.source().state is SourceState.REBUILDING  # the device was not told of
    cache.tell("device", Cleared())
    assert cache.source().state is SourceState.EXACT


def test_a_worker_that_leaves_takes_its_tiers_with_it(cache: Teller) -> None:
    cache.stored("host_pinned", 1)
    cache.index.unbind(W)
    assert cache.overlap(1) == (0, 0, 0, 0) and cache.index.sources() == []
    cache.ids[W] = 0
    cache.index.bind(W, 0)
    cache.stored("host_pinned", 1)
    overlaps, lower = np.zeros(1, np.uint32), np.zeros((3, 1), np.uint32)
    cache.index.match(np.array([10], np.uint64), overlaps, lower)
    assert overlaps.tolist() == [0] and lower.tolist() == [[1], [0], [1]]


def test_an_unknown_parent_in_a_lower_tier_is_counted_and_asks_for_nothing(cache: Teller) -> None:
    cache.stored("device", 1)
    cache.stored("disk", 3, parent=2)
    assert cache.overlap(1, 2, 3) == (1, 0, 0, 0)
    assert cache.index.tier_counters()["disk"]["orphans"] == 1
    assert cache.source().state is SourceState.EXACT and cache.source().orphans == 0


def test_the_device_does_not_grow_below_another_tier(cache: Teller) -> None:
    cache.stored("host_pinned", 1)
    cache.stored("device", 2, parent=1)
    assert cache.overlap(1, 2) == (0, 1, 0, 0) and cache.source().orphans == 1


def test_what_happened_is_counted_by_tier(cache: Teller) -> None:
    cache.stored("device", 1, 2)
    cache.stored("host_pinned", 3, parent=2)
    cache.tell("host_pinned", Removed([3, 9]))
    cache.tell("disk", Removed([9]))
    cache.tell("external", Cleared())
    counters = cache.index.tier_counters()
    assert list(counters) == ["device", "host_pinned", "disk", "external"]
    told = {tier: {k: v for k, v in c.items() if v} for tier, c in counters.items()}
    assert told == {
        "device": {"stored_events": 1, "stored": 2},
        "host_pinned": {
            "stored_events": 1, "stored": 1, "removed_events": 1, "removed": 1, "unknown": 1,
        },
        "disk": {"removed_events": 1, "unknown": 1},
        "external": {"cleared_events": 1},
    }  # fmt: skip


def test_lower_tiers_are_known_from_the_first_block_on(cache: Teller) -> None:
    cache.stored("device", 1)
    cache.tell("disk", Cleared())
    cache.tell("disk", Removed([5]))
    assert not cache.index.lower_tiers
    cache.stored("disk", 2, parent=1)
    assert cache.index.lower_tiers


@pytest.mark.parametrize("shape", [(3, 2), (2, 1), (3, 0)])
def test_an_array_of_another_shape_is_refused(cache: Teller, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="lower must have 3 rows of 1"):
        cache.index.match(
            np.zeros(1, np.uint64), np.zeros(1, np.uint32), np.zeros(shape, np.uint32)
        )


@pytest.mark.parametrize(
    ("tier", "overlap", "undecodable"),
    [
        ("device", (1, 0, 0, 0), 0),
        (None, (1, 0, 0, 0), 0),
        ("host_pinned", (0, 1, 0, 0), 0),
        ("some_future_tier", (0, 0, 0, 1), 0),  # it is not the device, so not over-counted
        ("", (0, 0, 0, 1), 0),
        ("DEVICE", (0, 0, 0, 1), 0),
        (1, (0, 0, 0, 0), 1),
        (-1, (0, 0, 0, 0), 1),
        (["disk"], (0, 0, 0, 0), 1),
    ],
)
def test_a_tier_is_known_by_its_name(
    cache: Teller, tier: object, overlap: tuple[int, ...], undecodable: int
) -> None:
    data = {"stored": {"parent_hash": None, "blocks": [{"block_hash": 1, "tokens_hash": 10}]}}
    event = {"worker_id": 7, "storage_tier": tier, "event": {"event_id": 1, "data": data}}
    cache.index.post(msgspec.json.encode([event]))
    cache.index.flush()
    assert cache.overlap(1) == overlap
    assert cache.index.counters()["undecodable"] == undecodable


def test_more_workers_than_allowed_are_refused_in_every_tier() -> None:
    with closing(EventIndex(max_workers=1)) as index:
        for worker in (W, OTHER):
            event = RouterEvent(worker, 1, Stored(None, [StoredBlock(1, 10)]), "disk")
            index.apply(encode_event_message([event], 1, 0, 0))
        assert index.tier_scores(np.array([10], np.uint64)) == {W: (0, 0, 1, 0)}
        assert index.counters()["refused"] == 1


def test_a_clear_that_heals_a_gap_empties_every_tier(cache: Teller) -> None:
    """Nobody knows what happened in the lower tiers meanwhile: at best it is all still there."""
    cache.stored("device", 1)
    cache.stored("host_pinned", 2, parent=1)
    cache.ids[W] += 1
    cache.tell("device", Cleared())
    cache.stored("device", 1)
    assert cache.overlap(1, 2) == (1, 0, 0, 0) and cache.source().lower_blocks == (0, 0, 0)
    assert cache.source().state is SourceState.EXACT
