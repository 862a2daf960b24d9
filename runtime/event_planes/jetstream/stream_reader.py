"""StreamReader: how far a reader of a stream has come, and whether it missed any of it. Pure.

Invariants: of one life of a stream, messages are delivered in its order and each at most once; what
was passed over is counted in `lapses`; what was acknowledged was delivered before.
"""

from dataclasses import dataclass

IDLE_HEARTBEAT_S = 2.0
"""How often the server says that it has nothing to deliver."""
SILENCE_S = 3.5 * IDLE_HEARTBEAT_S
FALL_BACK_S = 3.0
"""How long the stream may be unreadable before messages are taken as they are published."""
ACK_S = 0.1
MAX_UNACKED = 512
"""Messages are acknowledged this often at least: whichever comes first."""
BEHIND = 1024
"""A reader with more messages than this before it is catching up again."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a stream was read: `created` says which life of it is meant."""

    created: str
    sequence: int
    """of the last message that counts as read"""


class StreamReader:
    """One reader of one stream, which `begin` opens, again after each time that it broke.

    Times are seconds that never go back.
    """

    def __init__(self, position: StreamPosition | None = None) -> None:
        """`position`: what is before it is known already, from a snapshot."""
        self._created = "" if position is None else position.created
        self.read = 0 if position is None else position.sequence
        """sequence of the last message delivered, or known before"""
        self.acked = 0
        self.lapses = 0
        """times that messages were passed over: they are gone from the stream"""
        self.is_open = False
        self.caught_up = False
        """whether all was delivered that was in the stream not long ago"""
        self._deliveries = 0
        self._heard = self._acked_at = float("-inf")
        self._failing_since: float | None = None

    @property
    def position(self) -> StreamPosition:
        return StreamPosition(self._created, self.read)

    def begin(self, created: str, first: int, last: int, now: float) -> int:
        """The stream is there, with messages from `first` to `last`: the sequence to read from."""
        known = bool(self._created)
        same = created == self._created and self.read <= last
        start = self.read + 1 if same else 1
        if known and (not same or first > start):
            self.lapses += 1
        self._created = created
        self.read = max(start, first) - 1
        self.acked = min(self.acked, self.read) if same else 0
        self._deliveries = 0
        self._heard = now
        self._failing_since = None
        self.is_open = True
        self.caught_up = last <= self.read
        return self.read + 1

    def on_message(self, sequence: int, delivery: int, pending: int, now: float) -> bool:
        """Whether to deliver this message of the stream. `delivery` counts those sent to us,
        `pending` are behind it."""
        if not self.is_open:
            return False
        self._heard = now
        if delivery != self._deliveries + 1:
            self.is_open = False  # some were lost on their way
            return False
        self._deliveries = delivery
        if sequence <= self.read:
            return False  # sent again, because it was not acknowledged in time
        if sequence != self.read + 1:
            self.lapses += 1
        self.read = sequence
        self.caught_up = pending == 0 or (self.caught_up and pending <= BEHIND)
        return True

    def on_idle(self, delivery: int, now: float) -> None:
        """The server has nothing to deliver, and says which delivery was the last."""
        self._heard = now
        if delivery != self._deliveries:
            self.is_open = False
        else:
            self.caught_up = True  # what was still behind the last message is gone

    def on_broken(self, now: float) -> None:
        """The connection, the consumer or the stream is gone, or could not be had."""
        self.is_open = False
        if self._failing_since is None:
            self._failing_since = now

    def is_silent(self, now: float) -> bool:
        """Whether the server has said nothing for too long."""
        return self.is_open and now - self._heard > SILENCE_S

    def falls_back(self, now: float) -> bool:
        """Whether messages are to be taken as they are published: the stream is away for long."""
        since = self._failing_since
        return not self.is_open and since is not None and now - since >= FALL_BACK_S

    def ack_due(self, now: float) -> int | None:
        """Up to which message to acknowledge; None: nothing yet."""
        waiting = self.read - self.acked
        if not self.is_open or not self._deliveries or waiting <= 0:
            return None
        if waiting < MAX_UNACKED and now - self._acked_at < ACK_S:
            return None
        return self.read

    def on_acked(self, sequence: int, now: float) -> None:
        self.acked, self._acked_at = sequence, now
