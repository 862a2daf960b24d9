"""PeerLoad: has the slots and the policy of a KvRouter count what other routers have booked."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...slots.peers import HASH_BYTES, Booked, PeerBook
from ...slots.table import PEER_MARK, BookingListener, SlotTable
from ...workers.registry import WorkerRegistry
from ..config import KvRouterConfig
from ..policy import Floats, HeardBooking, Policy
from .first_choice import FirstChoice


class PeerLoad:
    """A PeerSink. Hold `lock` around every call of the PeerBook that it serves.

    A request of another router is heard of by the policy as one of its own: its forecast is of all.
    What is booked on a worker that is not registered here is counted when it is.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        slots: SlotTable,
        config: KvRouterConfig,
        learner: Policy,
        lock: AbstractContextManager[object],
        clock: Clock,
    ) -> None:
        self.slots, self.lock = slots, lock
        self.registry = registry
        self._learner, self._clock = learner, clock
        self._first_choice = FirstChoice(registry)
        self._counts_blocks = config.router_track_active_blocks
        self._shares_blocks = config.router_assume_kv_reuse
        self._counts_prefill = config.router_track_prefill_tokens
        self.bookings: PeerBook | None = None

    def connect(self, listener: BookingListener, bookings: PeerBook) -> None:
        """Count these bookings of other routers, and report our own to the listener."""
        self.slots.listener, self.bookings = listener, bookings

    def disconnect(self) -> None:
        """Count no other router's bookings any more. Under the lock."""
        self.slots.listener = self.bookings = None

    def on_own_booked(self, now: float) -> None:
        """This router has booked a request."""
        if self.bookings is not None:
            self._first_choice.on_booked(now)

    def unheard(self, now: float) -> Floats | None:
        """See FirstChoice; None where no other router is heard."""
        book = self.bookings
        return (
            None if book is None else self._first_choice.unheard(book.own_id, book.present(), now)
        )

    def book(self, key: str, booking: Booked) -> None:
        number = self.registry.find(WorkerWithDpRank(booking.worker_id, booking.dp_rank))
        if number is None:
            return
        request_id, slots, now = PEER_MARK + key, self.slots, self._clock.now()
        hashes = booking.hashes if self._counts_blocks else None
        if hashes is not None and not self._shares_blocks:
            hashes = slots.private_hashes(len(hashes) // HASH_BYTES).tobytes()
        left = 0 if booking.prefilled else booking.prefill_tokens
        booked = slots.add_peer_request(
            request_id,
            number,
            hashes,
            booking.isl,
            left if self._counts_prefill else 0,
            booking.expected_output_tokens,
            now,
        )
        if booked and self._learner.learns:
            # A prompt that was computed before it was heard of is as good as cached, and its first
            # token teaches nothing.
            isl, block_size = booking.isl, slots.block_size
            cached = (isl - left) // block_size * block_size
            eligible = self.registry.eligible(now)
            self._learner.on_heard(
                HeardBooking(request_id, number, isl, cached, hashes, slots, eligible, now)
            )

    def complete_prefill(self, key: str, cached_tokens: int) -> None:
        request_id = PEER_MARK + key
        if self.slots.mark_prefill_completed(request_id) and self._learner.learns:
            if cached_tokens >= 0:
                self._learner.on_cached(request_id, cached_tokens)
            self._learner.on_first_token(request_id, self._clock.now())

    def release(self, key: str, output_tokens: int) -> None:
        request_id = PEER_MARK + key
        if self.slots.free(request_id) and self._learner.learns:
            self._learner.on_end(request_id, self._clock.now(), output_tokens or None)

    def on_worker(self, ranks: Iterable[WorkerWithDpRank]) -> None:
        """They were registered, or renewed: count what is booked there and was not counted yet."""
        if self.bookings is None or not len(self.bookings):
            return
        for rank in ranks:
            for key, booking in self.bookings.bookings_on(rank):
                if self.slots.worker_of(PEER_MARK + key) is None:
                    self.book(key, booking)

    def touch(self, now: float) -> None:
        """The bookings of routers that are there do not expire."""
        if self.bookings is not None:
            self.slots.touch_all([PEER_MARK + key for key in self.bookings.keys()], now)
