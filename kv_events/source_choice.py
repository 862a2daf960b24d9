"""Which of a worker's event sources is believed: one at a time, the first that it has. Pure.

A worker may publish on the event plane, offer a stream of its own over gRPC (SubscribeKvEvents),
ZMQ or HTTP, or neither: then its cache is predicted from routing.
"""

import enum

NATS_WAIT_S = 1.0
"""How long a worker that is well may take to publish on the event plane,"""
ANNOUNCED_WAIT_S = 5.0
"""and one that announced the ids under which it publishes there."""
UNDECIDED_S = 5.0
"""How long a stream may take to answer before the cache is predicted."""
AWAY_S = 3.0
"""How long the present source may be away before another one that is there takes its place,"""
GONE_S = 15.0
"""and a stream before its events are forgotten, and the cache predicted."""
NATS_SILENT_S = 20.0
"""A publisher that sends heartbeats and has sent nothing for so long is away."""
HOLD_S = 2.0
"""How long a better source must be there before it takes the place of one that works;"""
LONGEST_HOLD_S = 60.0
"""twice as long after each time that it was left because it went away, up to this."""


class EventSource(enum.Enum):
    """Where the index has its knowledge of a worker's cache from."""

    NATS = "nats"
    JETSTREAM = "jetstream"
    ZMQ_PLANE = "event plane over zmq"
    GRPC = "grpc"
    ZMQ = "zmq"
    HTTP = "http"
    PREDICTED = "predicted"

    @property
    def label(self) -> str:
        """Its name in `/workers`, metrics and settings."""
        return "zmq" if self is EventSource.ZMQ_PLANE else self.value


STREAMS = (EventSource.GRPC, EventSource.ZMQ, EventSource.HTTP)
"""An engine's own streams; it has one of them."""


class _Presence:
    """Since when a source is there, or away."""

    def __init__(self) -> None:
        self.up_since: float | None = None
        self.down_since: float | None = None  # None: it never was there, or is
        self.hold_s = HOLD_S
        self.failed = False

    def set(self, up: bool, now: float) -> None:
        if up and self.up_since is None:
            self.up_since, self.down_since, self.failed = now, None, False
        elif not up and self.up_since is not None:
            self.up_since, self.down_since = None, now

    def is_steady(self, now: float) -> bool:
        """There for as long as it has to be."""
        return self.up_since is not None and now - self.up_since >= self.hold_s


class SourceChoice:
    """The source of one worker, from when it is well. Times are seconds that never go back.

    `current` is None until it is known which there are; what comes on the event plane is
    believed then. `wants_stream` says whether a subscription should be open, or tried.
    """

    def __init__(
        self,
        plane: EventSource | None,
        stream: EventSource | None,
        now: float,
        *,
        announced: bool,
    ) -> None:
        """`plane` and `stream` are the two that the worker may have, None: one that is not to be
        used; `announced`: the worker announced that it publishes on the event plane."""
        self.plane, self.stream = plane, stream
        self._wait_s = ANNOUNCED_WAIT_S if announced else NATS_WAIT_S
        self._since = now
        self._on_plane, self._on_stream = _Presence(), _Presence()
        self._has_channel = False  # it has published on the event plane
        self._published_at = now
        self.current: EventSource | None = None
        self.wants_stream = False
        self.refused = ""
        """why its stream is not read, although it has one"""
        self.switches = 0
        self.look(now)

    @property
    def follows_stream(self) -> bool:
        """Whether its stream is believed."""
        return self.current is not None and self.current is self.stream

    @property
    def follows_plane(self) -> bool:
        """Whether the event plane is believed."""
        return self.current is not None and self.current is self.plane

    def on_plane(self, now: float, *, connected: bool, published: bool, beats: bool) -> None:
        """How the event plane is, and whether this worker has published there since the last call;
        `beats`: it is a publisher that sends heartbeats."""
        if published:
            self._has_channel, self._published_at = True, now
        elif not connected:
            self._published_at = max(self._published_at, now)  # no message could come
        elif beats and now - self._published_at >= NATS_SILENT_S:
            self._has_channel = False
        self._on_plane.set(connected and self._has_channel, now)
        self.look(now)

    def on_well(self, now: float) -> None:
        """The worker is well again: its silence meanwhile is held against no source."""
        self._published_at = now
        self.refused = ""  # perhaps it was started anew, with other settings
        if self.current is None:
            self._since = now
        for presence in (self._on_plane, self._on_stream):
            if presence.down_since is not None:
                presence.down_since = now

    def on_stream(self, up: bool, now: float, *, lasting: bool = False) -> None:
        """The engine took a subscription, or it ended. `lasting`: there will be none."""
        self._on_stream.set(up, now)
        self._on_stream.failed = not up
        if lasting and self.follows_stream:
            self._switch(self._best() or EventSource.PREDICTED, now)
        self.look(now)

    def refuse(self, reason: str, now: float) -> None:
        """Its stream cannot be used, until it was away and is well again."""
        self.refused = reason
        self.on_stream(False, now, lasting=True)

    def look(self, now: float) -> None:
        """Decide by what is known now."""
        wanted = self._decide(now)
        if wanted is not None and wanted is not self.current:
            self._switch(wanted, now)
        self.wants_stream = self._wants_stream(now)

    @property
    def _may_stream(self) -> bool:
        return self.stream is not None and not self.refused

    def _decide(self, now: float) -> EventSource | None:
        best, current = self._best(), self.current
        if current is None:
            return self._first(best, now)
        if current is EventSource.PREDICTED:
            # One that went away before has to prove itself; what is predicted is no worse for it.
            presence = None if best is None else self._presence(best)
            new = presence is not None and presence.hold_s == HOLD_S
            return best if presence is not None and (new or presence.is_steady(now)) else None
        mine = self._presence(current)
        if mine.up_since is not None:
            better = self.follows_stream and best is self.plane and self._on_plane.is_steady(now)
            return best if better else None
        away_s = now - (self._since if mine.down_since is None else mine.down_since)
        if best is not None and away_s >= AWAY_S:
            return best
        return EventSource.PREDICTED if self.follows_stream and away_s >= GONE_S else None

    def _first(self, best: EventSource | None, now: float) -> EventSource | None:
        if best is not None:
            return best
        answered = not self._may_stream or self._on_stream.failed
        waited_s = now - self._since
        if self._plane_waited(now) and (answered or waited_s >= self._wait_s + UNDECIDED_S):
            return EventSource.PREDICTED
        return None

    def _best(self) -> EventSource | None:
        """The first source that is there."""
        if self.plane is not None and self._on_plane.up_since is not None:
            return self.plane
        there = self._may_stream and self._on_stream.up_since is not None
        return self.stream if there else None

    def _presence(self, source: EventSource) -> _Presence:
        return self._on_plane if source is self.plane else self._on_stream

    def _plane_waited(self, now: float) -> bool:
        return self.plane is None or now - self._since >= self._wait_s

    def _wants_stream(self, now: float) -> bool:
        if not self._may_stream:
            return False
        if self.current is None:
            return self._plane_waited(now)
        if self.follows_plane:
            down = self._on_plane.down_since
            return down is not None and now - down >= AWAY_S
        return True

    def _switch(self, source: EventSource, now: float) -> None:
        if self.current in (self.plane, self.stream) and self.current is not None:
            left = self._presence(self.current)
            self.switches += 1
            if left.up_since is None:
                left.hold_s = min(2 * left.hold_s, LONGEST_HOLD_S)
        self.current = source
        self._since = now
