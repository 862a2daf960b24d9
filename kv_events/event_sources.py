"""EventSources: finds the event source of each worker, and has the index believe that one.

source_choice.py decides which source is believed, for each worker by itself. The index believes one
publisher of a worker at a time: so two sources are never applied at once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from secrets import randbits

import structlog

from ..base.backoff import Backoff
from ..base.clock import Clock
from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceState, SourceStatus
from ..workers.registry import WorkerEntry, WorkerRegistry, WorkerState
from .engine_stream import EngineStream, StreamCounts
from .event_subscribers import EventSubscribers
from .source_choice import EventSource, SourceChoice

_RESYNC_S = (0.5, 30.0)
"""Between two requests for the state of a cache: the first wait, and the longest."""

log = structlog.get_logger(__name__)


class _WorkerSource:
    """What is kept of one worker."""

    def __init__(self, entry: WorkerEntry, choice: SourceChoice, stream: EngineStream) -> None:
        self.ranks = entry.ranks
        self.choice = choice
        self.stream = stream
        self.closing = False  # the stream is
        self.received: tuple[int, int] | None = (0, 0)  # on the plane; None: counted from now on
        self.shown: EventSource | None = None
        self.well = True
        self.resync_at = float("-inf")
        self.resyncs = Backoff(*_RESYNC_S)


class EventSources:
    """The sources of all registered workers, by the calls of an EventFeed, until `close`."""

    def __init__(
        self,
        index: EventIndex,
        registry: WorkerRegistry,
        clock: Clock,
        *,
        block_size: int,
        plane: EventSource | None,
        subscribers: EventSubscribers,
    ) -> None:
        """`plane` is the event plane as a source, None: it is not used; `subscribers` give the way
        to each engine's own stream."""
        self._index, self._registry, self._clock = index, registry, clock
        self._block_size, self.plane, self._subscribers = block_size, plane, subscribers
        self._workers: dict[int, _WorkerSource] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.counts = StreamCounts()
        self.switches: Counter[str] = Counter()
        """times that a worker's source changed, by the new one"""

    async def close(self) -> None:
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            self._end(worker)
        if self._ending:
            await asyncio.wait(self._ending)

    @property
    def short_replays(self) -> int:
        """See EventSubscribers."""
        return self._subscribers.short_replays

    def counted(self) -> Counter[str]:
        """How many workers have which source."""
        return Counter(worker.shown.label for worker in self._workers.values() if worker.shown)

    def asks(self, rank: WorkerWithDpRank) -> bool:
        """Whether a rank's missing events are to be asked for on the event plane."""
        worker = self._workers.get(rank.worker_id)
        return worker is None or worker.choice.current is None or worker.choice.follows_plane

    def on_worker(self, entry: WorkerEntry) -> None:
        """A worker was added or renewed."""
        worker = self._workers.get(entry.worker_id)
        if worker is not None and worker.ranks != entry.ranks:
            self._forget(entry.worker_id)
        if self.asks(entry.ranks[0]):
            believe_announced(self._index, entry)

    def on_reconnected(self) -> None:
        """The index doubts every source, because the event plane was away."""
        for worker in self._workers.values():
            if worker.choice.follows_stream:
                worker.stream.confirm()

    def look(self, sources: Iterable[SourceStatus], connected: bool) -> None:
        """Decide anew, by the states of the index's sources."""
        now = self._clock.now()
        by_worker: dict[int, list[SourceStatus]] = {}
        for source in sources:
            by_worker.setdefault(source.worker.worker_id, []).append(source)
        entries = {entry.worker_id: entry for entry in self._registry.entries()}
        for worker_id in self._workers.keys() - entries.keys():
            self._forget(worker_id)
        for worker_id, entry in entries.items():
            well = entry.state in (WorkerState.READY, WorkerState.DRAINING)
            worker = self._workers.get(worker_id)
            stream = self._subscribers.source_of(worker_id)
            if worker is not None and worker.choice.stream is not stream:  # it moved
                self._forget(worker_id)
                worker = None
            if worker is None:
                if not well:
                    continue
                worker = self._workers[worker_id] = self._new(entry, now)
            if well and not worker.well:
                worker.choice.on_well(now)
            worker.well = well
            statuses = by_worker.get(worker_id, [])
            published = self._has_published(worker, statuses)
            if well:
                beats = any(status.beats for status in statuses)
                worker.choice.on_plane(now, connected=connected, published=published, beats=beats)
            self._follow(worker_id, worker)
            if worker.choice.follows_stream:
                self._repair(worker, statuses, now)

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        """See StreamListener."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.choice.on_stream(up, self._clock.now(), lasting=lasting)
            self._follow(worker_id, worker)

    def on_refused(self, worker_id: int, reason: str) -> None:
        """See StreamListener."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            log.error("event source refused", worker_id=worker_id, reason=reason)
            worker.choice.refuse(reason, self._clock.now())
            self._follow(worker_id, worker)

    def _new(self, entry: WorkerEntry, now: float) -> _WorkerSource:
        choice = SourceChoice(
            self.plane,
            self._subscribers.source_of(entry.worker_id),
            now,
            announced=bool(entry.publisher_ids),
        )
        stream = EngineStream(
            entry.worker_id,
            [rank.dp_rank for rank in entry.ranks],
            self._index,
            self,
            self.counts,
            block_size=self._block_size,
            subscribers=self._subscribers,
        )
        return _WorkerSource(entry, choice, stream)

    def _has_published(self, worker: _WorkerSource, statuses: Iterable[SourceStatus]) -> bool:
        """Whether it published something on the event plane since the last look."""
        received = sum(status.messages for status in statuses)
        ignored = sum(status.unannounced for status in statuses)
        before, worker.received = worker.received, (received, ignored)
        if before is None:
            return False
        if worker.choice.follows_stream:
            return ignored > before[1]  # what the index receives is its stream
        return received > before[0]

    def _follow(self, worker_id: int, worker: _WorkerSource) -> None:
        """Carry out the choice."""
        source = worker.choice.current
        if source is not None and source is not worker.shown:
            self._switch(worker_id, worker, source)
        # A worker without events yet is predicted, too: a request sent there has left its blocks.
        shown = source or EventSource.PREDICTED
        error = self._error(worker) if shown is EventSource.PREDICTED else ""
        self._registry.set_event_source(worker_id, shown.label, error)
        if worker.closing:
            return
        if worker.choice.wants_stream and not worker.stream.is_open:
            worker.stream.open()
        elif worker.stream.is_open and not worker.choice.wants_stream:
            self._end(worker)
            worker.choice.on_stream(False, self._clock.now())

    def _switch(self, worker_id: int, worker: _WorkerSource, source: EventSource) -> None:
        before, worker.shown = worker.shown, source
        worker.received = None
        entry = self._registry.entry(worker_id)
        if entry is None:
            return
        details = {} if before is None else {"before": before.label}
        if before is not None:
            self.switches[source.label] += 1
        if source is EventSource.PREDICTED:
            error = self._error(worker) or "the worker offers none"
            text = "KV events unavailable, predicting cache"
            log.warning(text, worker_id=worker_id, address=entry.address, error=error, **details)
        else:
            log.info("KV events", worker_id=worker_id, source=source.label, **details)
        worker.stream.believe(worker.choice.follows_stream)
        if worker.choice.follows_stream:
            for rank in worker.ranks:
                self._index.announce_publisher(rank, worker.stream.publisher_id(rank.dp_rank))
        elif before is not None:
            for rank in worker.ranks:  # the source before is forgotten
                self._index.announce_publisher(rank, randbits(53))
            believe_announced(self._index, entry)

    @staticmethod
    def _error(worker: _WorkerSource) -> str:
        """Why its stream is not read, if it has one."""
        return worker.choice.refused or worker.stream.error

    def _repair(self, worker: _WorkerSource, statuses: list[SourceStatus], now: float) -> None:
        """Ask an engine for its whole cache again, if the index has lost some of it."""
        stream = worker.stream
        if not stream.is_synced:
            return
        if not stream.is_complete:
            for status in statuses:
                if status.state in (SourceState.EXACT, SourceState.REBUILDING):
                    self._index.mark_degraded(status.worker, exact=True)
        elif any(
            status.state in (SourceState.REBUILDING, SourceState.DEGRADED) for status in statuses
        ):
            if now >= worker.resync_at:
                worker.resync_at = now + worker.resyncs.next()
                stream.resync()
        else:
            worker.resyncs.reset()

    def _forget(self, worker_id: int) -> None:
        self._end(self._workers.pop(worker_id))

    def _end(self, worker: _WorkerSource) -> None:
        """Close a stream, without waiting: the stream itself may be the caller."""
        if not worker.stream.is_open or worker.closing:
            return
        worker.closing = True
        task = asyncio.create_task(worker.stream.close(), name="event stream's end")
        self._ending.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._ending.discard(task)
            worker.closing = False

        task.add_done_callback(ended)


def believe_announced(index: EventIndex, entry: WorkerEntry) -> None:
    """Believe, on the event plane, only the publishers that a worker announced over its own
    connection; any publisher if it announced none."""
    announced = entry.publisher_ids or (None,) * entry.dp_size
    for worker, publisher_id in zip(entry.ranks, announced, strict=True):
        index.announce_publisher(worker, publisher_id)
