"""The outbox: numbering, batching, bounds and announcements, held against a plain cache."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.outbox import Outbox, StoredRun
from dynamo_router.indexer.wire.codec import EventWriter, decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored, StoredBlock

WORKER = WorkerWithDpRank(7, 1)


def take(outbox: Outbox) -> list[RouterEvent]:
    """The next message, as a router reads it."""
    writer = EventWriter()
    count = outbox.write_message(writer)
    events = decode_event_message(writer.message(1, 0, 0)) if count else []
    assert len(events) == count
    return events


def take_all(outbox: Outbox) -> list[list[RouterEvent]]:
    messages = []
    while message := take(outbox):
        messages.append(message)
    return messages


def run(parent: int | None, *blocks: int) -> StoredRun:
    return StoredRun(parent, list(blocks), [100 + block for block in blocks])


def test_what_waits_goes_into_one_message_in_order() -> None:
    outbox = Outbox(WORKER)
    outbox.put_stored(run(None, 1, 2))
    outbox.put_removed([2])
    outbox.put_stored(run(1, 3))
    assert take(outbox) == [
        RouterEvent(WORKER, 1, Stored(None, (StoredBlock(1, 101), StoredBlock(2, 102)))),
        RouterEvent(WORKER, 2, Removed((2,))),
        RouterEvent(WORKER, 3, Stored(1, (StoredBlock(3, 103),))),
    ]
    assert take(outbox) == []
    assert outbox.next_event_id == 4


def test_changes_keep_their_tier_when_they_are_cut() -> None:
    outbox = Outbox(WORKER, max_blocks=2)
    outbox.put_stored(run(9, 1, 2, 3)._replace(tier="host_pinned"))
    outbox.put_removed([1, 2, 3], "disk")
    outbox.put_cleared("external")
    told = [(event.storage_tier, event.data) for m in take_all(outbox) for event in m]
    assert told == [
        ("host_pinned", Stored(9, (StoredBlock(1, 101), StoredBlock(2, 102)))),
        ("host_pinned", Stored(2, (StoredBlock(3, 103),))),
        ("disk", Removed((1, 2))),
        ("disk", Removed((3,))),
        ("external", Cleared()),
    ]


def test_an_announcement_clears_every_tier_ever_told_of_and_the_device_last() -> None:
    outbox = Outbox(WORKER)
    outbox.put_stored(run(None, 1)._replace(tier="host_pinned"))
    take_all(outbox)
    outbox.announce([run(None, 2), run(2, 3)._replace(tier="disk")])
    told = [(event.storage_tier, event.data) for m in take_all(outbox) for event in m]
    assert told == [
        ("disk", Cleared()),
        ("host_pinned", Cleared()),
        ("device", Cleared()),
        ("device", Stored(None, (StoredBlock(2, 102),))),
        ("disk", Stored(2, (StoredBlock(3, 103),))),
    ]


def test_a_whole_cache_that_is_emptied_replaces_what_waits_and_one_tier_does_not() -> None:
    outbox = Outbox(WORKER)
    outbox.put_stored(run(None, 1)._replace(tier="disk"))
    outbox.put_cleared("device")
    assert [event.storage_tier for event in take(outbox)] == ["disk", "device"]
    outbox.put_stored(run(None, 2))
    outbox.put_cleared()
    told = take(outbox)
    assert [(e.storage_tier, e.data) for e in told] == [("disk", Cleared()), ("device", Cleared())]


def test_only_what_clears_every_tier_lets_a_replay_begin_there() -> None:
    outbox = Outbox(WORKER)
    outbox.put_cleared("device")
    take_all(outbox)
    assert outbox.clear_id == 1  # there is no other tier
    outbox.put_stored(run(None, 1)._replace(tier="disk"))
    outbox.put_cleared("device")
    outbox.put_cleared("disk")
    take_all(outbox)
    assert outbox.clear_id == 1
    outbox.announce([run(None, 2)])
    take_all(outbox)
    assert outbox.clear_id == 6  # the device's, after the disk's


def test_an_unknown_tier_is_refused_where_it_is_told() -> None:
    outbox = Outbox(WORKER)
    said = "storage tier 'gpu' is none of device, host_pinned, disk, external"
    for tell in (
        lambda: outbox.put_stored(run(None, 1)._replace(tier="gpu")),
        lambda: outbox.put_removed([1], "gpu"),
        lambda: outbox.put_cleared("gpu"),
        lambda: outbox.announce([run(None, 1)._replace(tier="gpu")]),
    ):
        with pytest.raises(ValueError, match=said):
            tell()
    assert take(outbox) == [] and not outbox.stale


@pytest.mark.parametrize("kind", [list, tuple, lambda x: np.array(x, np.uint64)])
def test_arrays_of_any_kind(kind: Callable[[list[int]], Any]) -> None:
    top = 2**64 - 1
    outbox = Outbox(WORKER, max_blocks=2)
    outbox.put_stored(StoredRun(top, kind([1, top, 3]), kind([top, 5, 6])))
    outbox.put_removed(kind([top]))
    events = [event.data for message in take_all(outbox) for event in message]
    assert events == [
        Stored(top, (StoredBlock(1, top), StoredBlock(top, 5))),
        Stored(top, (StoredBlock(3, 6),)),
        Removed((top,)),
    ]


def test_a_message_keeps_its_bounds() -> None:
    outbox = Outbox(WORKER, max_events=3, max_blocks=4)
    for block in range(7):
        outbox.put_removed([block])
    assert [len(m) for m in take_all(outbox)] == [3, 3, 1]
    for size in (3, 2, 2, 4, 1):
        outbox.put_removed(list(range(size)))
    assert [len(m) for m in take_all(outbox)] == [1, 2, 1, 1]


def test_a_long_run_is_cut_into_a_chain() -> None:
    outbox = Outbox(WORKER, max_blocks=3)
    outbox.put_stored(run(50, *range(1, 8)))
    events = [event.data for message in take_all(outbox) for event in message]
    assert [e.parent_hash for e in events if isinstance(e, Stored)] == [50, 3, 6]
    assert [b.block_hash for e in events if isinstance(e, Stored) for b in e.blocks] == [
        *range(1, 8)
    ]
    outbox.put_removed(list(range(7)))
    assert [len(m) for m in take_all(outbox)] == [1, 1, 1]


def test_nothing_stored_is_no_event() -> None:
    outbox = Outbox(WORKER)
    outbox.put_stored(run(None))
    outbox.put_removed([])
    assert take(outbox) == []


def test_clearing_makes_what_waits_moot() -> None:
    outbox = Outbox(WORKER)
    outbox.put_stored(run(None, 1, 2))
    outbox.put_cleared()
    outbox.put_stored(run(None, 3))
    assert [event.data for event in take(outbox)] == [
        Cleared(),
        Stored(None, (StoredBlock(3, 103),)),
    ]


def test_an_announcement_replaces_what_waits_and_goes_before_what_follows() -> None:
    outbox = Outbox(WORKER, first_event_id=40)
    outbox.put_removed([9])
    outbox.announce(r for r in [run(None, 1), run(1, 2)])
    outbox.put_removed([2])
    assert outbox.announcing
    assert take(outbox) == [
        RouterEvent(WORKER, 40, Cleared()),
        RouterEvent(WORKER, 41, Stored(None, (StoredBlock(1, 101),))),
        RouterEvent(WORKER, 42, Stored(1, (StoredBlock(2, 102),))),
        RouterEvent(WORKER, 43, Removed((2,))),
    ]
    assert not outbox.announcing


def test_too_much_waiting_makes_it_stale_until_announced() -> None:
    outbox = Outbox(WORKER, max_blocks=4, max_queued_blocks=10)
    outbox.put_removed(list(range(10)))
    assert not outbox.stale
    outbox.put_removed([1])
    assert outbox.stale and outbox.given_up == 1
    outbox.put_removed([2])
    outbox.put_stored(run(None, 3))
    outbox.put_cleared()
    assert take(outbox) == [] and outbox.next_event_id == 1
    outbox.announce([run(None, 5)])
    assert not outbox.stale
    assert [e.event_id for e in take(outbox)] == [1, 2]
    assert outbox.given_up == 1


def test_columns_of_unequal_length_change_nothing() -> None:
    outbox = Outbox(WORKER)
    with pytest.raises(ValueError):
        outbox.put_stored(StoredRun(None, [1, 2], [3]))
    with pytest.raises(ValueError):
        outbox.announce([run(None, 1), StoredRun(None, [1, 2], [3])])
    assert take(outbox) == []
    assert not outbox.stale


@pytest.mark.parametrize("junk", [-1, 2**64, "1", None, 1.5])
def test_a_hash_that_is_none_leaves_no_hole_in_the_numbers(junk: Any) -> None:
    outbox = Outbox(WORKER)
    writer = EventWriter()
    outbox.put_removed([1])
    outbox.put_removed([junk])
    with pytest.raises((ValueError, TypeError, OverflowError)):
        outbox.write_message(writer)
    assert [e.event_id for e in decode_event_message(writer.message(1, 0, 0))] == [1]
    assert outbox.stale and outbox.next_event_id == 2


@pytest.mark.parametrize("bounds", [{"max_events": 0}, {"max_blocks": 0}, {"max_queued_blocks": 9}])
def test_bounds_that_are_none(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Outbox(WORKER, **{"max_blocks": 10, **bounds})


class OutboxMachine(RuleBasedStateMachine):
    """An engine's cache, told change by change; a router that believes each message."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(WORKER, max_events=4, max_blocks=5, max_queued_blocks=40)
        self.cache: dict[int, int | None] = {}  # block -> its parent
        self.seen: dict[int, int | None] = {}  # what the router makes of it
        self.next_block = 1
        self.last_id = 0

    @rule(length=st.integers(1, 12), pick=st.integers(0, 99))
    def store(self, length: int, pick: int) -> None:
        parents = [None, *self.cache]
        parent = parents[pick % len(parents)]
        blocks = list(range(self.next_block, self.next_block + length))
        self.next_block += length
        self.outbox.put_stored(run(parent, *blocks))
        for block in blocks:
            self.cache[block] = parent
            parent = block

    @rule(count=st.integers(1, 6))
    def remove(self, count: int) -> None:
        gone = list(self.cache)[-count:]
        for block in gone:
            del self.cache[block]
        self.outbox.put_removed(gone)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.outbox.put_cleared()

    @rule()
    def lose_the_plane(self) -> None:
        self.outbox.invalidate()

    @rule()
    def announce(self) -> None:
        self.outbox.announce(run(parent, block) for block, parent in sorted(self.cache.items()))

    @rule()
    def send_one(self) -> None:
        self._apply(take(self.outbox))

    @rule()
    def settle(self) -> None:
        if self.outbox.stale:
            self.announce()
        for message in take_all(self.outbox):
            self._apply(message)
        assert self.seen == self.cache

    @invariant()
    def a_stale_outbox_is_silent(self) -> None:
        if self.outbox.stale:
            assert take(self.outbox) == []

    def _apply(self, events: list[RouterEvent]) -> None:
        assert len(events) <= 4
        weight = 0
        for event in events:
            self.last_id += 1
            assert event.event_id == self.last_id
            match event.data:
                case Cleared():
                    self.seen.clear()
                case Removed(block_hashes=hashes):
                    weight += len(hashes)
                    for block in hashes:
                        del self.seen[block]
                case Stored(parent_hash=parent, blocks=blocks):
                    weight += len(blocks)
                    assert parent is None or parent in self.seen
                    for stored in blocks:
                        assert stored.tokens_hash == stored.block_hash + 100
                        self.seen[stored.block_hash] = parent
                        parent = stored.block_hash
        assert weight <= 5


TestOutboxAgainstACache = OutboxMachine.TestCase
TestOutboxAgainstACache.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
