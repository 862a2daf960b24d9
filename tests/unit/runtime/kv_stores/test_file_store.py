"""The file store beside Dynamo's processes, on a full disk, when clocks or writers misbehave."""

import errno
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from support.places import VECTORS

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.kv_stores import (
    MAX_VALUE_BYTES,
    Deleted,
    Entry,
    FileStore,
    LeaseLostError,
    Listing,
    StoreError,
    file_folder,
)
from dynamo_router.runtime.kv_stores.file_folder import key_of_name, name_of_key

pytestmark = pytest.mark.usefixtures("leaves_nothing")
RECORDED = json.loads((VECTORS / "dynamo_file_backend.json").read_text())
WALL = 1_800_000_000.0


class Wall:
    """A wall clock that goes with a monotonic one, until it is set."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self.ahead = clock, WALL

    def __call__(self) -> float:
        return self._clock.now() + self.ahead


@pytest.fixture
def wall(clock: ManualClock) -> Wall:
    return Wall(clock)


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock, wall: Wall) -> AsyncIterator[FileStore]:
    yield FileStore(tmp_path, clock=clock, wall=wall, inotify=False)


@pytest.mark.parametrize("recorded", RECORDED["names"])
def test_files_have_the_names_that_dynamo_gives_them(recorded: str, tmp_path: Path) -> None:
    bucket, name = recorded.rsplit("/", 1)
    key = key_of_name(name)
    assert key is not None and name_of_key(key) == name
    folder = FileStore(tmp_path).folder(bucket)
    assert folder.path_of(key) == str(tmp_path / recorded)


async def test_a_file_of_dynamo_lives_as_long_as_it_is_touched(
    tmp_path: Path, store: FileStore, clock: ManualClock, wall: Wall
) -> None:
    bucket = store.bucket("v1/instances")
    await bucket.put("ours", b"1")
    path = Path(store.folder("v1/instances").path_of("theirs"))
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
        path.write_bytes(b"{}")
        os.utime(path, (wall(), wall() + 0.25))
        change = await anext(watch)
        assert isinstance(change, Entry) and (change.key, change.value) == ("theirs", b"{}")
        for number in range(5):
            clock.advance(5.0)
            os.utime(path, (wall(), wall() + 0.1 * number))
            assert await bucket.get("theirs") is not None
        await bucket.put("ours", b"2")
        change = await anext(watch)
        assert isinstance(change, Entry) and change.key == "ours", "a touch is no change"
        clock.advance(11.5)
        change = await anext(watch)
        assert isinstance(change, Deleted) and change.key == "theirs"
        assert await bucket.get("ours") is not None
        assert not path.exists()


async def test_who_is_met_dead_is_buried_only_after_a_while(
    tmp_path: Path, store: FileStore, clock: ManualClock, wall: Wall
) -> None:
    """Its owner may be alive and our clock wrong: it can still show that."""
    bucket = store.bucket("b")
    await bucket.put("ours", b"1")
    path = Path(store.folder("b").path_of("theirs"))
    path.write_bytes(b"")
    os.utime(path, (wall() - 60, wall() - 60))
    async with aclosing(bucket.watch()) as watch:
        listing = await anext(watch)
        assert isinstance(listing, Listing) and [e.key for e in listing.entries] == ["ours"]
        clock.advance(9.0)
        await bucket.put("ours", b"2")
        await anext(watch)
        assert path.exists()
        clock.advance(2.0)
        await bucket.put("ours", b"3")
        await anext(watch)
        assert not path.exists()


async def test_dates_say_when_a_key_dies(tmp_path: Path, store: FileStore, wall: Wall) -> None:
    """A file dies ten seconds after its date, whoever reads it; without a lease it never does."""
    bucket = store.bucket("b")
    lease = await store.grant(3.0)
    await bucket.put("leased", b"", lease=lease)
    await bucket.put("kept", b"")
    folder = store.folder("b")
    assert int(os.stat(folder.path_of("leased")).st_mtime) == int(wall() - 7)
    assert os.stat(folder.path_of("kept")).st_mtime > time.time() + 10**8


async def test_a_jump_of_the_wall_clock_ends_nothing(
    store: FileStore, clock: ManualClock, wall: Wall
) -> None:
    bucket = store.bucket("b")
    lease = await store.grant(10.0)
    await bucket.put("a", b"", lease=lease)
    async with aclosing(bucket.watch()) as watch:
        listing = await anext(watch)
        assert isinstance(listing, Listing) and len(listing.entries) == 1
        for jump in (3600.0, -7200.0, 50_000.0):
            wall.ahead += jump
            assert await bucket.get("a") is not None
            clock.advance(4.0)
            await store.renew(lease)
        assert await bucket.get("a") is not None


async def test_who_was_away_too_long_has_lost_its_lease(
    store: FileStore, clock: ManualClock
) -> None:
    bucket = store.bucket("b")
    lease = await store.grant(10.0)
    await bucket.put("a", b"", lease=lease)
    clock.advance(12.0)
    assert await bucket.get("a") is None
    with pytest.raises(LeaseLostError):
        await store.renew(lease)


async def test_what_is_half_written_is_not_there(tmp_path: Path, store: FileStore) -> None:
    bucket = store.bucket("b")
    await bucket.put("a", b"1")
    folder = Path(store.folder("b").path)
    (folder / ".tmp_abc").write_bytes(b"half")
    (folder / "no key").write_bytes(b"")
    (folder / "%FF").write_bytes(b"")
    (folder / "nested").mkdir()
    old = folder / ".tmp_old"
    old.write_bytes(b"")
    os.utime(old, (1, 1))
    assert [entry.key for entry in (await bucket.entries()).entries] == ["a"]
    async with aclosing(bucket.watch()) as watch:
        await anext(watch)
    assert not old.exists() and (folder / ".tmp_abc").exists()


async def test_on_a_full_disk_the_old_value_stays(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = store.bucket("b")
    lease = await store.grant(10.0)
    await bucket.put("a", b"old", lease=lease)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_folder.os, "rename", full)
    with pytest.raises(StoreError, match="a: No space left on device") as caught:
        await bucket.put("a", b"new")
    assert caught.value.transient
    monkeypatch.undo()
    found = await bucket.get("a")
    assert found is not None and found.value == b"old"
    assert await store.renew(lease) == 10.0
    assert [path.name for path in store.folder("b").path.iterdir()] == ["a"]


async def test_a_writer_that_stands_still_holds_nobody_up_for_ever(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = store.bucket("b")
    await bucket.put("a", b"1")
    monkeypatch.setattr(file_folder, "_LOCK_TIMEOUT_S", 0.05)
    counter = store.folder("b").path.parent / file_folder.COUNTERS / "b"
    with counter.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process holds"):
            await bucket.put("a", b"2")
        assert (await bucket.entries()).entries[0].value == b"1"
    await bucket.put("a", b"2")


async def test_a_counter_that_was_lost_is_found_again(store: FileStore) -> None:
    bucket = store.bucket("b")
    await bucket.put("a", b"1")
    last = await bucket.put("a", b"2")
    (store.folder("b").path.parent / file_folder.COUNTERS / "b").write_bytes(b"")
    assert await bucket.put("b", b"") > last


async def test_a_key_whose_name_is_too_long(store: FileStore) -> None:
    with pytest.raises(StoreError, match="File name too long") as caught:
        await store.bucket("b").put("ü" * 100, b"")
    assert not caught.value.transient


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="DYN_FILE_KV: cannot write below"):
        FileStore(tmp_path / "file" / "below")


def test_a_disk_without_exact_dates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime
    monkeypatch.setattr(
        os, "utime", lambda path, ns: real(path, ns=tuple(n // 10**9 * 10**9 for n in ns))
    )
    with pytest.raises(ConfigError, match="keeps no dates to the nanosecond"):
        FileStore(tmp_path)


def test_the_folder_is_the_one_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "kv"))
    FileStore()
    assert (tmp_path / "kv").is_dir()


async def test_of_two_writes_at_a_time_the_later_one_stands_under_the_lease(tmp_path: Path) -> None:
    """Threads write them, and which of them is heard of first is chance."""
    store = FileStore(str(tmp_path))
    bucket = store.bucket("b")
    lease = await store.grant(60.0)
    earlier = await bucket.put("k", b"1", lease=lease)
    await bucket.put("k", b"2", lease=lease)
    store.attach("b", "k", lease, earlier)
    await store.renew(lease)
    found = await bucket.get("k")
    assert found is not None and (found.value, found.lease) == (b"2", lease)
    await store.revoke(lease)
    assert await bucket.get("k") is None


def no_values(folder: Path) -> None:
    """What stands where keys stand, and is none of them."""
    with open(folder / name_of_key("huge"), "wb") as file:
        file.truncate(3 << 30)
    os.mkfifo(folder / name_of_key("pipe"))
    (folder / name_of_key("folder")).mkdir()
    (folder / name_of_key("zeros")).symlink_to("/dev/zero")
    (folder / name_of_key("loop")).symlink_to(folder / name_of_key("loop"))
    (folder / name_of_key("dangling")).symlink_to("/nowhere")
    (folder / name_of_key("full")).write_bytes(bytes(MAX_VALUE_BYTES + 1))


async def test_files_that_are_no_values_hold_up_no_others(tmp_path: Path) -> None:
    store = FileStore(tmp_path, inotify=False)
    bucket = store.bucket("v1/instances")
    await bucket.put("before", b"1")
    folder = store.folder("v1/instances").path
    async with aclosing(bucket.watch()) as changes:
        listing = await anext(changes)
        assert isinstance(listing, Listing) and [each.key for each in listing.entries] == ["before"]
        no_values(folder)
        for key in ("huge", "pipe", "folder", "zeros", "loop", "dangling", "full"):
            if key != "loop":
                assert await bucket.get(key) is None
        await bucket.put("after", b"2")
        change = await anext(changes)
        assert isinstance(change, Entry) and (change.key, change.value) == ("after", b"2")
        # What was a value and is none any more is gone.
        with open(folder / name_of_key("before"), "wb") as file:
            file.truncate(3 << 30)
        change = await anext(changes)
        assert isinstance(change, Deleted) and change.key == "before"
    assert {entry.key for entry in (await bucket.entries()).entries} == {"after"}


async def test_a_file_that_cannot_be_read_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, inotify=False)
    bucket = store.bucket("v1/instances")
    real, broken = file_folder.FileFolder.read, True

    def read(folder: file_folder.FileFolder, key: str) -> Entry | None:
        if key == "broken" and broken:
            raise StoreError("the disk errs")
        return real(folder, key)

    monkeypatch.setattr(file_folder.FileFolder, "read", read)
    async with aclosing(bucket.watch()) as changes:
        await anext(changes)
        for key in ("broken", "fine"):
            folder = store.folder("v1/instances")
            folder.write(key, b"1", None, lambda entry: True) if key == "fine" else (
                folder.path / name_of_key(key)
            ).write_bytes(b"1")
        change = await anext(changes)
        assert isinstance(change, Entry) and change.key == "fine"
        broken = False
        change = await anext(changes)
        assert isinstance(change, Entry) and change.key == "broken"


async def test_values_that_are_too_long_are_not_written(store: FileStore) -> None:
    with pytest.raises(StoreError) as caught:
        await store.bucket("b").put("key", bytes(MAX_VALUE_BYTES + 1))
    assert not caught.value.transient
    assert await store.bucket("b").get("key") is None


async def test_more_files_than_keys_may_be_are_passed_over(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_folder, "MAX_KEYS", 3)
    bucket = store.bucket("b")
    for number in range(9):
        await bucket.put(str(number), b"1")
    assert len((await bucket.entries()).entries) == 3
