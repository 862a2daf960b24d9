"""The keys below a prefix as typed values, kept up to date."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic, TypeAlias, TypeVar

from structlog import get_logger

from ...base import unreadable
from ...process.supervised import stopped, supervise
from ..kv_stores import (
    MAX_KEYS,
    MAX_VALUE_BYTES,
    Bucket,
    Change,
    Deleted,
    Entry,
    Listing,
    StoreError,
)

K = TypeVar("K")
V = TypeVar("V")
KeyExtractor: TypeAlias = Callable[[Bucket, str, Entry], K]
"""The key of an entry, by its bucket and the prefix that is watched; ValueError if it has none."""

MAX_BYTES = 64 << 20
"""Of all values together; what is more is passed over."""

log = get_logger(__name__)


def lease_id(bucket: Bucket, prefix: str, entry: Entry) -> int:
    """The lease that the entry stands under: the store's word, or the key's last segment."""
    if entry.lease is not None:
        return entry.lease
    return int(entry.key.rpartition("/")[2], 16)


def key_string(bucket: Bucket, prefix: str, entry: Entry) -> str:
    """What the key has behind the prefix."""
    return entry.key.removeprefix(prefix)


def full_key_string(bucket: Bucket, prefix: str, entry: Entry) -> str:
    """The bucket and the key."""
    return f"{bucket.name}/{entry.key}"


class PrefixWatcher(Generic[K, V]):
    """`values` from `start` to `close`. A value that cannot be decoded counts as absent.

    `listeners` are called with (key, value) where there is another value, (key, None) where there
    is none any more. Where several entries have one key, the latest counts.
    """

    def __init__(
        self,
        bucket: Bucket,
        key_of: KeyExtractor[K],
        decode: Callable[[Entry], V],
        *,
        prefix: str = "",
    ) -> None:
        """`decode` raises ValueError for what is no such value."""
        self._bucket, self._prefix = bucket, prefix
        self._key_of, self._decode = key_of, decode
        self._entries: dict[str, tuple[K, Entry, V]] = {}
        self._bytes = 0  # of their values
        self._names: dict[K, set[str]] = {}
        self._values: dict[K, V] = {}
        self._listed = asyncio.Event()
        self._refusal: StoreError | None = None
        self._task: asyncio.Task[None] | None = None
        self.listeners: list[Callable[[K, V | None], None]] = []

    @property
    def values(self) -> Mapping[K, V]:
        return self._values

    async def start(self) -> None:
        """Watch; returns once the first listing is in. StoreError if the store refuses us."""
        if self._task is None:
            self._task = supervise(f"watch-{self._bucket.name}", self._follow)
        await self._listed.wait()
        if self._refusal is not None:
            await self.close()
            raise self._refusal

    async def close(self) -> None:
        task, self._task = self._task, None
        await stopped(task)

    def take_in(self, change: Change) -> None:
        """Apply one change of the watch."""
        if isinstance(change, Listing):
            gone = self._entries.keys() - {entry.key for entry in change.entries}
            for key in gone:
                self._forget(key)
            for entry in change.entries:
                self._learn(entry)
            self._listed.set()
        elif isinstance(change, Deleted):
            self._forget(change.key)
        else:
            self._learn(change)

    async def _follow(self) -> None:
        try:
            async with aclosing(self._bucket.watch(self._prefix)) as changes:
                async for change in changes:
                    self.take_in(change)
        except StoreError as error:
            if self._listed.is_set():
                raise  # it let us in before: it is asked again
            self._refusal = error
            self._listed.set()

    def _learn(self, entry: Entry) -> None:
        before = self._entries.get(entry.key)
        if before is not None and before[1] == entry:
            return
        try:
            self._check_capacity(entry, 0 if before is None else len(before[1].value))
            key = self._key_of(self._bucket, self._prefix, entry)
            value = self._decode(entry)
        except ValueError as error:
            unreadable.counts["store"] += 1
            log.warning("a key is passed over", bucket=self._bucket.name, key=entry.key[:200],
                        error=str(error)[:200])  # fmt: skip
            self._forget(entry.key)
            return
        if before is not None and before[0] != key:
            self._forget(entry.key)
            before = None
        self._bytes += len(entry.value) - (0 if before is None else len(before[1].value))
        self._entries[entry.key] = (key, entry, value)
        self._names.setdefault(key, set()).add(entry.key)
        self._settle(key)

    def _check_capacity(self, entry: Entry, size_before: int) -> None:
        """ValueError if there is no room for a value."""
        size = len(entry.value)
        if size > MAX_VALUE_BYTES:
            raise ValueError(f"its {size} bytes are more than {MAX_VALUE_BYTES}")
        if self._bytes - size_before + size > MAX_BYTES:
            raise ValueError(f"all values together have more than {MAX_BYTES} bytes")
        if entry.key not in self._entries and len(self._entries) >= MAX_KEYS:
            raise ValueError(f"there are more than {MAX_KEYS} keys")

    def _forget(self, name: str) -> None:
        if (found := self._entries.pop(name, None)) is not None:
            self._bytes -= len(found[1].value)
            self._names[found[0]].discard(name)
            self._settle(found[0])

    def _settle(self, key: K) -> None:
        """Let `values` have the latest of the entries with this key."""
        if names := self._names[key]:
            found = (self._entries[name] for name in names)
            _, _, value = max(found, key=lambda known: known[1].revision)
            if key not in self._values or self._values[key] != value:
                self._values[key] = value
                self._notify(key, value)
            return
        del self._names[key]
        if self._values.pop(key, None) is not None:
            self._notify(key, None)

    def _notify(self, key: K, value: V | None) -> None:
        for listener in self.listeners:
            listener(key, value)
