"""A key-value store inside one process: for embedding, simulations and tests."""

from dataclasses import dataclass, field

from ...base.clock import Clock, SystemClock
from .pending_changes import PendingChanges
from .store import (
    LEASE_TTL_S,
    Deleted,
    Entry,
    LeaseLostError,
    Listing,
    Watch,
    check_name,
    new_lease_id,
)


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends: float
    keys: set[tuple[str, str]] = field(default_factory=set)


class MemoryStore:
    """Shared by all who hold it; each change is seen at once. Closing it changes nothing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._revision = 0
        self._buckets: dict[str, MemoryBucket] = {}
        self._leases: dict[int, _Lease] = {}

    def bucket(self, name: str) -> "MemoryBucket":
        check_name("bucket", name)
        if name not in self._buckets:
            self._buckets[name] = MemoryBucket(self, name)
        return self._buckets[name]

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        self.expire()
        lease = lease or new_lease_id()
        held = self._leases.setdefault(lease, _Lease(ttl_s, 0.0))
        held.ttl_s, held.ends = ttl_s, self._clock.now() + ttl_s
        return lease

    async def renew(self, lease: int) -> float:
        held = self._held(lease)
        held.ends = self._clock.now() + held.ttl_s
        return held.ttl_s

    async def revoke(self, lease: int) -> None:
        self.expire()
        if lease in self._leases:
            self._end(lease)

    async def close(self) -> None:
        pass

    def expire(self) -> None:
        """End the leases whose time is over. Every call does that first."""
        now = self._clock.now()
        for lease in [id for id, held in self._leases.items() if held.ends <= now]:
            self._end(lease)

    def next_revision(self) -> int:
        self._revision += 1
        return self._revision

    @property
    def revision(self) -> int:
        return self._revision

    def seconds_to_expiry(self) -> float | None:
        """Until the next lease would end; None if there is none."""
        ends = min((held.ends for held in self._leases.values()), default=None)
        return None if ends is None else max(0.0, ends - self._clock.now())

    def attach(self, bucket: str, key: str, lease: int | None, before: int | None) -> None:
        """Put a key under a lease instead of another one. LeaseLostError if it has ended."""
        held = None if lease is None else self._held(lease)
        if before in self._leases:
            self._leases[before].keys.discard((bucket, key))
        if held is not None:
            held.keys.add((bucket, key))

    def _held(self, lease: int) -> _Lease:
        self.expire()
        if lease not in self._leases:
            raise LeaseLostError(f"the lease {lease:x} has ended")
        return self._leases[lease]

    def _end(self, lease: int) -> None:
        for bucket, key in sorted(self._leases.pop(lease).keys):
            self._buckets[bucket].remove(key)


class MemoryBucket:
    """A bucket of a MemoryStore."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store, self.name = store, name
        self._entries: dict[str, Entry] = {}
        self._watches: set[PendingChanges] = set()

    async def get(self, key: str) -> Entry | None:
        self._store.expire()
        return self._entries.get(check_name("key", key))

    async def entries(self, prefix: str = "") -> Listing:
        self._store.expire()
        found = (entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix))
        return Listing(tuple(found), self._store.revision)

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        return self._write(key, value, lease)

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        return None if await self.get(key) else self._write(key, value, lease)

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        found = await self.get(key)
        if found is None or found.revision != revision:
            return None
        return self._write(key, value, lease)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        found = await self.get(key)
        if found is None or revision not in (None, found.revision):
            return False
        self._store.attach(self.name, key, None, found.lease)
        self.remove(key)
        return True

    async def watch(self, prefix: str = "") -> Watch:
        pending, listing = PendingChanges(prefix), await self.entries(prefix)
        self._watches.add(pending)
        try:
            yield listing
            while True:
                await self._wait(pending)
                for change in pending.take():
                    yield change
        finally:
            self._watches.discard(pending)

    def remove(self, key: str) -> None:
        """Take a key away that is there, its lease having been seen to."""
        del self._entries[key]
        self._notify(Deleted(key, self._store.next_revision()))

    async def _wait(self, pending: "PendingChanges") -> None:
        while not pending:
            await pending.wait(self._store.seconds_to_expiry())
            self._store.expire()

    def _write(self, key: str, value: bytes, lease: int | None) -> int:
        check_name("key", key)
        before = self._entries.get(key)
        self._store.attach(self.name, key, lease, before.lease if before else None)
        entry = Entry(key, bytes(value), self._store.next_revision(), lease)
        self._entries[key] = entry
        self._notify(entry)
        return entry.revision

    def _notify(self, change: Entry | Deleted) -> None:
        for pending in self._watches:
            pending.add(change)
