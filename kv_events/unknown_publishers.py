"""UnknownPublishers: publishers on the event plane that no registered worker announced."""

from collections.abc import Callable, Iterable

import structlog

from ..base.identity import WorkerWithDpRank
from ..base.limit_hits import LimitHits
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceStatus

REPEAT_S = 60.0
"""Between two lines in the log about workers that are not registered."""

log = structlog.get_logger(__name__)


class UnknownPublishers:
    """Watches them for one index. Events of workers that are not registered are indexed for at most
    `ttl_s` seconds after they were first seen, so that a worker which publishes before it is
    discovered loses nothing.
    """

    def __init__(
        self,
        index: EventIndex,
        *,
        ttl_s: float = 300.0,
        hits: LimitHits | None = None,
        on_unannounced: Callable[[int], None] | None = None,
    ) -> None:
        """`hits` counts events refused because too many such workers publish. `on_unannounced` is
        called with the id of a registered worker in whose name another publisher speaks than it
        announced: perhaps because it was started anew."""
        self._index, self._ttl_s, self._on_unannounced = index, ttl_s, on_unannounced
        self._hits = LimitHits() if hits is None else hits
        self._refused = 0
        self._reported_at = float("-inf")
        self._first_seen: dict[WorkerWithDpRank, float] = {}
        self._unannounced: dict[WorkerWithDpRank, int] = {}

    def count_refused(self, now: float) -> None:
        """Count what was refused beyond `max_unknown_workers`, and log it now and then."""
        before, self._refused = self._refused, self._index.refused
        if self._refused == before:
            return
        self._hits.hit("max_unknown_workers", self._refused - before)
        if now - self._reported_at >= REPEAT_S:
            self._reported_at = now
            log.warning("too many unregistered workers publish KV events", refused=self._refused)

    def forget(self, unknown: set[WorkerWithDpRank], now: float) -> None:
        """Drop those of the workers that publish unregistered for too long."""
        for worker in self._first_seen.keys() - unknown:
            del self._first_seen[worker]
        for worker in unknown:
            if now - self._first_seen.setdefault(worker, now) >= self._ttl_s:
                del self._first_seen[worker]
                self._index.unbind(worker)

    def report_unannounced(
        self, sources: Iterable[SourceStatus], registered: set[WorkerWithDpRank]
    ) -> None:
        """Report registered workers in whose name others publish, if there was more of that."""
        before, self._unannounced = self._unannounced, {}
        for source in sources:
            if source.unannounced and source.worker in registered:
                self._unannounced[source.worker] = source.unannounced
                if source.unannounced > before.get(source.worker, 0) and self._on_unannounced:
                    self._on_unannounced(source.worker.worker_id)
