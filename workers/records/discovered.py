"""The workers that the store lists: instances, cards and event sources put together. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...base.errors import ConfigError
from ...runtime.components import Instance
from ..dynamo_route import DynamoRoute
from ..worker_url import WorkerUrl, parse_worker_url
from .event_keys import PublisherRecord
from .model_card import NO_REQUESTS, ModelCard

TRTLLM = "trtllm_grpc"
"""The transport of an engine over gRPC, whichever service it has; its address is its URL."""


@dataclass(frozen=True, slots=True)
class DiscoveredWorker:
    """A worker as the store has it: where it is, and how it is called if not over gRPC."""

    url: WorkerUrl
    route: DynamoRoute | None = None
    incarnation: str = ""
    """of what is at the URL: another one has none of the caches of the one before"""


class EndpointWorkers:
    """Works out the workers of one endpoint. `transports`: those that Dynamo's are called over.
    Workers whose card is of a kind that is `not_called` are left out; with `only`, all others than
    those with a card of that kind."""

    def __init__(
        self,
        transports: Collection[str],
        not_called: Collection[str] = NO_REQUESTS,
        only: str | None = None,
    ) -> None:
        self._transports, self._not_called, self._only = transports, not_called, only

    def workers(
        self,
        instances: Iterable[Instance],
        cards: Mapping[int, ModelCard],
        sources: Iterable[PublisherRecord],
    ) -> dict[int, DiscoveredWorker]:
        """The workers that can be called, by their ids. One of Dynamo's needs a card."""
        publishers: dict[int, dict[int, int]] = {}
        for source in sources:
            ranks = publishers.setdefault(source.worker.worker_id, {})
            ranks[source.worker.dp_rank] = source.publisher_id
        found = {}
        for instance in instances:
            worker = self._worker(instance, cards, publishers.get(instance.instance_id, {}))
            if worker is not None:
                found[instance.instance_id] = worker
        return found

    def _worker(
        self, instance: Instance, cards: Mapping[int, ModelCard], publishers: Mapping[int, int]
    ) -> DiscoveredWorker | None:
        worker_id = instance.instance_id
        card = cards.get(worker_id)
        kind = None if card is None else card.worker_type
        if kind != self._only if self._only is not None else kind in self._not_called:
            return None
        if instance.transport == TRTLLM:
            try:
                url = parse_worker_url(instance.address)
            except ConfigError:
                return None
            return DiscoveredWorker(replace(url, worker_id=worker_id))
        if card is None:
            return None
        if instance.transport not in self._transports:
            return None
        ranks = range(card.dp_start, card.dp_start + card.dp_size)
        known = tuple(publishers[rank] for rank in ranks if rank in publishers)
        route = DynamoRoute(
            instance.transport,
            instance.address,
            instance.codec,
            worker_id,
            card.facts,
            card.dp_size,
            card.dp_start,
            known if len(known) == card.dp_size else (),
        )
        url = WorkerUrl(instance.address, worker_id, card.dp_size, card.dp_start)
        return DiscoveredWorker(url, route)
