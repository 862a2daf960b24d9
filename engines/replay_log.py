"""The messages a publisher sent last, kept to be sent again to routers that missed some. Pure.

Invariant: what is kept is unbroken and ends with the last message sent.
"""

from collections import deque
from typing import NamedTuple

MIN_REPLAY_INTERVAL_S = 0.05
"""Replays start at least this far apart; what is asked for in between becomes one."""


class _Sent(NamedTuple):
    first_id: int
    last_id: int
    message: bytes


class ReplayLog:
    """Recent messages of one publisher, within `max_events` and `max_bytes`, and who wants them.

    A log without room keeps nothing: every request is then answered by an announcement.
    """

    def __init__(self, *, next_event_id: int, max_events: int, max_bytes: int) -> None:
        """`next_event_id`: that of the first event to come. ValueError if a bound is negative."""
        if min(max_events, max_bytes) < 0:
            raise ValueError("the bounds of a replay log cannot be negative")
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._sent: deque[_Sent] = deque()
        self._bytes = 0
        self._first_id = self._next_id = next_event_id
        self._clear_id = -1
        self._wanted: tuple[int, int | None] | None = None
        self._last_replay = float("-inf")

    @property
    def kept_events(self) -> int:
        return self._sent[-1].last_id - self._sent[0].first_id + 1 if self._sent else 0

    def append(self, first_id: int, last_id: int, message: bytes, clear_id: int | None) -> None:
        """A message with these events was sent; `clear_id`: the last of them that cleared all."""
        self._sent.append(_Sent(first_id, last_id, message))
        self._bytes += len(message)
        self._next_id = last_id + 1
        if clear_id is not None:
            self._clear_id = clear_id
        while self._sent and (self._bytes > self._max_bytes or self.kept_events > self._max_events):
            self._bytes -= len(self._sent.popleft().message)

    def want(self, first_id: int, last_id: int | None) -> None:
        """A subscriber missed the events from `first_id` to `last_id` (None: the newest)."""
        if self._wanted is not None:
            first, last = self._wanted
            first_id = min(first_id, first)
            last_id = None if last is None or last_id is None else max(last_id, last)
        self._wanted = first_id, last_id

    def since(self, first_id: int) -> list[bytes] | None:
        """The messages with the events from this one on; None if they are not kept any more."""
        if first_id >= self._next_id:
            return []
        if not self._sent or self._sent[0].first_id > max(first_id, self._first_id):
            return None
        return [sent.message for sent in self._sent if sent.last_id >= first_id]

    def wait_s(self, now: float) -> float | None:
        """How long until a replay may start; None if none is wanted."""
        if self._wanted is None:
            return None
        return max(0.0, self._last_replay + MIN_REPLAY_INTERVAL_S - now)

    def take(self, now: float) -> list[bytes] | None:
        """The messages that were wanted; None if they are not kept any more, or never were sent.

        Before the first event there was none, though it may be asked for: some numberings begin
        with 0, others with 1. What stands before the last clearing is of no use and is left
        out.
        """
        assert self._wanted is not None
        (first_id, last_id), self._wanted = self._wanted, None
        self._last_replay = now
        first_id = max(first_id, self._first_id)
        if first_id == self._next_id:
            return []
        if first_id <= self._clear_id:
            first_id = self._clear_id
            last_id = None if last_id is None else max(last_id, first_id)
        if not self._sent or not self._sent[0].first_id <= first_id < self._next_id:
            return None
        return [
            sent.message
            for sent in self._sent
            if sent.last_id >= first_id and (last_id is None or sent.first_id <= last_id)
        ]
