"""SetMembers: the workers of one set, as a router's discovery asks for them."""

import asyncio
from collections.abc import Collection, Mapping

from ...base.identity import WorkerWithDpRank
from ...workers.records import ENCODE, DiscoveredWorker, EndpointWorkers, PublisherRecord
from .worker_sets import WorkerSet


class SetMembers:
    """The workers of one set as they are registered now."""

    def __init__(self, transports: frozenset[str]) -> None:
        self._fleet = EndpointWorkers(transports, not_called=(ENCODE,))
        self.workers: Mapping[int, DiscoveredWorker] = {}
        self.elsewhere: Collection[int] = frozenset()
        self.sources: Mapping[WorkerWithDpRank, PublisherRecord] = {}
        self.changed = asyncio.Event()

    def become(
        self,
        found: WorkerSet | None,
        sources: Mapping[WorkerWithDpRank, PublisherRecord],
        elsewhere: Collection[int],
    ) -> None:
        """The members from now on; None: none. Those `elsewhere` have a card of another set."""
        workers: Mapping[int, DiscoveredWorker] = {}
        if found is not None:
            instances = found.instances.values()
            workers = self._fleet.workers(instances, found.cards, sources.values())
        self.sources = sources
        if (workers, elsewhere) != (self.workers, self.elsewhere):
            self.workers, self.elsewhere = workers, elsewhere
            self.changed.set()

    async def start(self) -> None:
        """Nothing is to be waited for: the ModelManager follows the store."""

    async def close(self) -> None:
        """The store is the ModelManager's."""
