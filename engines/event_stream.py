"""What a publisher sends and when, as a state machine without I/O: events, replays, announcements.

Changes of one worker's cache, requests of routers, the state of the event plane and times go in;
messages come out, one at a time. The KvEventPublisher drives it on an event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from structlog import get_logger

from ..base.errors import UNREADABLE
from ..base.identity import WorkerWithDpRank
from ..indexer.wire import EventWriter, StorageTier, encode_heartbeat
from ..kv_events.resync_wire import decode_request
from ..runtime.event_planes import KV_EVENTS, KV_HEARTBEAT
from .outbox import Hashes, Outbox, StoredRun
from .replay_log import ReplayLog

MIN_ANNOUNCE_INTERVAL_S = 1.0
"""Announcements start at least this far apart; requests in between become one."""

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PublisherLimits:
    """Bounds of one publisher; those of a replay bound what is kept to be sent again."""

    max_events_per_message: int = 128
    max_blocks_per_message: int = 8192
    max_queued_blocks: int = 1 << 20
    max_replay_events: int = 1 << 16
    max_replay_bytes: int = 1 << 24


@dataclass(slots=True)
class PublisherStats:
    """Counters of one publisher; they only grow."""

    messages: int = 0
    events: int = 0
    announcements: int = 0
    """times the whole cache was announced"""
    resync_requests: int = 0
    """requests for this worker"""
    replays: int = 0
    """of those, or of several at once, answered by what was sent before"""
    heartbeats: int = 0
    given_up: int = 0
    """times that changes were given up, for an announcement to say it all"""
    errors: int = 0
    """requests that were junk, snapshots that failed"""


class Outgoing(NamedTuple):
    """A message to publish."""

    topic: str
    """KV_EVENTS or KV_HEARTBEAT"""
    payload: bytes


class EventStream:
    """The numbered KV events of one (worker, rank), under one publisher id.

    Invariants: event ids grow by one over all events that leave; a message is numbered once and
    is sent again only as it was. While `connected` is False changes are given up, for nothing can
    be sent: an announcement follows when it is True again. `now` is any clock's seconds that
    never go back.
    """

    def __init__(
        self,
        worker: WorkerWithDpRank,
        publisher_id: int,
        *,
        snapshot: Callable[[], Iterable[StoredRun]],
        wall_ms: Callable[[], int],
        limits: PublisherLimits,
        first_event_id: int,
    ) -> None:
        """`wall_ms` gives the time that messages are stamped with; nothing is decided by it."""
        self._worker = worker
        self.publisher_id = publisher_id
        self.connected = False
        self._snapshot = snapshot
        self._wall_ms = wall_ms
        self._outbox = Outbox(
            worker,
            first_event_id=first_event_id,
            max_events=limits.max_events_per_message,
            max_blocks=limits.max_blocks_per_message,
            max_queued_blocks=limits.max_queued_blocks,
        )
        self._replay_log = ReplayLog(
            next_event_id=first_event_id,
            max_events=limits.max_replay_events,
            max_bytes=limits.max_replay_bytes,
        )
        self._replay: deque[bytes] = deque()  # what is left of the one under way
        self._writer = EventWriter()
        self._sequence = 0  # of the envelopes
        self._announce_wanted = False
        self._last_announce = float("-inf")
        self._heartbeat_wanted = False
        self._stats = PublisherStats()

    @property
    def stats(self) -> PublisherStats:
        return replace(self._stats, given_up=self._outbox.given_up)

    @property
    def next_event_id(self) -> int:
        """The id that the next event to leave will carry."""
        return self._outbox.next_event_id

    def kept_since(self, event_id: int) -> list[bytes] | None:
        """The messages with the events from this one on, as they left; None if not all are kept."""
        return self._replay_log.since(event_id)

    @property
    def stale(self) -> bool:
        """Whether changes were given up since the last announcement."""
        return self._outbox.stale

    def stored(self, run: StoredRun) -> None:
        """ValueError if the arrays differ in length, or there is no such tier."""
        self._give_up_unless_connected()
        self._outbox.put_stored(run)

    def removed(self, block_hashes: Hashes, tier: StorageTier) -> None:
        """ValueError if there is no such tier."""
        self._give_up_unless_connected()
        self._outbox.put_removed(block_hashes, tier)

    def cleared(self, tier: StorageTier | None) -> None:
        """One tier was emptied; None: all of them. ValueError if there is no such tier."""
        self._give_up_unless_connected()
        self._outbox.put_cleared(tier)

    def connection_lost(self) -> None:
        """What left last may not have arrived, so that the cache is to be announced."""
        self._outbox.invalidate()

    def want_heartbeat(self) -> None:
        """Let a heartbeat be the next message that is no event."""
        self._heartbeat_wanted = True

    def on_request(self, subject: str, payload: bytes) -> None:
        """A router's request for what it missed. Junk is counted, others' requests are ignored."""
        try:
            request = decode_request(payload)
        except UNREADABLE as error:
            self._stats.errors += 1
            log.warning("not a resync request", subject=subject, error=str(error))
            return
        if not request.names(*self._worker):
            return
        self._stats.resync_requests += 1
        if request.from_event_id is None or request.publisher_id != self.publisher_id:
            self._announce_wanted = True
        else:
            self._replay_log.want(request.from_event_id, request.until_event_id)

    def next_message(self, now: float) -> Outgoing | None:
        """What to send now: of a replay, else events, else a heartbeat; None: nothing is due."""
        self._announce_when_due(now)
        self._replay_when_due(now)
        if self._replay:
            return Outgoing(KV_EVENTS, self._replay.popleft())
        return self.next_events() or self._next_heartbeat()

    def next_events(self) -> Outgoing | None:
        """A message of the events that wait; None if there are none."""
        first_id = self._outbox.next_event_id
        try:
            events = self._outbox.write_message(self._writer)
        except (ValueError, TypeError, OverflowError):
            self._stats.errors += 1
            log.exception("a cache event cannot be encoded", worker=tuple(self._worker))
            events = self._writer.events  # those before it; the outbox is stale now
        if not events:
            return None
        stamp = self._wall_ms()
        message = self._writer.message(self.publisher_id, self._sequence, stamp, KV_EVENTS)
        last_id = first_id + events - 1
        clear_id = self._outbox.clear_id if self._outbox.clear_id >= first_id else None
        self._replay_log.append(first_id, last_id, message, clear_id)
        self._sequence += 1
        self._stats.messages += 1
        self._stats.events += events
        return Outgoing(KV_EVENTS, message)

    def wait_s(self, now: float) -> float | None:
        """Seconds until an announcement or a replay is due; None: only an input changes that."""
        if not self.connected:
            return None
        waits = []
        if (self._announce_wanted or self._outbox.stale) and not self._outbox.announcing:
            waits.append(max(0.0, self._last_announce + MIN_ANNOUNCE_INTERVAL_S - now))
        replay_wait = self._replay_log.wait_s(now)
        if replay_wait is not None and not self._replay:
            waits.append(replay_wait)
        return min(waits, default=None)

    def _give_up_unless_connected(self) -> None:
        if not self.connected:
            self._outbox.invalidate()

    def _announce_when_due(self, now: float) -> None:
        wanted = self._announce_wanted or self._outbox.stale
        if not wanted or self._outbox.announcing or not self.connected:
            return
        if now < self._last_announce + MIN_ANNOUNCE_INTERVAL_S:
            return
        self._last_announce = now
        self._announce_wanted = False
        try:
            self._outbox.announce(self._snapshot())
        except Exception:
            # Silence until the next try is better than events on top of an unknown state.
            self._stats.errors += 1
            self._outbox.invalidate()
            log.exception("no snapshot of the cache to announce", worker=tuple(self._worker))
        else:
            self._stats.announcements += 1

    def _replay_when_due(self, now: float) -> None:
        if self._replay or not self.connected or self._replay_log.wait_s(now) != 0:
            return
        messages = self._replay_log.take(now)
        if messages is None:
            self._announce_wanted = True
            return
        self._stats.replays += 1
        self._replay.extend(messages)
        self._heartbeat_wanted = True  # says that this was all

    def _next_heartbeat(self) -> Outgoing | None:
        """Which event was the last."""
        if not self._heartbeat_wanted or not self.connected:
            return None
        self._heartbeat_wanted = False
        self._stats.heartbeats += 1
        last_id, sequence = max(0, self.next_event_id - 1), max(0, self._sequence - 1)
        payload = encode_heartbeat(
            self._worker, last_id, self.publisher_id, sequence, self._wall_ms()
        )
        return Outgoing(KV_HEARTBEAT, payload)
