"""Leader: which of several planners acts, by a lock in the store that a crash lets go of."""

import structlog

from ...base.clock import Clock
from ...runtime.discovery import HeldLock, ReadWriteLock, Registrations
from ...runtime.kv_stores import KeyValueStore, StoreError

log = structlog.get_logger(__name__)

START_S = 10.0
"""How long a start waits for the store."""


class Leader:
    """Asked by `leads` before each act. Who leads goes on leading while its lease lives; an act is
    begun only within it, by our own clock, which may end sooner than the store's, never later."""

    def __init__(self, store: KeyValueStore, namespace: str, owner: str, clock: Clock) -> None:
        self._clock = clock
        self._lock = ReadWriteLock(store, f"planner_lock/{namespace}", owner)
        self._lease = Registrations(store, clock=clock)
        self._lease.on_lost.append(self._on_lost)
        self._held: HeldLock | None = None

    @property
    def leads(self) -> bool:
        """Whether we may act now, by what is known without asking."""
        return self._held is not None and self._lease.keep_alive.held(self._clock.now())

    async def start(self) -> None:
        """StoreError if the store gives no lease for START_S."""
        await self._lease.start(START_S)

    async def look(self) -> bool:
        """Take the lock if it is free, and see whether it is still ours. StoreError."""
        if self._held is not None and not await self._held.still_held():
            self._on_lost()
        if self._held is None:
            self._held = await self._lock.try_write(self._lease.lease)
            if self._held is not None:
                log.info("this planner leads")
        return self.leads

    async def close(self) -> None:
        """Let go. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            try:
                await held.release()
            except StoreError as error:
                log.warning("the lock is left to its lease's end", error=str(error))
        await self._lease.close()

    async def abandon(self) -> None:
        """Leave everything to the lease's end, as a process that crashed."""
        self._held = None
        await self._lease.abandon()

    def _on_lost(self) -> None:
        if self._held is not None:
            self._held = None
            log.warning("this planner leads no more")
