"""EventWatch: what KV events show beside their content: how late they are, how large a cache is.

A router that believes its own decisions until events come has to know for how long; and an engine
that does not say how many blocks it has shows it by what it holds when it begins to evict.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..workers.registry import WorkerRegistry, WorkerState
from .prompt import Prompt

LATE_S = 0.25  # events that come sooner after the first token are not late
MIN_TTL_S = 5.0  # where they are late, a decision is believed for at least this long
MAX_TTL_S = 120.0  # and at most; events that are later count as never sent
TTL_OVER_LAG = 3.0  # lags are measured too low, by up to a half
KEPT_LAGS = 8  # of which the largest counts
SAMPLES = 4  # requests whose events are waited for at a time
SAMPLE_EVERY = 8  # requests
FIRST_LOOK_S = 0.05  # after the first token; then each wait is as long as all before it,
LAST_LOOK_S = 10.0  # but no longer than this
SIZES_INTERVAL_S = 2.0
FALLS = 2  # times that a cache holds less than before, until it counts as one that was full


@dataclass
class _Sample:
    """A request whose events are looked for. `since`: its first token; all are published then."""

    worker: WorkerWithDpRank
    local_hashes: npt.NDArray[np.uint64]
    booked_at: float
    since: float | None = None
    look_at: float = 0.0
    lag: float = 0.0  # how late its events are at least: when they were last missed


@dataclass
class _CacheSize:
    """What one rank was seen to hold on its device, in blocks."""

    last: int = 0
    most: int = 0
    falls: int = 0


class EventWatch:
    """Measures the lag of events and the sizes of caches. Not thread-safe; times are the router's.

    With `adapts_ttl` it sets for how long `index` believes a decision: longer than events take
    where they are late, else not at all.
    Sizes are learnt for workers that report none, and given to the registry.
    """

    def __init__(self, index: EventIndex, registry: WorkerRegistry, *, adapts_ttl: bool) -> None:
        self._index, self._registry, self._adapts = index, registry, adapts_ttl
        self.samples: dict[str, _Sample] = {}
        self._lags: deque[float] = deque([0.0], maxlen=KEPT_LAGS)
        self._booked = 0
        self._next_look = self._next_sizes = -np.inf
        self._sizes: dict[WorkerWithDpRank, _CacheSize] = {}

    def lag_s(self) -> float:
        """How late events are of late: between this and about twice as much, or not at all late.

        Between two looks nothing is known; but then no request asked what is cached, either.
        """
        return max(*self._lags, *(sample.lag for sample in self.samples.values()), 0.0)

    def on_booked(
        self,
        request_id: str,
        worker: WorkerWithDpRank,
        prompt: Prompt,
        now: float,
    ) -> None:
        """A request with this prompt goes to a worker; now and then one is looked after."""
        self._booked += 1
        if not self._adapts or self._booked % SAMPLE_EVERY or len(self.samples) >= SAMPLES:
            return
        if self._index.is_predicted(worker):
            return  # it sends no events
        local_hashes = prompt.local_hashes
        if len(local_hashes) and self._index.reported(worker, local_hashes) < len(local_hashes):
            self.samples[request_id] = _Sample(worker, local_hashes, now)

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its prompt is computed, so the events that say so are under way."""
        sample = self.samples.get(request_id)
        if sample is not None and sample.since is None:
            sample.since = now
            self._look_after(request_id, sample, now)

    def look(self, now: float) -> None:
        """Look at what is due; costs next to nothing while nothing is."""
        if now >= self._next_look:
            for request_id, sample in list(self.samples.items()):
                if not self._is_well(sample.worker):
                    del self.samples[request_id]  # it may have died before its events were sent
                elif sample.since is None:
                    if now - sample.booked_at > MAX_TTL_S:  # it never had a first token
                        del self.samples[request_id]
                elif now >= sample.look_at:
                    self._look_after(request_id, sample, now)
            self._next_look = now + FIRST_LOOK_S
            if self._adapts:
                lag = self.lag_s()
                late = min(MAX_TTL_S, max(MIN_TTL_S, TTL_OVER_LAG * lag))
                self._index.predict_ttl_s = late if lag > LATE_S else 0.0
        if now >= self._next_sizes:
            self._next_sizes = now + SIZES_INTERVAL_S
            if any(entry.total_kv_blocks is None for entry in self._registry.entries()):
                self._learn_sizes()

    def _is_well(self, worker: WorkerWithDpRank) -> bool:
        entry = self._registry.entry(worker.worker_id)
        return entry is not None and entry.state is WorkerState.READY

    def _look_after(self, request_id: str, sample: _Sample, now: float) -> None:
        assert sample.since is not None
        waited = now - sample.since
        reported = self._index.reported(sample.worker, sample.local_hashes)
        all_reported = reported == len(sample.local_hashes)
        if all_reported or waited >= MAX_TTL_S:
            self._lags.append(sample.lag if all_reported else MAX_TTL_S)
            del self.samples[request_id]
        else:
            sample.lag = waited
            sample.look_at = now + min(LAST_LOOK_S, max(FIRST_LOOK_S, waited))

    def _learn_sizes(self) -> None:
        """Give workers without a size the most blocks that a rank of theirs has had."""
        for status in self._index.sources():
            if self._index.is_predicted(status.worker):
                continue
            size = self._sizes.setdefault(status.worker, _CacheSize())
            size.falls += status.blocks < size.last
            size.last = status.blocks
            size.most = max(size.most, status.blocks)
        for entry in self._registry.entries():
            if entry.total_kv_blocks is not None:
                continue
            sizes = [self._sizes[rank] for rank in entry.ranks if rank in self._sizes]
            full = [size.most for size in sizes if size.falls >= FALLS]
            if full:
                self._registry.learn_kv_blocks(entry.worker_id, max(full))
