"""WorkerWatch: follows what the workers of one endpoint have written into the store."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from structlog import get_logger

from ...runtime.components import (
    INSTANCES,
    SERVICES,
    EndpointName,
    Instance,
    decode_instance,
)
from ...runtime.discovery import PrefixWatcher, full_key_string
from ...runtime.identity import WorkerWithDpRank
from ...runtime.kv_stores import Entry, KeyValueStore
from .discovered import DiscoveredWorker, Fleet
from .event_keys import EVENT_SOURCES, EventSource, decode_source, scope_prefix
from .model_card import CARDS, ModelCard, decode_card

log = get_logger(__name__)


class WorkerWatch:
    """`workers` and `sources` from `start` to `close`; `changed` is set when they may differ."""

    def __init__(
        self, store: KeyValueStore, name: EndpointName, transports: Collection[str]
    ) -> None:
        self._store, self._name = store, name
        self._fleet = Fleet(transports)
        self.changed = asyncio.Event()
        self._instances = [
            # Of the seed's keys some end in `{endpoint}-{id}`: what is not ours is left out below.
            self._watch(INSTANCES, decode_instance, name.prefix),
            self._watch(SERVICES, decode_instance, name.prefix[:-1]),
        ]
        self._cards = self._watch(CARDS, _decode_named_card, name.prefix)
        self._sources = self._watch(EVENT_SOURCES, decode_source, scope_prefix(name))
        self._watchers: list[PrefixWatcher[str, Any]] = [
            *self._instances,
            self._cards,
            self._sources,
        ]

    @property
    def workers(self) -> dict[int, DiscoveredWorker]:
        """Those that can be called, by their ids."""
        found: dict[int, Instance] = {}
        for watcher in reversed(self._instances):  # where there are two, that of today counts
            for instance in watcher.values.values():
                if instance.name == self._name:
                    found[instance.instance_id] = instance
        cards = dict(self._cards.values.values())
        return self._fleet.workers(found.values(), cards, self._sources.values.values())

    elsewhere: frozenset[int] = frozenset()
    """whoever is not of this endpoint is not seen"""

    @property
    def sources(self) -> dict[WorkerWithDpRank, EventSource]:
        """The event sources, by whose cache they speak of."""
        return {source.worker: source for source in self._sources.values.values()}

    async def start(self) -> None:
        """Returns once all that is there is known. StoreError if the store refuses us."""
        await asyncio.gather(*(watcher.start() for watcher in self._watchers))
        self.changed.set()

    async def close(self) -> None:
        """Follow it no more, and let go of the store. Idempotent."""
        for watcher in self._watchers:
            await watcher.close()
        await self._store.close()

    def _watch(self, bucket: str, decode: Callable[[Entry], Any], prefix: str) -> Any:
        watcher: PrefixWatcher[str, Any] = PrefixWatcher(
            self._store.bucket(bucket), full_key_string, decode, prefix=prefix
        )
        watcher.listeners.append(lambda key, value: self.changed.set())
        return watcher


def _decode_named_card(entry: Entry) -> tuple[int, ModelCard]:
    """(instance's id, card). Those of adapters stand one level below and are passed over."""
    return int(entry.key.rpartition("/")[2], 16), decode_card(entry)
