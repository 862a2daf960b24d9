"""Event messages and JSON events: what goes in comes out."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.codec import (
    EventWriter,
    decode_cache_event,
    decode_event_message,
    encode_cache_event,
    encode_event_message,
    encode_router_event,
)
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    StorageTier,
    Stored,
    StoredBlock,
)

# Around each width of a msgpack integer, and anything.
EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
U64 = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
U32 = U64.filter(lambda number: number < 2**32) | st.integers(0, 2**32 - 1)
TIERS: list[StorageTier] = ["device", "host_pinned", "disk", "external"]
BLOCKS = st.lists(st.builds(StoredBlock, U64, U64), max_size=20).map(tuple)
DATA: st.SearchStrategy[EventData] = (
    st.builds(Stored, st.none() | U64, BLOCKS)
    | st.builds(Removed, st.lists(U64, max_size=20).map(tuple))
    | st.builds(Cleared)
)
EVENTS = st.lists(
    st.builds(
        RouterEvent, st.builds(WorkerWithDpRank, U64, U32), U64, DATA, st.sampled_from(TIERS)
    ),
    max_size=20,
)

WORKER = WorkerWithDpRank(7, 1)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, publisher=U64, sequence=U64, at=U64)
def test_events_survive_a_message(
    events: list[RouterEvent], publisher: int, sequence: int, at: int
) -> None:
    message = encode_event_message(events, publisher, sequence, at)
    assert decode_event_message(message) == events
    opened = msgspec.msgpack.decode(message)
    assert list(opened) == ["publisher_id", "sequence", "published_at", "topic", "payload"]
    assert (opened["publisher_id"], opened["sequence"], opened["published_at"]) == (
        publisher,
        sequence,
        at,
    )
    payload = msgspec.msgpack.decode(opened["payload"])
    assert opened["payload"] == msgspec.msgpack.encode(payload)  # the shortest form of everything
    assert [each["worker_id"] for each in payload] == [each.worker.worker_id for each in events]


@settings(max_examples=100, deadline=None)
@given(events=EVENTS)
def test_events_survive_json(events: list[RouterEvent]) -> None:
    texts = [encode_router_event(event) for event in events]
    assert [decode_event_message(text)[0] for text in texts] == events
    assert decode_event_message(b"[" + b",".join(texts) + b"]") == events
    for event in events:
        read = decode_cache_event(event.worker.worker_id, encode_cache_event(event))
        assert (read.worker, read.event_id, read.data) == (event.worker, event.event_id, event.data)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65535, 65536, 65537])
def test_long_events_survive(count: int) -> None:
    hashes = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    writer = EventWriter()
    writer.stored(7, 1, 1, 5, hashes, hashes[::-1])
    writer.removed(7, 1, 2, hashes.tolist(), "disk")
    assert (writer.events, writer.blocks) == (2, 2 * count)
    stored, removed = decode_event_message(writer.message(1, 2, 3))
    blocks = zip(hashes.tolist(), hashes[::-1].tolist(), strict=True)
    assert stored.data == Stored(5, tuple(StoredBlock(*pair) for pair in blocks))
    assert removed == RouterEvent(WORKER, 2, Removed(tuple(hashes.tolist())), "disk")


def test_a_message_of_many_events_survives() -> None:
    events = [RouterEvent(WORKER, number, Cleared()) for number in range(70_000)]
    assert decode_event_message(encode_event_message(events, 1, 2, 3)) == events


def test_a_writer_starts_the_next_message_empty() -> None:
    writer = EventWriter()
    writer.cleared(7, 1, 1)
    assert decode_event_message(writer.message(1, 1, 1)) == [RouterEvent(WORKER, 1, Cleared())]
    assert (writer.events, writer.blocks) == (0, 0)
    assert decode_event_message(writer.message(1, 2, 1)) == []


def test_a_writer_refuses_what_does_not_fit_and_writes_nothing_of_it() -> None:
    writer = EventWriter()
    with pytest.raises(ValueError, match="2 block hashes for 1 tokens hashes"):
        writer.stored(7, 1, 1, None, [1, 2], [1])
    with pytest.raises(ValueError, match="'tape' is none of device"):
        writer.removed(7, 1, 1, [1], "tape")  # type: ignore[arg-type]  # that is the point
    for worker_id, dp_rank, event_id in ((-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, 0, -1)):
        with pytest.raises(OverflowError):
            writer.cleared(worker_id, dp_rank, event_id)
    with pytest.raises(OverflowError, match="block hash -1 at position 0"):
        writer.removed(7, 1, 1, [-1])
    assert decode_event_message(writer.message(1, 2, 3)) == []
