"""The event-driven index: fed with messages or events, read by every decision."""

import os
from collections.abc import Iterator
from operator import index as index_of
from operator import itemgetter
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ...base.errors import EventError
from ...base.identity import WorkerWithDpRank
from ..approximate import ApproximateIndex
from ..prefix_index import CacheBranch, PredictionCounts, TierOverlap
from ..source import SOURCES_IN_A_STEP, Missing, SourceImage, SourceState, SourceStatus
from ..wire import TIERS, StorageTier, describe_decode_error
from . import _status
from ._actor import IndexActor
from ._recovered import take_recovered
from ._source_image import dump_source, list_heaviest, restore_source
from .predicted_caches import PredictedCaches

# The kernel's numbers of the states it knows (_cursor.pxd).
_STATES = (SourceState.SILENT, SourceState.EXACT, SourceState.REBUILDING, SourceState.DEGRADED)
_RESTORED = 2
_EXACT = SourceState.EXACT
_counts_of = itemgetter(
    "applied", "gaps", "given_up", "restarts", "duplicates", "orphans", "messages", "beats"
)
MAX_WAITING = 1 << 16
MAX_WAITING_BLOCKS = 1 << 22


class EventIndex:
    """Who holds which block, as the engines report it.

    One native thread applies posted messages in order; reads happen on the caller's thread and
    see every message applied so far, and those blocks of the present one that are in already.
    They run beside each other, and wait for some 100 blocks of work at most, whatever the thread is
    doing.

    `max_messages` and `max_bytes` bound what may wait: a message beyond is refused and counted,
    and its loss shows as a gap of its source. `max_workers` bounds how many (worker, rank) are
    indexed that only their own messages name: messages of more are counted in `refused`.
    Those that are bound, announced, restored or fed by `apply_cache_event` are not counted. With
    `max_unknown_blocks` each of the former holds no more than that many blocks in a tier, and all
    of them have a quarter of what may wait behind gaps.
    `max_blocks` bounds how many different blocks are indexed in each storage tier: beyond, the
    branches that were of use longest ago are dropped, and their holders are `trimmed`. ValueError
    if a bound is not a whole number from 1 on.

    A process that forks keeps the index; the child's is closed and knows nothing. Make an index in
    each process that is to have one (after the fork, in servers that fork their workers).

    Each storage tier has a tree of its own; the device's is the one that routes. A lower tier's
    blocks count where they continue what the tiers above hold of a prompt: see TierOverlap. A
    stored event of a lower tier may name a parent that its worker holds in any tier. A cleared
    event concerns its tier alone, a gap or a restart all of them.

    With `predict_ttl_s`, a worker is also believed to hold on its device what a request that was
    sent to it will bring there, for so long: an engine reports a block only once it computes it,
    and a burst of requests with a new prefix comes before that. The device's overlaps are then the
    larger of both beliefs, and calls that read or record must not run at the same time. The same
    holds with `silent`, which predicts the caches of workers that report nothing (`predict`).
    """

    def __init__(
        self,
        *,
        max_messages: int = 16384,
        max_bytes: int = 1 << 28,
        max_workers: int = 65536,
        max_blocks: int | None = None,
        max_unknown_blocks: int | None = None,
        predict_ttl_s: float | None = None,
        silent: ApproximateIndex | None = None,
    ) -> None:
        _require_bound("max_bytes", max_bytes, 2**63)
        for name, bound in (("max_messages", max_messages), ("max_workers", max_workers)):
            _require_bound(name, bound, 2**32)
        for name, limit in (("max_blocks", max_blocks), ("max_unknown_blocks", max_unknown_blocks)):
            if limit is not None:
                _require_bound(name, limit, 2**63)
        self.predicted = PredictedCaches(predict_ttl_s, silent)
        """what is believed beside events, for a kernel that decides"""
        self._actor = IndexActor(
            max_messages=max_messages,
            max_bytes=max_bytes,
            max_workers=max_workers,
            max_blocks=max_blocks,
            max_unknown_blocks=max_unknown_blocks or 0,
        )
        _actors.add(self._actor)

    @property
    def native(self) -> IndexActor:
        """The kernel, for other kernels: _actor.pxd."""
        return self._actor

    @property
    def predicts(self) -> bool:
        """Whether `record` notes anything: whether there is a `predict_ttl_s` above 0, or a worker
        whose cache is predicted."""
        return self.predicted.records

    @property
    def predictions(self) -> PredictionCounts:
        return self.predicted.counts

    @property
    def predict_ttl_s(self) -> float | None:
        """For how long a decision is believed; None: not at all, and not to be changed."""
        return self.predicted.ttl_s

    @predict_ttl_s.setter
    def predict_ttl_s(self, seconds: float) -> None:
        self.predicted.ttl_s = seconds

    def predict(self, worker: WorkerWithDpRank, on: bool = True) -> None:
        """Predict a worker's cache from where requests are sent: it reports nothing. Off: go by
        its events. Nothing without `silent`."""
        self.predicted.predict(worker, on)

    def is_predicted(self, worker: WorkerWithDpRank) -> bool:
        """Whether a worker's cache is predicted, since it reports nothing."""
        return worker in self.predicted

    def reported(self, worker: WorkerWithDpRank, local_hashes: npt.NDArray[np.uint64]) -> int:
        """Overlap in blocks on the worker's device by its events alone."""
        return self._actor.scores(local_hashes).get(worker, 0)

    def post(self, message: bytes) -> bool:
        """Queue one message of the event plane; False if the mailbox is full."""
        return self._actor.post(message)

    def post_all(self, messages: list[bytes]) -> int:
        """Queue messages that came together; how many of them the mailbox had no room for."""
        return self._actor.post_all(messages)

    def apply(self, message: bytes) -> None:
        """Apply one message of the event plane after all that was posted before it.

        Raises EventError if it cannot be decoded; what is wrong inside it is counted.
        """
        code = self._actor.apply(message)
        if code != 0:
            raise EventError(describe_decode_error(code))

    def apply_cache_event(self, worker: WorkerWithDpRank | int, event: bytes) -> None:
        """Apply one cache event of `worker` (Dynamo's JSON), unnumbered: its id is not looked at.

        Raises ValueError if it is no such event, EventError if it names unknown blocks.
        """
        self._actor.apply_cache_event(worker, event)

    def flush(self) -> None:
        """Return once everything posted before is applied."""
        self._actor.flush()

    @property
    def lower_tiers(self) -> bool:
        """Whether any block of a tier below the device's was ever stored."""
        return self._actor.lower_tiers

    def match(
        self,
        local_hashes: npt.NDArray[np.uint64],
        overlaps: npt.NDArray[np.uint32],
        lower: npt.NDArray[np.uint32] | None = None,
    ) -> int:
        """Write each bound worker's overlap, in blocks, under its number; return the longest.

        `lower` is filled at the same moment, see PrefixIndex. ValueError if its shape is another.
        """
        at_least = None
        if not self.predicted.is_empty:
            at_least = self.predicted.match(local_hashes, len(overlaps))
        return self._actor.match_bound(local_hashes, overlaps, lower, at_least)

    def scores(self, local_hashes: npt.NDArray[np.uint64]) -> dict[WorkerWithDpRank, int]:
        """Overlap in blocks of every worker that holds any on its device, bound or not."""
        scores = self._actor.scores(local_hashes)
        for worker, blocks in self.predicted.scores(local_hashes).items():
            scores[worker] = max(blocks, scores.get(worker, 0))
        return scores

    def tier_scores(
        self, local_hashes: npt.NDArray[np.uint64]
    ) -> dict[WorkerWithDpRank, TierOverlap]:
        """The same by tier, of every worker that holds a prefix in its tiers together."""
        predicted = self.predicted.scores(local_hashes)
        found = self._actor.match_tiers(local_hashes, predicted)
        return {worker: TierOverlap(*blocks) for worker, blocks in found.items()}

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        """Give a worker the number its overlap is written under."""
        self._actor.bind(worker, number)
        self.predicted.bind(worker, number)

    def announce_publisher(self, worker: WorkerWithDpRank, publisher_id: int | None) -> None:
        """Believe this publisher's events of a worker alone, and forget another one's events.

        None: any publisher, as without this call. Events and heartbeats of others are counted
        in `unannounced` and ignored.
        """
        _status.announce_publisher(self._actor, worker, publisher_id)

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker and its blocks: it left."""
        self._actor.drop_worker(worker)
        self.predicted.unbind(worker)

    def record(
        self,
        worker: WorkerWithDpRank,
        local_hashes: npt.NDArray[np.uint64],
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """A request with these blocks was sent to a worker. Ignored unless `predicts`."""
        self.predicted.record(worker, local_hashes, sequence_hashes, now)

    def forget_predictions(self, worker: WorkerWithDpRank, number: int) -> None:
        """Forget what is predicted of a worker; what its events reported stays."""
        self.predicted.forget(worker, number)

    def expire(self, now: float) -> None:
        """Forget predictions that are too old. Reported blocks stay: their engine drops them."""
        self.predicted.expire(now)

    def sources(self) -> list[SourceStatus]:
        """The state of every worker that is bound or has sent a message."""
        return [source for step in self.sources_in_steps() for source in step]

    def sources_in_steps(self) -> Iterator[list[SourceStatus]]:
        """The same, a few at a time: each step at a moment of its own."""
        predicted = self.predicted.blocks_of_silent()
        begin = 0
        while begin < _status.end_of_sources(self._actor):
            end = begin + SOURCES_IN_A_STEP
            rows = _status.list_sources(self._actor, False, begin, end)
            yield [_predicted_status(_source_status(*source), predicted) for source in rows]
            begin = end

    def branches(self, looked_at: int, limit: int) -> list[CacheBranch]:
        """What is held most on the devices: see PrefixIndex. Events wait meanwhile, matches do not.

        Where some workers send events and others are predicted, each part has `limit`.
        """
        found = [CacheBranch(*branch) for branch in list_heaviest(self._actor, looked_at, limit)]
        reported = len(found)
        for branch in self.predicted.branches(looked_at, limit):
            above = None if branch.parent is None else branch.parent + reported
            found.append(branch._replace(parent=above))
        return found

    def recovering(self) -> list[SourceStatus]:
        """The state of those workers alone that are recovering."""
        return [_source_status(*source) for source in _status.list_sources(self._actor, True)]

    def await_replays(
        self, *, max_events: int = MAX_WAITING, max_blocks: int = MAX_WAITING_BLOCKS
    ) -> None:
        """Let events behind a gap wait from now on, within these limits over all sources.

        For a caller that asks recovering sources for what is missing, and calls `give_up` if it
        does not come. Without this call a gap is given up at once.
        """
        _status.await_replays(self._actor, max_events, max_blocks)

    def give_up(self, worker: WorkerWithDpRank) -> None:
        """What a recovering worker is asked for will not come: it is rebuilding.

        Its events before the gap are forgotten; those after it are applied.
        """
        _status.give_up(self._actor, worker)

    def take_recovered(
        self, worker: WorkerWithDpRank, message: bytes, *, whole: bool, last_event_id: int
    ) -> bool:
        """Take in what a worker itself answered when it was asked for its events, as one message.

        `whole`: the message stores all that the worker holds after `last_event_id`; else it has
        the events up to that one, of which those count that follow on the last one applied. False
        if it does not help: it is of another publisher than is believed, or leaves the gap open.
        """
        return take_recovered(self._actor, worker, message, whole, last_event_id)

    def mark_degraded(self, worker: WorkerWithDpRank, *, exact: bool = False) -> None:
        """A rebuilding worker does not answer: it is degraded. With `exact`, an exact one is too:
        it cannot report all that it holds."""
        _status.mark_degraded(self._actor, worker, exact)

    def relearn(self) -> int:
        """Trimmed sources whose dropped blocks would fit again are rebuilding from now on, if a
        quarter of the index is free; returns how many."""
        return _status.relearn(self._actor)

    def mark_suspect(self) -> None:
        """Events may have been missed: exact sources are recovering until they say more."""
        _status.mark_suspect(self._actor)

    @property
    def refused(self) -> int:
        """How many events and heartbeats `max_workers` refused."""
        return _status.read_counters(self._actor)["refused"]

    @property
    def alarms(self) -> int:
        """How often a source came into need of being asked; costs next to nothing."""
        return _status.count_alarms(self._actor)

    def dump_source(self, worker: WorkerWithDpRank) -> SourceImage | None:
        """All that is known of an exact source, at one moment; None if not all of it is known."""
        image = dump_source(self._actor, worker)
        return None if image is None else SourceImage(worker, *image)

    def restore_source(self, image: SourceImage) -> bool:
        """Believe an image, until the source says more or is given up.

        What the index has no room for is left out. False, and nothing is known of the source, if
        the image is inconsistent.
        """
        return restore_source(self._actor, *image)

    def counters(self) -> dict[str, int]:
        """Running totals of the event path; `waiting`, `indexed_blocks` and `index_bytes` are
        present numbers."""
        return _status.read_counters(self._actor)

    def tier_counters(self) -> dict[StorageTier, dict[str, int]]:
        """Running totals of each tier: events by type, blocks, and what named unknown blocks."""
        return dict(zip(TIERS, _status.read_tier_counters(self._actor), strict=True))

    def close(self) -> None:
        """Stop the thread. What was posted and not applied is dropped. Idempotent."""
        self._actor.close()


def _require_bound(name: str, value: int, end: int) -> None:
    try:
        good = 1 <= index_of(value) < end
    except TypeError:
        good = False
    if not good:
        most = f"2**{end.bit_length() - 1}"
        raise ValueError(f"{name} must be at least 1, whole and below {most}, not {value!r}")


_actors: WeakSet[IndexActor] = WeakSet()


def _leave_to_parent() -> None:
    for actor in list(_actors):
        actor.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _predicted_status(source: SourceStatus, predicted: dict[WorkerWithDpRank, int]) -> SourceStatus:
    """The same, or what routing says of a worker whose cache is predicted."""
    if source.worker not in predicted:
        return source
    blocks = predicted[source.worker]
    return source._replace(state=SourceState.APPROXIMATE, blocks=blocks, missing=None)


def _source_status(
    worker: WorkerWithDpRank,
    cursor: dict[str, Any],
    waiting: int | None,
    by_tier: tuple[int, int, int, int],
    unindexed: int,
    unannounced: int,
) -> SourceStatus:
    """`waiting`: the first event that waits behind a gap."""
    blocks, lower = by_tier[0], by_tier[1:]
    if not cursor:
        return SourceStatus(worker, SourceState.SILENT, blocks, unannounced=unannounced)
    applied, gaps, given_up, restarts, duplicates, orphans, messages, beats = _counts_of(cursor)
    last, newest, suspect = cursor["last_event_id"], cursor["newest"], cursor["suspect"]
    state, missing = _STATES[cursor["state"]], None
    if state is _EXACT and (newest > last or suspect):
        state = SourceState.RECOVERING
        until = waiting - 1 if waiting is not None else newest if newest > last else None
        missing = Missing(cursor["publisher_id"], 0 if cursor["fresh"] else last + 1, until)
    elif state is _EXACT and cursor["bare"]:
        state = SourceState.APPROXIMATE
    elif state is _EXACT and unindexed:
        state = SourceState.TRIMMED
    return SourceStatus(
        worker=worker,
        state=state,
        blocks=blocks,
        unindexed=unindexed,
        applied=applied,
        last_event_id=last,
        gaps=gaps,
        restarts=restarts,
        duplicates=duplicates,
        orphans=orphans,
        lower_blocks=lower,
        given_up=given_up,
        messages=messages,
        beats=beats,
        missing=missing,
        unannounced=unannounced,
        restored=suspect == _RESTORED,
    )
