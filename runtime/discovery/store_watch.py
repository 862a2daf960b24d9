"""What follows a store: several of its prefixes as one, and whatever is kept in step with them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeVar

import structlog

from ...base.errors import ConfigError
from ...process.supervised import stopped, supervise
from ..kv_stores import Bucket, Entry, KeyValueStore, StoreError
from .prefix_watcher import PrefixWatcher

FIRST_LISTING_S = 5.0
"""How long a start waits for the store. Without it, things are found once it is there."""
LOOK_AGAIN_S = 1.0
LEAST_PAUSE_S = 0.05
"""Between two looks: a fleet that registers all at once is not worked out anew for each of it."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
log = structlog.get_logger(__name__)


class Watch(Protocol):
    """Knows what is there from `start` to `close`; `changed` is set when that may differ."""

    changed: asyncio.Event

    async def start(self) -> None:
        """Returns once all that is there is known. StoreError if the store refuses us."""

    async def close(self) -> None:
        """Follow it no more. Idempotent."""


class StoreWatch:
    """A Watch of all prefixes that are followed. The store is closed with it."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._watchers: list[PrefixWatcher[Any, Any]] = []
        self.changed = asyncio.Event()

    def follow(
        self,
        bucket: str,
        key_of: Callable[[Bucket, str, Entry], K],
        decode: Callable[[Entry], V],
        prefix: str = "",
    ) -> PrefixWatcher[K, V]:
        """The values below a prefix of a bucket; before `start`."""
        watcher = PrefixWatcher(self._store.bucket(bucket), key_of, decode, prefix=prefix)
        watcher.listeners.append(lambda key, value: self.changed.set())
        self._watchers.append(watcher)
        return watcher

    async def start(self) -> None:
        """Returns once all that is there is known. StoreError if the store refuses us."""
        await asyncio.gather(*(watcher.start() for watcher in self._watchers))
        self.changed.set()

    async def close(self) -> None:
        """Follow it no more, and let go of the store. Idempotent."""
        for watcher in self._watchers:
            await watcher.close()
        await self._store.close()


class Reconciler:
    """Calls `reconcile` when a watch has changed, and now and then, from `start` to `close`.

    The watch is started and closed with it.
    """

    def __init__(
        self, name: str, store: str, watch: Watch, reconcile: Callable[[], Awaitable[None]]
    ) -> None:
        """`name` is the task's, `store` what the store is called in the log."""
        self._name, self._store, self._watch, self._reconcile = name, store, watch, reconcile
        self._refusal: StoreError | None = None
        self._task: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()

    async def start(self) -> None:
        """Returns once what is there was reconciled, or the store takes long. ConfigError if it
        refuses us."""
        self._task = supervise(self._name, self._follow)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LISTING_S):
                await self._listed.wait()
        if self._refusal is not None:
            raise ConfigError(f"discovery: {self._refusal}", key="discovery")
        if not self._listed.is_set():
            log.warning("the store does not answer yet", store=self._store)

    async def close(self) -> None:
        """Idempotent."""
        await stopped(self._task)
        await self._watch.close()

    async def _follow(self) -> None:
        try:
            await self._watch.start()
        except StoreError as error:
            self._refusal = error
            self._listed.set()
            return
        while True:
            self._watch.changed.clear()
            await self._reconcile()
            self._listed.set()
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._watch.changed.wait()
