"""FleetWatch: the engines of a namespace by what they have written into the store, not by what was
asked for."""

from collections.abc import Mapping

from ...base.clock import Clock
from ...runtime.components import INSTANCES, SERVICES, EndpointName, Instance, decode_instance
from ...runtime.discovery import StoreWatch, full_key_string
from ...runtime.kv_stores import Bucket, Entry, KeyValueStore
from ...workers.records import CARDS, ENCODE, ModelCard, decode_card, read_card_key


class FleetWatch(StoreWatch):
    """`cards` from `start` to `close`; the store is closed with it."""

    def __init__(
        self, store: KeyValueStore, namespace: str, model: str | None, clock: Clock
    ) -> None:
        """Engines of one model; None: of whichever one there is."""
        super().__init__(store)
        self._clock, self._model = clock, model
        self._instances = [
            self.follow(bucket, full_key_string, decode_instance, f"{namespace}/")
            for bucket in (INSTANCES, SERVICES)
        ]
        self._cards = [
            self.follow(CARDS, _card_key, decode_card, f"{namespace}{mark}") for mark in "/."
        ]
        self._first_seen: dict[int, float] = {}

    @property
    def engines(self) -> dict[int, tuple[ModelCard, float]]:
        """Card and age in seconds of each engine that is registered with a card, by its id. An id
        that was gone and is back is a new engine."""
        now = self._clock.now()
        serving = {
            (instance.name, instance.instance_id)
            for watcher in self._instances
            for instance in _of(watcher.values)
        }
        found: dict[int, ModelCard] = {}
        for watcher in self._cards:
            for (name, engine_id, adapter), card in watcher.values.items():
                if adapter or card.worker_type == ENCODE or (name, engine_id) not in serving:
                    continue
                if self._model in (None, card.name):
                    found[engine_id] = card
        self._first_seen = {engine_id: self._first_seen.get(engine_id, now) for engine_id in found}
        return {
            engine_id: (card, now - self._first_seen[engine_id])
            for engine_id, card in found.items()
        }

    @property
    def models(self) -> set[str]:
        """The names of all models that have cards."""
        return {card.name for watcher in self._cards for card in watcher.values.values()}


def _of(values: Mapping[str, Instance]) -> list[Instance]:
    return list(values.values())


def _card_key(bucket: Bucket, prefix: str, entry: Entry) -> tuple[EndpointName, int, str]:
    """ValueError for a key that is none of a card's."""
    return read_card_key(entry.key)
