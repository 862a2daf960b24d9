"""WorkerWatch: follows what the workers of one endpoint have written into the store."""

from collections.abc import Collection

from ...base.identity import WorkerWithDpRank
from ...runtime.components import (
    INSTANCES,
    SERVICES,
    EndpointName,
    Instance,
    decode_instance,
)
from ...runtime.discovery import StoreWatch, full_key_string
from ...runtime.event_planes.zmq import scope_prefix
from ...runtime.kv_stores import Entry, KeyValueStore
from .discovered import DiscoveredWorker, EndpointWorkers
from .event_keys import EVENT_SOURCES, PublisherRecord, by_worker, decode_source
from .model_card import CARDS, ModelCard, decode_card, read_card_key


class WorkerWatch(StoreWatch):
    """`workers` and `sources` from `start` to `close`; `changed` is set when they may differ.
    `only`: workers of this kind alone."""

    def __init__(
        self,
        store: KeyValueStore,
        name: EndpointName,
        transports: Collection[str],
        only: str | None = None,
    ) -> None:
        super().__init__(store)
        self._name = name
        self._fleet = EndpointWorkers(transports, only=only)
        self._instances = [
            # Of the seed's keys some end in `{endpoint}-{id}`: what is not ours is left out below.
            self.follow(INSTANCES, full_key_string, decode_instance, name.prefix),
            self.follow(SERVICES, full_key_string, decode_instance, name.prefix[:-1]),
        ]
        self._cards = [
            self.follow(CARDS, full_key_string, _decode_named_card, prefix)
            for prefix in (name.prefix, f"{name}/")
        ]
        self._sources = self.follow(
            EVENT_SOURCES,
            full_key_string,
            decode_source,
            scope_prefix(name.namespace, name.component, name.endpoint),
        )

    @property
    def workers(self) -> dict[int, DiscoveredWorker]:
        """Those that can be called, by their ids."""
        found = self._found
        return self._fleet.workers(found.values(), self.cards, self._sources_of(found).values())

    @property
    def cards(self) -> dict[int, ModelCard]:
        """Their model cards, by their ids."""
        found: dict[int, ModelCard] = {}
        for watcher in reversed(self._cards):  # as with instances
            found.update(watcher.values.values())
        return found

    elsewhere: frozenset[int] = frozenset()
    """instances of other endpoints are not seen"""

    @property
    def sources(self) -> dict[WorkerWithDpRank, PublisherRecord]:
        """The event sources, by whose cache they speak of."""
        return self._sources_of(self._found)

    @property
    def _found(self) -> dict[int, Instance]:
        found: dict[int, Instance] = {}
        for watcher in reversed(self._instances):  # where there are two, that of today counts
            for instance in watcher.values.values():
                if instance.name == self._name:
                    found[instance.instance_id] = instance
        return found

    def _sources_of(self, found: Collection[int]) -> dict[WorkerWithDpRank, PublisherRecord]:
        return by_worker(self._sources.values.values(), found)


def _decode_named_card(entry: Entry) -> tuple[int, ModelCard]:
    """(instance's id, card). Those of adapters stand one level below and are passed over."""
    _, instance_id, adapter = read_card_key(entry.key)
    if adapter:
        raise ValueError(f"the card of an adapter: {adapter[:100]!r}")
    return instance_id, decode_card(entry)
