"""What a process has written about itself, kept in the store for as long as it lives."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from structlog import get_logger

from ...base.backoff import Backoff
from ...base.clock import Clock, SystemClock
from ...base.outage_log import OutageLog
from ...process.supervised import stopped, supervise
from ..kv_stores import LEASE_TTL_S, KeyValueStore, LeaseLostError, StoreError
from .lease_keep_alive import LeaseKeepAlive, LeaseStep, renew_lease

AT_ONCE = 16
"""Keys that are written again, or looked at, at the same time."""
TURNS = 4
"""Renewals of the lease in which every key is looked at once, if they are not too many."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """One key that stands under the lease."""

    bucket: str
    key: str
    value: bytes


class Registrations:
    """Keys under one lease, which is renewed from `start` to `close`.

    When the lease was lost it is granted again and everything is written again: what serves goes
    on serving all the while. `on_lost` are called each time that happens. Who writes a key of ours
    is seen in our place; once its key is gone, ours is written again, within some TURNS renewals.
    Where one key is gone the others may be, too: all are looked at, at once.
    """

    def __init__(
        self,
        store: KeyValueStore,
        ttl_s: float = LEASE_TTL_S,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self.keep_alive = LeaseKeepAlive(ttl_s, now=self._clock.now())
        self._wanted: dict[tuple[str, str], Registration] = {}
        self._missing: dict[tuple[str, str], Registration] = {}
        self._registering: set[tuple[str, str]] = set()  # whose first write is under way
        self._looked_at = 0  # place of the next key to look at
        away, back = "registrations wait for the store", "the store takes registrations again"
        self._outage = OutageLog(log, away, back)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_lost: list[Callable[[], None]] = []

    @property
    def lease(self) -> int:
        """The lease's id; RuntimeError before `start`."""
        if self.keep_alive.lease is None:
            raise RuntimeError("the registrations were not started")
        return self.keep_alive.lease

    @property
    def complete(self) -> bool:
        """Whether the store has everything that is registered, by what we know."""
        return not self._missing and self.keep_alive.held(self._clock.now())

    async def start(self, timeout_s: float | None = None) -> None:
        """Get a lease, trying for `timeout_s`. StoreError if there is none by then."""
        if self._task is not None:
            return
        backoff = Backoff(first=0.05, cap=5.0)
        end = None if timeout_s is None else self._clock.now() + timeout_s
        while self.keep_alive.lease is None:
            try:
                await self._take_step()
            except StoreError as error:
                delay = backoff.next()
                late = end is not None and self._clock.now() + delay >= end
                if late or not error.transient:
                    raise
                self._outage.on_failed(error=str(error))
                await asyncio.sleep(delay)
        self._outage.on_well()
        self._task = supervise("lease", self._keep)

    async def register(self, bucket: str, key: str, value: bytes) -> None:
        """Write a key under the lease, and from now on whenever it was lost.

        It counts as registered even if this raises StoreError: it is written when that works.
        """
        registration = Registration(bucket, key, bytes(value))
        self._wanted[bucket, key] = self._missing[bucket, key] = registration
        # Not twice at a time: the second write could come after one of another process.
        self._registering.add((bucket, key))
        try:
            await self._write(registration)
        finally:
            self._registering.discard((bucket, key))
            if (bucket, key) in self._missing:
                self._changed.set()

    async def unregister(self, bucket: str, key: str) -> None:
        """Delete a key, and write it no more. StoreError if it may stay until the lease ends."""
        self._wanted.pop((bucket, key), None)
        self._missing.pop((bucket, key), None)
        await self._store.bucket(bucket).delete(key)

    async def abandon(self) -> None:
        """Renew the lease no more, and leave it to its end, as a process that crashed."""
        task, self._task = self._task, None
        await stopped(task)

    async def close(self) -> None:
        """Give the lease back and stop. Without the store, it ends by itself. Idempotent."""
        task, self._task = self._task, None
        await stopped(task)
        self._wanted.clear()
        self._missing.clear()
        if task is not None and self.keep_alive.lease is not None:
            try:
                await self._store.revoke(self.keep_alive.lease)
            except StoreError as error:
                log.warning("the lease is left to its end", error=str(error))

    async def _keep(self) -> None:
        backoff = Backoff(first=0.05, cap=5.0)
        retry = self._clock.now()
        while True:
            due = self.keep_alive.due
            if self._to_write():
                due = min(due, retry)
            try:
                async with asyncio.timeout(max(0.0, due - self._clock.now())):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                if asked := self._clock.now() >= self.keep_alive.due:
                    await self._take_step()
                missing = self._to_write()
                await self._write_all(missing)
            except StoreError as error:
                self._outage.on_failed(error=str(error))
                retry = self._clock.now() + backoff.next()
            else:
                if asked or missing:
                    self._outage.on_well()
                    backoff.reset()

    async def _take_step(self) -> None:
        """Grant or renew. StoreError if that failed; the keep-alive knows."""
        try:
            if await renew_lease(self.keep_alive, self._store, self._clock) is LeaseStep.GRANT:
                self._missing.update(self._wanted)
            else:
                await self._look_at_some()
        except LeaseLostError:
            self._on_lost()

    async def _look_at_some(self) -> None:
        """Notice keys that are gone while the lease is not: another process wrote them, and left.
        The next ones in turn."""
        places = list(self._wanted)
        count = min(AT_ONCE, -(-len(places) // TURNS))
        begin = self._looked_at if self._looked_at < len(places) else 0
        self._looked_at = begin + count
        if await self._look_at(places[begin : begin + count]):
            for at in range(0, len(places), AT_ONCE):
                await self._look_at(places[at : at + AT_ONCE])

    async def _look_at(self, places: list[tuple[str, str]]) -> bool:
        """Whether some of them were gone, unnoticed until now."""
        some = [place for place in places if place not in self._missing]
        gone = False
        found = await asyncio.gather(
            *(self._store.bucket(bucket).get(key) for bucket, key in some), return_exceptions=True
        )
        for place, entry in zip(some, found, strict=True):
            if isinstance(entry, BaseException) and not isinstance(entry, StoreError):
                raise entry
            registration = self._wanted.get(place)
            if entry is None and registration is not None:
                log.info("a key is written again, who wrote it last is gone", key=place[1][:200])
                self._missing[place] = registration
                gone = True
        return gone

    def _to_write(self) -> list[Registration]:
        """What is missing and can be written now: nothing while there is no lease for it."""
        if self.keep_alive.step is LeaseStep.GRANT:
            return []
        return [each for place, each in self._missing.items() if place not in self._registering]

    async def _write_all(self, missing: list[Registration]) -> None:
        for at in range(0, len(missing), AT_ONCE):
            writes = (self._write(registration) for registration in missing[at : at + AT_ONCE])
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def _write(self, registration: Registration) -> None:
        place = registration.bucket, registration.key
        try:
            bucket = self._store.bucket(registration.bucket)
            await bucket.put(registration.key, registration.value, lease=self.lease)
        except LeaseLostError:
            if self.keep_alive.step is LeaseStep.RENEW:
                self._on_lost()
            self._changed.set()
            return
        if self._missing.get(place) is registration:
            del self._missing[place]
        elif place not in self._wanted:  # unregistered while it was written
            await self._store.bucket(registration.bucket).delete(registration.key)

    def _on_lost(self) -> None:
        self.keep_alive.on_lost(self._clock.now())
        self._missing.update(self._wanted)
        log.warning("the lease was lost: everything is registered again", keys=len(self._wanted))
        for listener in self.on_lost:
            listener()
