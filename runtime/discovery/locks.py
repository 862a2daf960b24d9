"""Locks between processes, for many readers or one writer, that a crash lets go of.

A writer holds the key `writer` of the bucket `v1/{prefix}`, a reader `readers/{id}`, each under
its lease. A process first writes its key and then looks for the keys of others: of a
reader and a writer at least the later one sees the other. So no transaction is needed, and both
may give way, but never do both have the lock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from secrets import token_hex

from ..kv_stores import Bucket, KeyValueStore, StoreError

WRITER = "writer"
READERS = "readers/"
POLL_S = 0.1
"""How often a waiter tries again."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that was got, until `release`, or until its lease has ended."""

    bucket: Bucket
    key: str
    revision: int

    async def still_held(self) -> bool:
        """Whether the store has us as holder."""
        entry = await self.bucket.get(self.key)
        return entry is not None and entry.revision == self.revision

    async def release(self) -> None:
        """Let go. Nothing if the lease has ended: another process may have the lock."""
        await self.bucket.delete(self.key, self.revision)


class ReadWriteLock:
    """One lock, by its prefix. `owner` names its holder to people, and readers to each other.

    For planners that share a fleet: no process of this package takes one yet.
    """

    def __init__(
        self,
        store: KeyValueStore,
        prefix: str,
        owner: str | None = None,
        *,
        rng: Random | None = None,
    ) -> None:
        self._bucket = store.bucket(f"v1/{prefix}")
        self._owner = owner or token_hex(8)
        self._rng = rng or Random()

    async def try_write(self, lease: int) -> HeldLock | None:
        """The lock for this process alone, if it is free."""
        return await self._unless(self._has_readers, await self._create(WRITER, lease))

    async def try_read(self, lease: int) -> HeldLock | None:
        """The lock shared with other readers, if no writer has it or waits for it now."""
        held = await self._create(f"{READERS}{self._owner}", lease)
        return await self._unless(self._has_writer, held)

    async def write(self, lease: int, timeout_s: float) -> HeldLock:
        """As try_write, waiting; TimeoutError after `timeout_s`.

        Once no other writer has it, no new reader gets in: it only waits for those that are.
        """
        held: HeldLock | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if held is None:
                        held = await self._create(WRITER, lease)
                    if held is not None and not await self._has_readers():
                        if await held.still_held():
                            return held
                        held = None  # our lease ended while we waited
                        continue
                    await self._pause()
        except BaseException:
            if held is not None:
                await held.release()
            raise

    async def read(self, lease: int, timeout_s: float) -> HeldLock:
        """As try_read, waiting; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            while (held := await self.try_read(lease)) is None:
                await self._pause()
            return held

    async def _pause(self) -> None:
        # Two that give way to each other must not meet again.
        await asyncio.sleep(POLL_S * self._rng.uniform(0.5, 1.5))

    async def _create(self, key: str, lease: int) -> HeldLock | None:
        making = asyncio.ensure_future(self._bucket.create(key, self._owner.encode(), lease=lease))
        try:
            revision = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The store may have made it all the same: let go of it once that is known.
            with suppress(StoreError):
                if (made := await making) is not None:
                    await HeldLock(self._bucket, key, made).release()
            raise
        return None if revision is None else HeldLock(self._bucket, key, revision)

    async def _unless(
        self, blocked: Callable[[], Awaitable[bool]], held: HeldLock | None
    ) -> HeldLock | None:
        """The lock, or None, with nothing held, if another process blocks it or on cancelling."""
        if held is None:
            return None
        try:
            if not await blocked():
                return held
            await held.release()
        except BaseException:
            await held.release()  # no caller knows of it
            raise
        return None

    async def _has_writer(self) -> bool:
        return await self._bucket.get(WRITER) is not None

    async def _has_readers(self) -> bool:
        return bool((await self._bucket.entries(READERS)).entries)
