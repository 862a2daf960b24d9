"""EventSubscribers: how to read each engine's own event stream."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ..workers.worker_url import WorkerUrl
from .dialects import ZmqEvents
from .source_choice import STREAMS, EventSource

if TYPE_CHECKING:
    from .dialects import HttpEvents


class EventSubscribers:
    """Finds a Subscriber for a worker: by its URL, else its engine's client."""

    def __init__(
        self,
        client_of: Callable[[int], object],
        url_of: Callable[[int], WorkerUrl | None],
        block_size: int,
        allowed: Collection[EventSource] = STREAMS,
    ) -> None:
        """`allowed` are those of STREAMS that may be used."""
        self._client_of, self._url_of = client_of, url_of
        self._block_size, self._allowed = block_size, allowed
        self._open: dict[int, tuple[WorkerUrl, ZmqEvents | HttpEvents]] = {}
        self._short_before = 0  # of those that were closed

    async def of(self, worker_id: int) -> object:
        """The present way to a worker; None if there is none, or none that may be used. ConfigError
        if it lacks a package."""
        url, known = self._url_of(worker_id), self._open.get(worker_id)
        if known is not None and known[0] != url:
            await self.close(worker_id)
            known = None
        source = self.source_of(worker_id)
        if source is None or source not in self._allowed:
            return None
        if url is None or url.events is None:
            return self._client_of(worker_id)
        if known is None:
            if source is EventSource.HTTP:
                from .dialects import HttpEvents  # and the HTTP client with it

                known = url, HttpEvents(url.events, self._block_size)
            else:
                known = url, ZmqEvents(url.events, url.replay)
            self._open[worker_id] = known
        return known[1]

    def source_of(self, worker_id: int) -> EventSource | None:
        """What a worker's stream comes over; None if no stream may be used."""
        if not self._allowed:
            return None
        url = self._url_of(worker_id)
        if url is None or url.events is None:
            return EventSource.GRPC
        return EventSource.HTTP if url.events.startswith("http") else EventSource.ZMQ

    async def close(self, worker_id: int) -> None:
        """Close what was opened for a worker; its client is not."""
        known = self._open.get(worker_id)
        if known is None:
            return
        await known[1].close()
        if self._open.pop(worker_id, None) is not None:
            self._short_before += _short_replays(known[1])

    @property
    def short_replays(self) -> int:
        """Replays over ZMQ that ended without their end, so far."""
        return self._short_before + sum(_short_replays(events) for _, events in self._open.values())


def _short_replays(events: "ZmqEvents | HttpEvents") -> int:
    return events.short_replays if isinstance(events, ZmqEvents) else 0
