"""OwnBookings: what this router has booked, as it reports to the others."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import TypeVar

import msgspec

from .messages import (
    MAX_EVENTS,
    MAX_ID,
    MAX_NAME,
    Batch,
    Beat,
    Booked,
    Ended,
    Event,
    Picture,
    Prefilled,
)

E = TypeVar("E", Event, Booked)

MAX_BYTES = 256 << 10
"""Of hashes in a message, unless one booking alone has more."""
MAX_PENDING = 100_000
"""Events that wait to be taken; beyond, they are dropped, and a picture has to replace them."""


class OwnBookings:
    """Numbers and batches the events of one router, and draws the picture of what it has booked.

    Invariant: the picture with `following` N is what the batches before N come to.
    """

    def __init__(self, router_id: int, name: str = "") -> None:
        """`router_id` is random and not 0; `name` is for people."""
        self.router_id, self.name = router_id, name[:MAX_NAME]
        self.following = 0
        self.dropped = 0
        """events that were published only as part of a picture"""
        self._active: dict[str, Booked] = {}
        self._pending: list[Event] = []

    def __len__(self) -> int:
        return len(self._active)

    @property
    def pending(self) -> int:
        """Events that wait to be taken."""
        return len(self._pending)

    def on_booked(self, booking: Booked) -> None:
        if len(booking.request_id) > MAX_ID:
            booking = msgspec.structs.replace(booking, request_id=_short(booking.request_id))
        self._active[booking.request_id] = booking
        self._add(booking)

    def on_prefilled(self, request_id: str, cached_tokens: int | None) -> None:
        """Only its first time counts. Unknown ids are ignored, here and below."""
        request_id = _short(request_id)
        booking = self._active.get(request_id)
        if booking is not None and not booking.prefilled:
            self._active[request_id] = booking.after_prefill()
            self._add(Prefilled(request_id, -1 if cached_tokens is None else cached_tokens))

    def on_ended(self, request_id: str, output_tokens: int | None) -> None:
        request_id = _short(request_id)
        if self._active.pop(request_id, None) is not None:
            self._add(Ended(request_id, output_tokens or 0))

    def take(self) -> list[Batch]:
        """What has happened since the last time."""
        events, self._pending = self._pending, []
        batches = []
        for some in _portions(events):
            batches.append(Batch(self.router_id, self.following, some))
            self.following += 1
        return batches

    def beat(self, *, leaving: bool = False) -> Beat:
        return Beat(self.router_id, self.name, self.following, leaving)

    def picture(self) -> list[Picture]:
        """All that is booked; take what is pending before."""
        assert not self._pending
        portions = list(_portions(list(self._active.values()))) or [[]]
        return [
            Picture(self.router_id, self.following, chunk, len(portions), some)
            for chunk, some in enumerate(portions)
        ]

    def drop_pending(self) -> None:
        """What is pending cannot be published: there will be a hole in the numbers."""
        if self._pending:
            self.dropped += len(self._pending)
            self._pending.clear()
            self.following += 1

    def _add(self, event: Event) -> None:
        if len(self._pending) >= MAX_PENDING:
            self.drop_pending()
        self._pending.append(event)


def _short(request_id: str) -> str:
    """The id, or what stands for one that is too long for a message."""
    if len(request_id) <= MAX_ID:
        return request_id
    return blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _portions(events: list[E]) -> Iterator[list[E]]:
    """The events in lists that are not too large for a message."""
    some: list[E] = []
    size = 0
    for event in events:
        more = len(event.hashes) if isinstance(event, Booked) else 0
        if some and (len(some) >= MAX_EVENTS or size + more > MAX_BYTES):
            yield some
            some, size = [], 0
        some.append(event)
        size += more
    if some:
        yield some
