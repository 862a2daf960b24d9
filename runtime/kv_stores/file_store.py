"""A key-value store in files that several processes share: a folder per bucket, a file per key.

Names, contents and dates are those of Dynamo's file backend, so its processes and ours meet in
one folder.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ...base.clock import Clock, SystemClock
from ...process.settings import bad_setting
from .file_folder import FileDates, FileFolder, Found
from .folder_watch import FolderWatch
from .store import (
    LEASE_TTL_S,
    Deleted,
    Entry,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
    check_name,
    new_lease_id,
)

_PROBE_NS = 1_700_000_000_123_456_789
T = TypeVar("T")


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends: float
    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    """(bucket, key) to the revision that we wrote"""


class FileStore:
    """The store below one folder. Leases are of this process: their keys die with it."""

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        clock: Clock | None = None,
        wall: Callable[[], float] | None = None,
        inotify: bool = True,
    ) -> None:
        """`root` not given: DYN_FILE_KV, or dynamo_store_kv among the temporary files.

        ConfigError if it cannot be written to, or keeps no exact dates.
        """
        chosen = root or os.environ.get("DYN_FILE_KV")
        self._root = Path(chosen or Path(tempfile.gettempdir()) / "dynamo_store_kv")
        self._clock = clock or SystemClock()
        self.dates = FileDates(self._clock, wall)
        self._inotify = inotify
        self._leases: dict[int, _Lease] = {}
        _probe(self._root)

    def bucket(self, name: str) -> "FileBucket":
        check_name("bucket", name)
        return FileBucket(self, name, self.folder(name), self._inotify)

    def folder(self, bucket: str) -> FileFolder:
        return FileFolder(self._root, bucket, self.dates)

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        lease = lease or new_lease_id()
        held = self._leases.get(lease)
        if held is not None and self._clock.now() < held.ends:
            await self.renew(lease)
        else:
            self._leases[lease] = _Lease(ttl_s, self._clock.now() + ttl_s)
        return lease

    async def renew(self, lease: int) -> float:
        held = self.held(lease)
        for bucket, key in list(held.keys):
            folder, revision = self.folder(bucket), held.keys[bucket, key]
            if not await asyncio.to_thread(folder.touch, key, revision, held.ttl_s):
                held.keys.pop((bucket, key), None)  # another process wrote or deleted it
        held.ends = self._clock.now() + held.ttl_s
        return held.ttl_s

    async def revoke(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        for (bucket, key), revision in (held.keys if held else {}).items():
            folder = self.folder(bucket)
            await asyncio.to_thread(folder.remove, key, _stands_at(revision))

    async def close(self) -> None:
        pass

    def held(self, lease: int) -> _Lease:
        """LeaseLostError if it has ended. Its files are dead by their dates then."""
        held = self._leases.get(lease)
        if held is None or self._clock.now() >= held.ends:
            self._leases.pop(lease, None)
            raise LeaseLostError(f"the lease {lease:x} has ended")
        return held

    def lease_of(self, bucket: str, entry: Entry) -> int | None:
        for lease, held in self._leases.items():
            if held.keys.get((bucket, entry.key)) == entry.revision:
                return lease
        return None

    def seconds_left(self, lease: int | None) -> float | None:
        return None if lease is None else self.held(lease).ends - self._clock.now()

    def attach(self, bucket: str, key: str, lease: int | None, revision: int) -> None:
        """A key was written at `revision`, perhaps before another write that was seen sooner:
        threads wrote both."""
        if any(held.keys.get((bucket, key), 0) > revision for held in self._leases.values()):
            return
        for held in self._leases.values():
            held.keys.pop((bucket, key), None)
        if lease is not None:
            self.held(lease).keys[bucket, key] = revision


class FileBucket:
    """A bucket of a FileStore."""

    def __init__(self, store: FileStore, name: str, folder: FileFolder, inotify: bool) -> None:
        self._store, self.name, self._folder = store, name, folder
        self._inotify = inotify

    async def get(self, key: str) -> Entry | None:
        check_name("key", key)
        return self._with_lease(await asyncio.to_thread(self._folder.read, key))

    async def entries(self, prefix: str = "") -> Listing:
        return await asyncio.to_thread(self._list, prefix)

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        revision = await self._write(key, value, lease, lambda entry: True)
        assert revision is not None
        return revision

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        return await self._write(key, value, lease, lambda entry: entry is None)

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        return await self._write(key, value, lease, _stands_at(revision))

    async def delete(self, key: str, revision: int | None = None) -> bool:
        fits = _always if revision is None else _stands_at(revision)
        return await asyncio.to_thread(self._folder.remove, key, fits)

    async def watch(self, prefix: str = "") -> Watch:
        await asyncio.to_thread(self._folder.make)
        with closing(FolderWatch(self._folder.path, inotify=self._inotify)) as folder_watch:
            seen = _Seen(self._folder, prefix)
            await asyncio.to_thread(seen.look)
            entries = (entry for _, entry in sorted(seen.entries.items()))
            yield Listing(tuple(map(self._leased, entries)), seen.revision)
            while True:
                await folder_watch.wait(seen.seconds_to_death)
                for change in await asyncio.to_thread(seen.look):
                    yield self._leased(change) if isinstance(change, Entry) else change

    def _list(self, prefix: str) -> Listing:
        revision = self._folder.revision()
        keys = sorted(file.key for file in self._folder.scan() if file.key.startswith(prefix))
        entries = (self._with_lease(self._folder.read(key)) for key in keys)
        return Listing(tuple(entry for entry in entries if entry is not None), revision)

    async def _write(
        self, key: str, value: bytes, lease: int | None, fits: Callable[[Entry | None], bool]
    ) -> int | None:
        left = self._store.seconds_left(lease)
        revision = await asyncio.to_thread(self._folder.write, key, value, left, fits)
        if revision is not None:
            self._store.attach(self.name, key, lease, revision)
        return revision

    def _with_lease(self, entry: Entry | None) -> Entry | None:
        return None if entry is None else self._leased(entry)

    def _leased(self, entry: Entry) -> Entry:
        lease = self._store.lease_of(self.name, entry)
        return Entry(entry.key, entry.value, entry.revision, lease)


class _Seen:
    """What a watch has reported of its folder so far."""

    def __init__(self, folder: FileFolder, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._files: dict[str, Found] = {}
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.seconds_to_death: float | None = None

    def look(self) -> list[Entry | Deleted]:
        """What changed since the last look, in the order of revisions. Blocking."""
        try:
            return self._look()
        except StoreError:
            return []  # the folder cannot be read now: the next look says all

    def _look(self) -> list[Entry | Deleted]:
        self.revision = max(self.revision, self._folder.revision())
        changes: list[Entry | Deleted] = []
        alive: dict[str, Found] = {}
        deaths: list[float] = []
        unread: list[str] = []  # others are read nevertheless, and these again at the next look
        for file in self._folder.scan():
            if not file.key.startswith(self._prefix):
                continue
            if not self._folder.alive(file):
                self._folder.bury(file)
                continue
            alive[file.key] = file
            if (left := self._folder.seconds_to_death(file)) is not None:
                deaths.append(left)
            before = self._files.get(file.key)
            if before != file:
                same_file = before is not None and before.inode == file.inode
                try:
                    changes += self._read(file.key, same_file)
                except StoreError:
                    unread.append(file.key)
        for key in [key for key in self.entries if key not in alive]:
            # A folder that changes while it is listed may hide a file that was there all along.
            there = self._folder.look(key)
            if there is not None and self._folder.alive(there):
                alive[key] = there
                changes += self._read(key, False)
            else:
                del self.entries[key]
                changes.append(Deleted(key, self._folder.revision()))
        for key in unread:
            del alive[key]
        self._files = alive
        self.seconds_to_death = max(0.0, min(deaths)) + 0.001 if deaths else None
        return sorted(changes, key=lambda change: change.revision)

    def _read(self, key: str, same_file: bool) -> list[Entry | Deleted]:
        """The key's value, if it was written since. Touching a file, as Dynamo's processes do to
        renew it, alters what we take for its revision, and is no change."""
        entry, before = self._folder.read(key), self.entries.get(key)
        if entry is None or (same_file and before is not None and before.value == entry.value):
            return []
        self.entries[key] = entry
        return [entry]


def _always(entry: Entry | None) -> bool:
    return True


def _stands_at(revision: int) -> Callable[[Entry | None], bool]:
    return lambda entry: entry is not None and entry.revision == revision


def _probe(root: Path) -> None:
    """That files can be written below `root`, and keep their dates to the nanosecond."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".tmp_") as file:
            os.utime(file.name, ns=(_PROBE_NS, _PROBE_NS))
            exact = os.stat(file.name).st_mtime_ns == _PROBE_NS
    except OSError as error:
        text = f"cannot write below {root}: {error.strerror or error}"
        raise bad_setting("DYN_FILE_KV", text) from None
    if not exact:
        raise bad_setting("DYN_FILE_KV", f"{root} keeps no dates to the nanosecond")
