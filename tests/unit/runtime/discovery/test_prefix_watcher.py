"""Typed values below a prefix: by three kinds of key, through garbage, gaps and listings anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.polling import until

from dynamo_router.base import unreadable
from dynamo_router.runtime.discovery import (
    PrefixWatcher,
    full_key_string,
    key_string,
    lease_id,
    prefix_watcher,
)
from dynamo_router.runtime.kv_stores import (
    Deleted,
    Entry,
    FileStore,
    KeyValueStore,
    Listing,
    MemoryStore,
    StoreError,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")


def value_of(entry: Entry) -> Any:
    return json.loads(entry.value)


@pytest.mark.parametrize(
    ("extractor", "wanted"),
    [
        (lease_id, [0x7F, 0x80]),
        (key_string, ["b/7f", "b/80"]),
        (full_key_string, ["v1/instances/a/b/7f", "v1/instances/a/b/80"]),
    ],
)
def test_the_three_kinds_of_key(extractor: Callable[..., Any], wanted: list[Any]) -> None:
    bucket = MemoryStore().bucket("v1/instances")
    watcher: PrefixWatcher[Any, Any] = PrefixWatcher(bucket, extractor, value_of, prefix="a/")
    watcher.take_in(Listing((Entry("a/b/7f", b"1", 1), Entry("a/b/80", b"2", 2, 0x80)), 2))
    assert list(watcher.values) == wanted
    assert list(watcher.values.values()) == [1, 2]


async def test_it_follows_the_store(store: KeyValueStore, other: KeyValueStore, name: str) -> None:
    unreadable.counts.clear()
    theirs = other.bucket(name)
    await theirs.put("a/1", b"1")
    watcher = PrefixWatcher(store.bucket(name), key_string, value_of, prefix="a/")
    heard: list[tuple[str, Any]] = []
    watcher.listeners.append(lambda key, value: heard.append((key, value)))
    await watcher.start()
    assert watcher.values == {"1": 1}
    await theirs.put("a/2", b"2")
    await theirs.put("b/3", b"3")
    await theirs.put("a/1", b"{half")
    await until(lambda: watcher.values == {"2": 2})
    await theirs.put("a/1", b"11")
    await until(lambda: watcher.values == {"1": 11, "2": 2})
    await theirs.delete("a/2")
    await until(lambda: watcher.values == {"1": 11})
    assert heard == [("1", 1), ("2", 2), ("1", None), ("1", 11), ("2", None)]
    assert unreadable.counts["store"] == 1
    await watcher.close()


async def test_a_store_that_refuses_us_says_so_at_once(tmp_path: Path) -> None:
    """As etcd does for a user who may not read."""
    (tmp_path / "file").write_bytes(b"")
    store = FileStore(tmp_path)
    watcher = PrefixWatcher(store.bucket("file"), key_string, value_of)
    with pytest.raises(StoreError):
        await watcher.start()
    await watcher.close()


def test_keys_without_a_lease_or_of_strangers_are_passed_over() -> None:
    unreadable.counts.clear()
    watcher = PrefixWatcher(MemoryStore().bucket("b"), lease_id, value_of)
    watcher.take_in(Entry("some/name", b"1", 1))
    watcher.take_in(Entry("some/1f", b"\xff", 2))
    assert watcher.values == {} and unreadable.counts["store"] == 2


def test_of_entries_with_one_key_the_latest_counts() -> None:
    watcher = PrefixWatcher(MemoryStore().bucket("b"), lease_id, value_of)
    watcher.take_in(Entry("x/7", b"1", 1, 7))
    watcher.take_in(Entry("y/7", b"2", 2, 7))
    assert watcher.values == {7: 2}
    watcher.take_in(Deleted("y/7", 3))
    assert watcher.values == {7: 1}
    watcher.take_in(Entry("x/7", b"1", 4, 8))
    assert watcher.values == {8: 1}


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3))), max_size=20
)


@given(CHANGES, st.integers(0, 20))
def test_a_listing_stands_for_all_that_was_missed(
    changes: list[tuple[str, int | None]], cut: int
) -> None:
    """Whoever missed changes and lists ends as whoever heard them all, and so do listeners."""
    store: dict[str, Entry] = {}
    whole: PrefixWatcher[str, int] = PrefixWatcher(
        MemoryStore().bucket("b"), key_string, lambda entry: int(entry.value)
    )
    gappy: PrefixWatcher[str, int] = PrefixWatcher(
        MemoryStore().bucket("b"), key_string, lambda entry: int(entry.value)
    )
    heard: dict[str, int] = {}

    def listen(key: str, value: int | None) -> None:
        if value is None:
            del heard[key]
        else:
            heard[key] = value

    gappy.listeners.append(listen)
    for revision, (key, value) in enumerate(changes, 1):
        change = Deleted(key, revision)
        if value is not None:
            change = Entry(key, b"%d" % value, revision)
            store[key] = change
        else:
            store.pop(key, None)
        whole.take_in(change)
        if revision < cut:
            gappy.take_in(change)
    gappy.take_in(Listing(tuple(store.values()), len(changes)))
    assert whole.values == gappy.values == heard


def test_values_and_keys_beyond_what_there_is_room_for_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unreadable.counts.clear()
    monkeypatch.setattr(prefix_watcher, "MAX_VALUE_BYTES", 100)
    monkeypatch.setattr(prefix_watcher, "MAX_BYTES", 250)
    monkeypatch.setattr(prefix_watcher, "MAX_KEYS", 4)
    bucket = MemoryStore().bucket("v1/instances")
    watcher: PrefixWatcher[str, int] = PrefixWatcher(
        bucket, key_string, lambda entry: len(entry.value)
    )
    watcher.take_in(Listing((Entry("a", bytes(90), 1), Entry("b", bytes(101), 2)), 2))
    watcher.take_in(Entry("c", bytes(90), 3))
    watcher.take_in(Entry("d", bytes(90), 4))
    assert watcher.values == {"a": 90, "c": 90} and unreadable.counts["store"] == 2
    watcher.take_in(Entry("a", bytes(10), 5))
    watcher.take_in(Entry("d", bytes(90), 6))
    assert watcher.values == {"a": 10, "c": 90, "d": 90}
    watcher.take_in(Entry("e", b"", 7))
    watcher.take_in(Entry("f", b"", 8))
    assert len(watcher.values) == 4
    watcher.take_in(Entry("a", bytes(101), 9))
    assert "a" not in watcher.values
    for key in "cde":
        watcher.take_in(Deleted(key, 10))
    watcher.take_in(Listing(tuple(Entry(key, bytes(80), 11) for key in "xyz"), 11))
    assert watcher.values == {"x": 80, "y": 80, "z": 80}
