"""ModelWatcher: follows the model cards of a store, with the instances and event sources beside."""

from collections.abc import Mapping

from ...base.identity import WorkerWithDpRank
from ...runtime.components import INSTANCES, SERVICES, EndpointName, Instance, decode_instance
from ...runtime.discovery import StoreWatch, full_key_string
from ...runtime.kv_stores import Bucket, Entry, KeyValueStore
from ...workers.records import (
    CARDS,
    EVENT_SOURCES,
    ModelCard,
    PublisherRecord,
    by_worker,
    decode_card,
    decode_source,
    read_card_key,
)
from .worker_sets import CardKey, NamespaceFilter, Refusal, SetName, WorkerSet, worker_sets


class ModelWatcher(StoreWatch):
    """`sets` and `sources` from `start` to `close`; `changed` is set when they may differ."""

    def __init__(self, store: KeyValueStore, wanted: NamespaceFilter) -> None:
        """The store is closed with us."""
        super().__init__(store)
        self._wanted = wanted
        self._instances = [
            self.follow(INSTANCES, full_key_string, decode_instance),
            self.follow(SERVICES, full_key_string, decode_instance),
        ]
        self._cards = self.follow(CARDS, _card_key, _card_or_reason)
        self._sources = self.follow(EVENT_SOURCES, full_key_string, decode_source)

    @property
    def sets(self) -> tuple[dict[SetName, WorkerSet], list[Refusal]]:
        """The workers of each model, and the cards that get no requests."""
        found: dict[tuple[EndpointName, int], Instance] = {}
        for watcher in reversed(self._instances):  # where there are two, that of today counts
            for instance in watcher.values.values():
                found[instance.name, instance.instance_id] = instance
        return worker_sets(found.values(), self._cards.values, self._wanted)

    @property
    def sources(self) -> Mapping[WorkerWithDpRank, PublisherRecord]:
        """The event sources, by whose cache they speak of."""
        ids = {i.instance_id for watcher in self._instances for i in watcher.values.values()}
        return by_worker(self._sources.values.values(), ids)


def _card_key(bucket: Bucket, prefix: str, entry: Entry) -> CardKey:
    """ValueError for a key that is none of a card's."""
    return CardKey(*read_card_key(entry.key))


def _card_or_reason(entry: Entry) -> ModelCard | str:
    """The card, or why it is none: who is at fault is to be seen."""
    try:
        return decode_card(entry)
    except ValueError as error:
        return str(error)
