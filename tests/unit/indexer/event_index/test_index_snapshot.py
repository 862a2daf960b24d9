"""The index in a file and back: the same index, or a clear error and an empty one."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kv_events.messages import message_of, stored

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import snapshot
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.event_index.snapshot import (
    SnapshotHead,
    dump_index,
    load_index,
    restore_index,
    save_index,
)
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire.codec import (
    encode_heartbeat,
    encode_router_event,
)
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    Stored,
    StoredBlock,
)

HEAD = SnapshotHead(block_size=16, subject="namespace.n.component.c.endpoint.e.kv-events")
A, B = WorkerWithDpRank(1), WorkerWithDpRank(2**64 - 1, 3)


def message(worker: WorkerWithDpRank, event_id: int, data: EventData, publisher: int = 9) -> bytes:
    return message_of(worker, event_id, data, publisher)


def local(*blocks: int) -> np.ndarray:
    return np.array([10 * b for b in blocks], dtype=np.uint64)


@pytest.fixture
def other():
    made = EventIndex()
    made.await_replays()
    yield made
    made.close()


def fill(index: EventIndex) -> None:
    index.apply(message(A, 1, stored(1, 2, 3)))
    index.apply(message(A, 2, stored(4, parent=2)))
    index.apply(message(B, 1, stored(1, 2, 5)))
    index.apply(message(B, 2, Removed([5])))


def known(index: EventIndex) -> dict[WorkerWithDpRank, tuple[int, int, list[int]]]:
    chains = (local(1, 2, 3), local(1, 2, 4), local(1, 2, 5))
    return {
        s.worker: (s.last_event_id, s.blocks, [index.scores(c).get(s.worker, 0) for c in chains])
        for s in index.sources()
    }


def test_what_was_dumped_is_known_again_but_not_yet_confirmed(
    index: EventIndex, other: EventIndex
) -> None:
    fill(index)
    assert restore_index(other, dump_index(index, HEAD), HEAD) == 2
    assert known(other) == known(index) == {A: (2, 4, [3, 3, 2]), B: (2, 2, [2, 2, 2])}
    for status in other.sources():
        assert status.state is SourceState.RECOVERING and status.restored
        assert status.missing == (9, 3, None)
    assert len(other.recovering()) == 2 and other.alarms == 2


def test_a_heartbeat_confirms_and_the_next_event_goes_on(
    index: EventIndex, other: EventIndex
) -> None:
    fill(index)
    restore_index(other, dump_index(index, HEAD), HEAD)
    other.apply(encode_heartbeat(A, 2, 9, 1, 0))
    other.apply(message(B, 3, stored(6)))
    assert {s.state for s in other.sources()} == {SourceState.EXACT}
    assert not any(s.restored for s in other.sources())


@pytest.mark.parametrize("news", ["event", "heartbeat"])
def test_the_ghosts_of_an_engine_that_restarted_meanwhile_go(
    index: EventIndex, other: EventIndex, news: str
) -> None:
    fill(index)
    restore_index(other, dump_index(index, HEAD), HEAD)
    other.apply(
        message(A, 1, stored(7), publisher=10)
        if news == "event"
        else encode_heartbeat(A, 0, 10, 0, 0)
    )
    assert known(other)[A] == (int(news == "event"), int(news == "event"), [0, 0, 0])
    assert known(other)[B] == known(index)[B]


def test_a_source_that_never_confirms_is_forgotten(index: EventIndex, other: EventIndex) -> None:
    fill(index)
    restore_index(other, dump_index(index, HEAD), HEAD)
    other.give_up(A)
    assert known(other)[A][1:] == (0, [0, 0, 0])
    states = {s.worker: s.state for s in other.sources()}
    assert states == {A: SourceState.REBUILDING, B: SourceState.RECOVERING}


def test_a_gap_is_dumped_as_it_was_before_it(index: EventIndex, other: EventIndex) -> None:
    index.await_replays()
    fill(index)
    index.apply(message(A, 4, Removed([1])))
    restore_index(other, dump_index(index, HEAD), HEAD)
    assert known(other)[A] == (2, 4, [3, 3, 2])
    assert [s.missing for s in other.sources() if s.worker == A] == [(9, 3, 4)]
    other.apply(message(A, 3, stored(8)))
    other.apply(message(A, 4, Removed([1])))
    assert known(other)[A] == (4, 4, [0, 0, 0])


def test_only_what_is_wholly_known_is_dumped(index: EventIndex, other: EventIndex) -> None:
    fill(index)
    index.apply(message(A, 5, stored(5)))  # a gap, and nobody to ask
    index.apply(message(B, 3, Removed([1])))  # hides what is below
    assert restore_index(other, dump_index(index, HEAD), HEAD) == 0
    assert other.sources() == []


def content(index: EventIndex, worker: WorkerWithDpRank) -> set[tuple[int, int, int]] | None:
    """(parent, key, local hash) of every block of a worker; a parent of 0: the start."""
    image = index.dump_source(worker)
    if image is None:
        return None  # some of it is out of sight
    runs = np.frombuffer(image.runs, [("parent", "u8"), ("count", "u4"), ("below", "u4")])
    keys, at, found = np.frombuffer(image.external_hashes, np.uint64), 0, set()
    locals_ = np.frombuffer(image.local_hashes, np.uint64)
    for parent, count, below in runs.tolist():
        before = parent if below else 0
        for i in range(at, at + count):
            found.add((before, int(keys[i]), int(locals_[i])))
            before = int(keys[i])
        at += count
    return found


def random_events(seed: int) -> list[bytes]:
    """What two engines of random trees say, leaves dropped first, with keys of their own."""
    rng, messages = Random(seed), []
    for worker in (A, B):
        parents: dict[int, int | None] = {}
        for event_id in range(1, 60):
            leaves = [b for b in parents if b not in parents.values()]
            if leaves and rng.random() < 0.35:
                gone = rng.choice(leaves)
                del parents[gone]
                messages.append(message(worker, event_id, Removed([gone])))
            elif rng.random() < 0.02:
                parents.clear()
                messages.append(message(worker, event_id, Cleared()))
            else:
                parent = rng.choice([None, *parents])
                key = rng.randrange(1, 10**6)
                token = rng.randrange(1, 4)  # so that engines share paths under other keys
                event = Stored(parent, [StoredBlock(key, token)])
                taken = {(parents[b], b % 4) for b in parents}
                if key in parents or (parent, token) in taken:
                    event, key = Stored(None, [StoredBlock(key, 10**7 + key)]), key
                    parent = None
                parents[key] = parent
                messages.append(message(worker, event_id, event))
    return messages


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 118))
@settings(max_examples=60, deadline=None)
def test_an_old_snapshot_and_everything_again_is_the_present(seed: int, cut: int) -> None:
    """Stale snapshot, then all messages from the start: each counts once."""
    messages = random_events(seed)
    index, other = EventIndex(), EventIndex()
    try:
        for each in messages[:cut]:
            index.apply(each)
        frames = list(dump_index(index, HEAD))
        for each in messages[cut:]:
            index.apply(each)
        restore_index(other, frames, HEAD)
        for each in messages:
            other.apply(each)
        ours = {s.worker: (s.blocks, s.last_event_id) for s in index.sources()}
        if all(s.state is SourceState.EXACT for s in index.sources()):
            assert {s.worker: (s.blocks, s.last_event_id) for s in other.sources()} == ours
            for worker in ours:
                assert content(other, worker) == content(index, worker)
    finally:
        index.close()
        other.close()


def reframe(payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(4, "little")
        + xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little")
        + payload
    )


def altered(frame: bytes, **changes: object) -> bytes:
    fields = msgspec.msgpack.decode(frame[12:])
    return reframe(msgspec.msgpack.encode({**fields, **changes}))


CURSOR_OF_MINUS_ONES = [*[-1] * 10, []]
ORPHANS = (77).to_bytes(8, "little") + (2).to_bytes(4, "little") + (1).to_bytes(4, "little")

# Frames: 0 the head, 1 the first source, 2 to 4 its runs and hashes, 5 to 8 the second, 9 the end.
BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "empty": (lambda f: [], "ends too early"),
    "head only": (lambda f: f[:1], "ends too early"),
    "no end": (lambda f: f[:-1], "ends too early"),
    "cut": (lambda f: [*f[:-2], f[-2][:-1]], "ends too early"),
    "cut lead": (lambda f: [*f[:-1], f[-1][:5]], "ends too early"),
    "flipped": (lambda f: [f[0], f[1][:-1] + bytes([f[1][-1] ^ 1]), *f[2:]], "checksum"),
    "junk": (lambda f: [b"\x07" * 40], "length"),
    "not msgpack": (lambda f: [reframe(b"\xc1")], "cannot be used"),
    "a source lost": (lambda f: [f[0], *f[5:]], "it has 1 sources, not 2"),
    "a source twice": (lambda f: [*f[:5], *f[1:]], "it has 3 sources, not 2"),
    "an array lost": (lambda f: [*f[:8], f[9]], "arrays"),
    "an array cut": (lambda f: [*f[:8], altered(f[8], arrays=b"12345678"), f[9]], "arrays"),
    "an array too long": (lambda f: [*f[:8], altered(f[8], arrays=b"1" * 24), f[9]], "length"),
    "nothing in a part": (lambda f: [*f[:8], altered(f[8], arrays=b""), f[9]], "length"),
    "more": (lambda f: [*f, f[1]], "follows its end"),
    "version": (lambda f: [altered(f[0], version=3), *f[1:]], "version is 3, wanted is 2"),
    "format": (lambda f: [altered(f[0], format="x"), *f[1:]], "format is 'x'"),
    "block size": (lambda f: [altered(f[0], block_size=32), *f[1:]], "block_size is 32"),
    "salt": (lambda f: [altered(f[0], hashes="sha"), *f[1:]], "hashes is 'sha'"),
    "fleet": (lambda f: [altered(f[0], subject="other"), *f[1:]], "subject is 'other'"),
    "orphan": (lambda f: [*f[:6], altered(f[6], arrays=ORPHANS), *f[7:]], "do not fit together"),
    "runs": (lambda f: [*f[:6], altered(f[6], arrays=b"\x01" * 16), *f[7:]], "do not fit"),
    "worker": (lambda f: [*f[:5], altered(f[5], worker_id=-1), *f[6:]], "worker_id"),
    "rank": (lambda f: [*f[:5], altered(f[5], dp_rank=2**32), *f[6:]], "dp_rank"),
    "cursor": (lambda f: [*f[:5], altered(f[5], cursor=CURSOR_OF_MINUS_ONES), *f[6:]], ">= 0"),
    "short cursor": (lambda f: [*f[:5], altered(f[5], cursor=[1]), *f[6:]], "cannot be used"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_named_and_leaves_nothing(
    index: EventIndex, other: EventIndex, case: str
) -> None:
    fill(index)
    change, why = BROKEN[case]
    frames = change(list(dump_index(index, HEAD)))
    with pytest.raises(ConfigError, match=why) as caught:
        restore_index(other, frames, HEAD)
    assert caught.value.key == "index_snapshot"
    assert other.sources() == [] and other.scores(local(1)) == {}


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_file_at_all_can_do_harm(data: st.DataObject) -> None:
    index, other = EventIndex(), EventIndex()
    try:
        fill(index)
        good = b"".join(dump_index(index, HEAD))
        bad = bytearray(good[: data.draw(st.integers(0, len(good)))])
        for _ in range(data.draw(st.integers(0, 3))):
            if bad:
                bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
        path = Path(os.environ.get("TMPDIR", "/tmp")) / f"snapshot-{os.getpid()}"
        path.write_bytes(bad)
        try:
            if bytes(bad) == good:
                assert load_index(other, path, HEAD) == 2
                return
            with pytest.raises(ConfigError):
                load_index(other, path, HEAD)
            assert other.sources() == []
        finally:
            path.unlink()
    finally:
        index.close()
        other.close()


def test_a_file_is_replaced_at_once_and_nothing_else_is_left(
    index: EventIndex, other: EventIndex, tmp_path: Path
) -> None:
    path = tmp_path / "index"
    assert load_index(other, path, HEAD) is None
    save_index(index, path, HEAD)
    fill(index)
    assert save_index(index, path, HEAD) == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]
    assert load_index(other, path, HEAD) == 2 and known(other) == known(index)


def test_a_place_that_cannot_be_written_or_read(
    index: EventIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError):
        save_index(index, tmp_path / "no folder" / "index", HEAD)
    with pytest.raises(ConfigError, match="directory"):
        load_index(index, tmp_path, HEAD)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        save_index(index, tmp_path / "index", HEAD)
    assert list(tmp_path.iterdir()) == []


def test_sources_of_a_file_are_no_strangers(index: EventIndex) -> None:
    fill(index)
    small = EventIndex(max_workers=1)
    assert restore_index(small, dump_index(index, HEAD), HEAD) == 2
    small.apply(message(WorkerWithDpRank(5), 1, stored(1)))
    small.apply(message(WorkerWithDpRank(6), 1, stored(1)))
    assert len(small.sources()) == 3 and small.counters()["refused"] == 1
    small.close()


def test_a_source_larger_than_a_frame_is_in_several(
    index: EventIndex, other: EventIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PART_BYTES", 24)
    fill(index)
    frames = list(dump_index(index, HEAD))
    assert len(frames) > 10 and max(map(len, frames[2:5])) < 60
    assert restore_index(other, frames, HEAD) == 2
    assert known(other) == known(index)


def test_a_bare_source_is_not_in_a_file(index: EventIndex, other: EventIndex) -> None:
    """Nothing could tell whether it restarted meanwhile."""
    fill(index)
    bare = WorkerWithDpRank(4)
    index.apply(encode_router_event(RouterEvent(bare, 1, stored(1))))
    assert restore_index(other, dump_index(index, HEAD), HEAD) == 2
    assert bare not in known(other)
