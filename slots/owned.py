"""OwnedBookings: what callers have booked for requests that the router itself does not see.

They say when such a request has its first token and when it ends, if they do. So their bookings
are bounded, and no caller is made to wait for them alone.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K", str, int)


class _Booking(NamedTuple):
    owner: str
    entries: int
    worker: int
    prefill_tokens: int


class OwnedBookings:
    """Those of a slot table that have an owner, by request id. Workers are the table's numbers."""

    def __init__(self) -> None:
        self.bookings: dict[str, _Booking] = {}
        self._entries: dict[str, int] = {}  # by owner
        self._prefill_tokens: dict[int, int] = {}  # by worker

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.bookings

    def entries_of(self, owner: str) -> int:
        """What an owner has booked, in entries of the table."""
        return self._entries.get(owner, 0)

    def add(
        self, request_id: str, owner: str, entries: int, worker: int, prefill_tokens: int
    ) -> None:
        """A request was booked for an owner."""
        self.bookings[request_id] = _Booking(owner, entries, worker, prefill_tokens)
        _count(self._entries, owner, entries)
        _count(self._prefill_tokens, worker, prefill_tokens)

    def complete_prefill(self, request_id: str) -> None:
        """Its first token is out. Any id: those that are not here are not an error."""
        booking = self.bookings.get(request_id)
        if booking is not None:
            _count(self._prefill_tokens, booking.worker, -booking.prefill_tokens)
            self.bookings[request_id] = booking._replace(prefill_tokens=0)

    def remove(self, request_ids: Iterable[str]) -> None:
        """They are booked no more. Any ids, as above."""
        for request_id in request_ids:
            booking = self.bookings.pop(request_id, None)
            if booking is not None:
                _count(self._entries, booking.owner, -booking.entries)
                _count(self._prefill_tokens, booking.worker, -booking.prefill_tokens)

    def without(self, prefill_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """All workers' prefill tokens, less those of these bookings."""
        left = prefill_tokens.copy()
        for worker, tokens in self._prefill_tokens.items():
            left[worker] -= tokens
        return left

    def check(self, is_booked: Callable[[str], bool]) -> None:
        """Recount. AssertionError if a sum is wrong, or one of them is not booked."""
        entries: dict[str, int] = {}
        tokens: dict[int, int] = {}
        for booking in self.bookings.values():
            _count(entries, booking.owner, booking.entries)
            _count(tokens, booking.worker, booking.prefill_tokens)
        assert (entries, tokens) == (self._entries, self._prefill_tokens)
        assert all(map(is_booked, self.bookings))


def _count(sums: dict[K, int], key: K, change: int) -> None:
    """Change a sum; one of 0 is not kept."""
    total = sums.get(key, 0) + change
    if total:
        sums[key] = total
    else:
        sums.pop(key, None)
