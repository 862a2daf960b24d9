"""An index lent from router to router: over a network that loses, doubles and reorders, too."""

import random
import struct
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex, SnapshotHead
from dynamo_router.indexer.event_index.snapshot import dump_index, merge_index
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire.codec import EventWriter
from dynamo_router.kv_events import index_transfer
from dynamo_router.kv_events.index_peers import IndexPeers
from dynamo_router.kv_events.index_transfer import (
    CHUNK_BYTES,
    KEEP_S,
    WINDOW,
    Chunk,
    Fetch,
    IndexBorrower,
    IndexCopy,
    IndexLender,
    Offer,
    Outgoing,
    Wanted,
)
from dynamo_router.runtime.event_planes.local_plane import LocalPlane

HEAD = SnapshotHead(block_size=16, subject="here")
A, B = WorkerWithDpRank(1, 0), WorkerWithDpRank(2, 0)


class Network:
    """A borrower, number 1, and lenders with their indexes, from number 2 on."""

    def __init__(self, seed: int, loss: float, *copies: bytes | None) -> None:
        self._random, self._loss, self.now = random.Random(seed), loss, 0.0
        self.borrower = IndexBorrower(1, HEAD)
        self.lenders = {n: (IndexLender(n, HEAD), c) for n, c in enumerate(copies, start=2)}
        self.most_at_once = 0

    @property
    def index(self) -> bytes:
        return b"".join(self.borrower.index or ())

    def run(self, at_most_s: float) -> None:
        under_way = [*self.borrower.begin(self.now)]
        while not self.borrower.done and self.now < at_most_s:
            self._random.shuffle(under_way)
            letters, under_way = under_way, []
            self.most_at_once = max(
                self.most_at_once, sum(isinstance(message, Chunk) for _, message in letters)
            )
            for letter in letters:
                for _ in range(self._copies()):
                    under_way += self._deliver(letter)
            for lender, copy in self.lenders.values():
                lender.tick(self.now)
                if lender.wants_copy:
                    made = None if copy is None else IndexCopy.of(copy)
                    under_way += lender.lend(made, self.now)
            self.now += 0.02
            under_way += self.borrower.tick(self.now)

    def _copies(self) -> int:
        draw = self._random.random()
        return 0 if draw < self._loss else 2 if draw < 1.5 * self._loss else 1

    def _deliver(self, letter: Outgoing) -> Iterator[Outgoing]:
        router_id, message = letter
        if router_id in (None, 1):
            yield from self.borrower.on_message(message, self.now)
        for number, (lender, _) in self.lenders.items():
            if router_id in (None, number):
                yield from lender.on_message(message, self.now)


def bytes_of(chunks: float) -> bytes:
    return random.Random(1).randbytes(int(chunks * CHUNK_BYTES))


@pytest.mark.parametrize("chunks", [0.01, 1.0, 2 * WINDOW + 0.5])
def test_a_copy_arrives_whole(chunks: float) -> None:
    network = Network(1, 0.0, bytes_of(chunks))
    network.run(5.0)
    assert network.index == bytes_of(chunks)
    assert network.most_at_once <= WINDOW


@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.05, 0.2]))
def test_what_got_lost_is_asked_for_again(seed: int, loss: float) -> None:
    network = Network(seed, loss, b"a" * CHUNK_BYTES * 3 + b"b")
    network.run(60.0)
    assert network.borrower.done
    if not network.borrower.failed:
        assert network.index == b"a" * CHUNK_BYTES * 3 + b"b"


def test_the_largest_of_several_is_taken() -> None:
    network = Network(1, 0.0, b"small", bytes_of(1), None)
    network.run(5.0)
    assert network.index == bytes_of(1)


def test_nobody_there_is_noticed_within_a_second_or_so() -> None:
    network = Network(1, 0.0, None)
    network.run(5.0)
    assert network.borrower.failed and network.now < 1.2


def test_a_holder_that_goes_silent_gives_way_to_another() -> None:
    borrower = IndexBorrower(1, HEAD)
    borrower.begin(0.0)
    for holder, size in ((2, 100), (3, 50)):
        assert not borrower.on_message(Offer(holder, 1, size, 0), 0.0)
    asked: list[int | None] = []
    now = 0.0
    while not borrower.done and now < 30:
        now += 0.1
        asked += [to for to, message in borrower.tick(now) if isinstance(message, Fetch)]
    assert borrower.failed
    assert asked == [2] * (index_transfer.RETRIES + 1) + [3] * (index_transfer.RETRIES + 1)


def test_a_copy_that_was_altered_is_not_believed() -> None:
    borrower = IndexBorrower(1, HEAD)
    borrower.begin(0.0)
    borrower.on_message(Offer(2, 7, 3, 12345), 0.0)
    assert borrower.tick(1.0) == [(2, Fetch(1, 7, (0,)))]
    for junk in (Chunk(8, 0, b"abc"), Chunk(7, 0, b"abcd"), Chunk(7, 1, b"abc"), Chunk(7, -1, b"")):
        assert borrower.on_message(junk, 1.0) == [] and not borrower.done
    borrower.on_message(Chunk(7, 0, b"abc"), 1.0)
    assert borrower.failed


class Digest:
    """Says how much is read at a time."""

    parts: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self._digest = _new_digest()

    def update(self, data: bytes) -> None:
        self.parts.append(len(data))
        self._digest.update(data)

    def intdigest(self) -> int:
        return self._digest.intdigest()


_new_digest = xxhash.xxh3_64


def test_a_checksum_is_never_made_of_more_than_a_chunk_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the loop's turns: whoever makes a copy does so elsewhere, with its checksum."""
    copy = IndexCopy.of(bytes_of(2.5 * WINDOW))
    monkeypatch.setattr(index_transfer.xxhash, "xxh3_64", Digest)
    monkeypatch.setattr(
        index_transfer.xxhash, "xxh3_64_intdigest", lambda data: pytest.fail("whole")
    )
    lender, borrower = IndexLender(2, HEAD), IndexBorrower(1, HEAD)
    letters = borrower.begin(0.0)
    now = 0.0
    while not borrower.done and now < 5.0:
        now += 0.02
        answers = [answer for _, each in letters for answer in lender.on_message(each, now)]
        if lender.wants_copy:
            answers += lender.lend(copy, now)
        letters = borrower.tick(now)
        for _, each in answers:
            letters += borrower.on_message(each, now)
    assert b"".join(borrower.index or ()) == copy.data
    assert sum(Digest.parts) == len(copy.data) and max(Digest.parts) == CHUNK_BYTES


def test_an_index_of_another_kind_is_not_offered() -> None:
    lender = IndexLender(2, HEAD)
    other = SnapshotHead(block_size=32, subject="here")
    assert lender.on_message(Wanted(1, other), 0.0) == [] and not lender.wants_copy
    assert lender.on_message(Wanted(2, HEAD), 0.0) == [] and not lender.wants_copy
    lender.on_message(Wanted(1, HEAD), 0.0)
    assert lender.wants_copy


def test_a_copy_is_kept_for_those_who_ask_and_then_let_go() -> None:
    lender = IndexLender(2, HEAD)
    lender.on_message(Wanted(1, HEAD), 0.0)
    ((asker, offer),) = lender.lend(IndexCopy.of(b"abc"), 0.0)
    assert asker == 1 and isinstance(offer, Offer)
    fetch = Fetch(1, offer.copy, (0, 1, -1))
    assert lender.on_message(fetch, KEEP_S - 1) == [(1, Chunk(offer.copy, 0, b"abc"))]
    lender.tick(2 * KEEP_S - 2)
    assert lender.on_message(fetch, 2 * KEEP_S - 2)
    lender.tick(4 * KEEP_S)
    assert lender.on_message(fetch, 4 * KEEP_S) == []


def test_a_lender_sends_no_more_than_so_many_chunks_a_second() -> None:
    lender = IndexLender(2, HEAD)
    lender.on_message(Wanted(1, HEAD), 0.0)
    lender.lend(IndexCopy.of(b"abc"), 0.0)
    sent = sum(len(lender.on_message(Fetch(1, 1, (0,) * 99), 0.5)) for _ in range(1000))
    assert sent == index_transfer.MAX_CHUNKS_PER_S
    assert lender.on_message(Fetch(1, 1, (0,)), 1.5)


# What is made of it


def told(index: EventIndex, worker: WorkerWithDpRank, *blocks: int, publisher: int = 9) -> None:
    """So many events of a worker, one of each block."""
    writer = EventWriter()
    for event_id, block in enumerate(blocks, start=1):
        writer.stored(*worker, event_id, None, [block], [block])
    index.apply(writer.message(publisher, 0, 0))


def copy_of(*tell: tuple[WorkerWithDpRank, tuple[int, ...], int]) -> list[bytes]:
    index = EventIndex()
    for worker, blocks, publisher in tell:
        told(index, worker, *blocks, publisher=publisher)
    frames = list(dump_index(index, HEAD))
    index.close()
    return frames


def blocks_of(index: EventIndex) -> dict[WorkerWithDpRank, int]:
    return {source.worker: source.blocks for source in index.sources() if source.blocks}


@pytest.fixture
def index() -> Iterator[EventIndex]:
    made = EventIndex()
    made.await_replays()
    yield made
    made.close()


def test_sources_that_are_not_known_are_taken(index: EventIndex) -> None:
    assert merge_index(index, copy_of((A, (1, 2), 9), (B, (3,), 8)), HEAD) == 2
    assert blocks_of(index) == {A: 2, B: 1}
    assert {s.state for s in index.sources()} == {SourceState.RECOVERING}


def test_what_was_told_here_stays(index: EventIndex) -> None:
    told(index, A, 1)
    assert merge_index(index, copy_of((A, (1, 2, 3), 9), (B, (3,), 8)), HEAD) == 1
    assert blocks_of(index) == {A: 1, B: 1}


def test_of_two_snapshots_the_later_one_counts(index: EventIndex) -> None:
    assert merge_index(index, copy_of((A, (1, 2), 9), (B, (1, 2), 9)), HEAD) == 2
    later = copy_of((A, (1, 2, 3), 9), (B, (1,), 9))
    assert merge_index(index, later, HEAD) == 1
    assert blocks_of(index) == {A: 3, B: 2}
    assert merge_index(index, copy_of((A, (1, 2, 3, 4), 7)), HEAD) == 0  # of another numbering


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("harm", ["cut short", "blocks that do not fit"])
def test_a_broken_copy_leaves_what_was_known(
    index: EventIndex, harm: str, registered: bool
) -> None:
    """Of a source that an earlier copy told of, too, and of one that is registered and silent."""
    merge_index(index, copy_of((A, (1, 2), 9)), HEAD)
    if registered:
        index.bind(A, 0)
        index.bind(B, 1)
    frames = copy_of((A, (1, 2, 3), 9), (B, (3,), 8))
    if harm == "cut short":
        frames, text = frames[:-1], "ends too early"
    else:
        runs = msgspec.msgpack.decode(frames[-4][12:])["arrays"]
        frames[-4], text = framed({"arrays": b"\xff" * len(runs)}), "do not fit"
    with pytest.raises(ConfigError, match=text):
        merge_index(index, frames, HEAD)
    assert blocks_of(index) == {A: 2}
    if registered:
        told(index, B, 5, 6, publisher=4)
        overlaps = np.zeros(2, np.uint32)
        index.match(np.array([1], np.uint64), overlaps)
        assert list(overlaps) == [1, 0]
        index.match(np.array([5], np.uint64), overlaps)
        assert list(overlaps) == [0, 1]


def framed(content: object) -> bytes:
    payload = msgspec.msgpack.encode(content)
    return struct.pack("<IQ", len(payload), xxhash.xxh3_64_intdigest(payload)) + payload


def test_nothing_of_a_broken_copy_stays(index: EventIndex) -> None:
    frames = copy_of((A, (1, 2), 9), (B, (3,), 8))
    with pytest.raises(ConfigError, match="ends too early"):
        merge_index(index, frames[:-1], HEAD)
    assert blocks_of(index) == {}


async def test_a_late_router_begins_with_the_index_of_one_that_runs(index: EventIndex) -> None:
    plane, place = LocalPlane(), ("n", "c", "e")
    old = EventIndex()
    told(old, A, 1, 2, 3)
    peers = [IndexPeers(plane, each, HEAD, SystemClock(), place=place) for each in (old, index)]
    for each in peers:
        await each.start()
    try:
        assert await peers[1].borrow() == 1
        assert blocks_of(index) == {A: 3}
        await plane.publish("namespace.n.component.c.endpoint.e.router-index", b"\xc1")
        assert peers[0].undecodable == 1 and peers[0].lent == 1
    finally:
        for each in peers:
            await each.close()
        await plane.close()
        old.close()
