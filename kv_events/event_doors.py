"""EventDoors: the way to the events of each engine, wherever it tells them."""

from collections.abc import Callable, Collection

from ..workers.worker_url import WorkerUrl
from .dialects import HttpEvents, ZmqEvents

GRPC, ZMQ, HTTP = "grpc", "zmq", "http"
STREAMS = (GRPC, ZMQ, HTTP)
"""What a stream of events can come over, by its name in `/workers`."""


class EventDoors:
    """Finds a Subscriber for a worker: by its URL, else its engine's client."""

    def __init__(
        self,
        client_of: Callable[[int], object],
        url_of: Callable[[int], WorkerUrl | None],
        block_size: int,
        allowed: Collection[str] = STREAMS,
    ) -> None:
        """`allowed` are those of STREAMS that may be used."""
        self._client_of, self._url_of = client_of, url_of
        self._block_size, self._allowed = block_size, allowed
        self._made: dict[int, tuple[WorkerUrl, ZmqEvents | HttpEvents]] = {}
        self._short_before = 0  # of those that are made no more

    async def of(self, worker_id: int) -> object:
        """The present way; None if there is none, or none that may be used. ConfigError if it lacks
        a package."""
        url, known = self._url_of(worker_id), self._made.get(worker_id)
        if known is not None and known[0] != url:
            await self.close(worker_id)
            known = None
        if url is None or url.events is None:
            return self._client_of(worker_id) if GRPC in self._allowed else None
        if self.kind_of(worker_id) not in self._allowed:
            return None
        if known is None:
            known = self._made[worker_id] = url, self._new(url, url.events)
        return known[1]

    def kind_of(self, worker_id: int) -> str:
        """What its stream comes over."""
        url = self._url_of(worker_id)
        if url is None or url.events is None:
            return GRPC
        return HTTP if url.events.startswith(HTTP) else ZMQ

    async def close(self, worker_id: int) -> None:
        """Let go of what was opened for a worker. Its client is somebody else's."""
        known = self._made.get(worker_id)
        if known is None:
            return
        await known[1].close()
        if self._made.pop(worker_id, None) is not None:
            self._short_before += _short_replays(known[1])

    @property
    def short_replays(self) -> int:
        """Replays over ZMQ that ended without their end, so far."""
        return self._short_before + sum(_short_replays(events) for _, events in self._made.values())

    def _new(self, url: WorkerUrl, events: str) -> ZmqEvents | HttpEvents:
        if events.startswith(HTTP):
            return HttpEvents(events, self._block_size)
        return ZmqEvents(events, url.replay)


def _short_replays(events: ZmqEvents | HttpEvents) -> int:
    return events.short_replays if isinstance(events, ZmqEvents) else 0
