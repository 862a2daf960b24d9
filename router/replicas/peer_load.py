"""PeerLoad: has the slots and the policy of a KvRouter count what other routers have booked."""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager

import numpy as np

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...slots.peers import HASH_BYTES, Booked, PeerBook
from ...slots.table import PEER_MARK, BookingListener, SlotTable
from ...workers.registry import WorkerRegistry
from ..config import KvRouterConfig
from ..policy import Floats, HeardBooking, Policy
from .first_choice import FirstChoice
from .peer_evidence import CROWDED, PeerEvidence

PROBE_S, MOST_PROBE_S = 1.0, 5.0
"""For so long requests may be held or refused for others' claims where none of ours is anywhere:
where no claim has moved for so long, and in any case."""
BUSY_PROBE_S, MOST_BUSY_PROBE_S = 5.0, 30.0
"""The same where some of ours are."""
COMPARE_EVERY_S = 0.5
MOST_COMPARED = 2**18
"""Blocks of claims that are compared at once."""


class PeerLoad:
    """A PeerSink. Hold `lock` around every call of the PeerBook that it serves.

    A request of another router is given to the policy as one of its own: its forecast is of all.
    What is booked on a worker that is not registered here is counted when it is. What engines
    refute is not counted, and a request of ours goes to see, now and then, where the load that
    others claim would have all wait.
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
        self.evidence = PeerEvidence()
        self._own: set[str] = set()  # our requests in flight
        self._own_at = self._held_at = float("-inf")  # when one was booked, or held, the last time
        self._compared_at = float("-inf")
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
        self._own.clear()

    # What this router sees of the workers

    def on_own_request(self, request_id: str, number: int) -> None:
        """This router has booked a request on a worker. Under the lock, as those below."""
        self._own_at = now = self._clock.now()
        self._own.add(request_id)
        self.evidence.on_own_booked(request_id, number, now)

    def on_own_first_token(self, request_id: str) -> None:
        number = self.slots.worker_of(request_id)
        if number is not None:
            self.evidence.on_own_first_token(
                request_id,
                self._clock.now(),
                int(self.registry.max_num_seqs[number]),
                lambda: self._is_overbooked(number),
            )

    def on_own_ended(self, request_id: str) -> None:
        self._own.discard(request_id)
        self.evidence.on_own_ended(request_id)

    def seconds_to_probe(self, now: float) -> float:
        """For how long a request may still be held, or refused, for the load that others claim; inf
        where they claim none. Asked each time that one would be."""
        if not len(self.evidence):
            return math.inf
        # From when one was first held, in a row of such, after one was last sent.
        if self._held_at <= self._own_at:
            self._held_at = now
        still_s, most_s = PROBE_S, MOST_PROBE_S
        if self._own:
            still_s, most_s = BUSY_PROBE_S, MOST_BUSY_PROBE_S
        still = max(self._held_at, self.evidence.moved_at) + still_s
        return max(0.0, min(still, self._held_at + most_s) - now)

    def judge(self) -> bool:
        """Count no more what engines have refuted; whether load fell."""
        book, now = self.bookings, self._clock.now()
        refuted = self.evidence.judge(now, self._settled_at) if book is not None else []
        for key in refuted:
            self.evidence.withdraw(key)
            self._uncount(key, 0)
        return bool(refuted)

    def _settled_at(self, owner: str) -> float:
        return -math.inf if self.bookings is None else self.bookings.settled_at(owner)

    def _is_overbooked(self, number: int) -> bool:
        """Whether answers are claimed there whose blocks would not fit into its cache."""
        blocks, now = CROWDED * int(self.registry.kv_blocks[number]), self._clock.now()
        if not 0 < blocks < self.slots.active_blocks()[number] or self.bookings is None:
            return False
        if now - self._compared_at < COMPARE_EVERY_S:
            return False
        self._compared_at = now
        claimed = self.bookings.bookings_on(self.registry.worker(number))
        hashes = b"".join(booking.hashes for _, booking in claimed if booking.prefilled)
        some = np.frombuffer(hashes[: MOST_COMPARED * HASH_BYTES], np.uint64)
        return len(np.unique(some)) > blocks

    # What the others claim

    def on_own_booked(self, now: float) -> None:
        """This router has booked a request."""
        if self.bookings is not None:
            self._first_choice.on_booked(now)

    def unheard(self, now: float) -> Floats | None:
        """See FirstChoice; None where there is no other router."""
        book = self.bookings
        return (
            None if book is None else self._first_choice.unheard(book.own_id, book.present(), now)
        )

    def book(self, key: str, booking: Booked) -> None:
        number = self.registry.find(WorkerWithDpRank(booking.worker_id, booking.dp_rank))
        if number is None:
            return
        request_id, slots, now = PEER_MARK + key, self.slots, self._clock.now()
        if not self.evidence.counts(key, now):
            return
        if not booking.prefilled:
            self._first_choice.on_peer_booked(now)
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
        if booked:
            self.evidence.on_claim(key, number, booking.prefilled, now)
        if booked and self._learner.learns:
            # A prompt that was computed before this router knew of it is as good as cached, and its
            # first token teaches nothing.
            isl, block_size = booking.isl, slots.block_size
            cached = (isl - left) // block_size * block_size
            eligible = self.registry.eligible(now)
            self._learner.on_heard(
                HeardBooking(request_id, number, isl, cached, hashes, slots, eligible, now)
            )

    def complete_prefill(self, key: str, cached_tokens: int) -> None:
        request_id = PEER_MARK + key
        if self.evidence.on_prefilled(key, self._clock.now()):
            booking = None if self.bookings is None else self.bookings.booking(key)
            if booking is not None:
                self.book(key, booking)
        elif self.slots.mark_prefill_completed(request_id) and self._learner.learns:
            if cached_tokens >= 0:
                self._learner.on_cached(request_id, cached_tokens)
            self._learner.on_first_token(request_id, self._clock.now())

    def release(self, key: str, output_tokens: int) -> None:
        self.evidence.on_ended(key, self._clock.now())
        self._uncount(key, output_tokens)

    def gone(self, owner: str) -> None:
        """A router has left; what it had booked is released next."""
        self.evidence.on_gone(owner, self._clock.now())

    def _uncount(self, key: str, output_tokens: int) -> None:
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
