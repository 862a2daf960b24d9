"""Who is busy with what: the requests in flight on every worker, and the load they make.

The router books each request here once and releases it once. Workers are dense numbers (see
workers/registry.py); every array is aligned by them. Pure: `now` is a monotonic time handed in.

Invariants: a request is booked on one worker until it is freed, expires, or its worker leaves; a
worker's load is the sum over its requests, a block held by several of them counting once; memory
is bounded by `max_entries` and given back when requests go; what an owner has booked is the sum
over its requests.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ._sequences import SequenceBook
from .owned import OwnedBookings

# About 1.2 GB at the worst; a fleet of 1000 workers with 16k blocks each just fits.
DEFAULT_MAX_ENTRIES = 2**24
PEER_MARK = "\x1epeer/"
"""What the ids of other routers' requests begin with."""


class BookingListener(Protocol):
    """Gets each booking and release of this router, at once."""

    def on_booked(
        self,
        request_id: str,
        number: int,
        seq_hashes: npt.NDArray[np.uint64] | None,
        isl: int,
        prefill_tokens: int,
        expected_output_tokens: int | None,
    ) -> None: ...

    def on_prefilled(self, request_id: str, cached_tokens: int | None) -> None: ...

    def on_ended(self, request_id: str, output_tokens: int | None) -> None: ...


class SlotTable:
    """The active requests of a fleet.

    `block_size` is in tokens. A request older than `expiry_s` seconds is dropped by `expire`.
    `max_entries` bounds the table: the sum, over all requests, of 1 + the blocks it holds. What
    does not fit is not booked, and counted in `refused`; its worker then looks less busy than it
    is. Requests may have an owner, of which each has at most `owner_share` of the table; what would
    be more is not booked, and counted in `over_share`.

    Where several routers serve the same workers, `listener` gets this router's requests, and
    those of the others count in every load: blocks that requests of two routers share count once,
    as if one router had booked both.

    Raises ValueError on a block size below 1 or an expiry that is not positive. Worker numbers
    that are not in use are a ValueError everywhere.
    """

    def __init__(
        self,
        block_size: int,
        *,
        expiry_s: float = 300.0,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        owner_share: float = 1.0,
    ) -> None:
        self._book = SequenceBook(block_size, expiry_s, max_entries)
        self.block_size = block_size
        self.over_share = 0  # bookings refused because their owner has its share
        self.max_entries_each = max(1, int(max_entries * owner_share))
        self._owned = OwnedBookings()
        self.listener: BookingListener | None = None
        self._peers: dict[str, int] = {}  # other routers' requests, and the worker of each

    # Workers

    @property
    def native(self) -> SequenceBook:
        """The kernel, for other kernels: _sequences.pxd."""
        return self._book

    def add_worker(self, number: int) -> None:
        """Start to count for a worker. ValueError if the number is in use."""
        self._book.add_worker(number)

    def remove_worker(self, number: int) -> list[str]:
        """Stop; its requests are dropped. Returns the ids of those of this router."""
        dropped = self._book.remove_worker(number)
        self._owned.remove(dropped)
        own = [request_id for request_id in dropped if request_id not in self._peers]
        self._on_gone(dropped)
        return own

    def reach(self, number: int) -> None:
        """Have an entry in every array for this number, whether it is in use or not."""
        self._book.reach(number)

    def has_worker(self, number: int) -> bool:
        return self._book.has_worker(number)

    @property
    def capacity(self) -> int:
        """One more than the highest number ever in use: the length of every array."""
        return self._book.capacity

    # Requests

    def add_request(
        self,
        request_id: str,
        number: int,
        seq_hashes: npt.NDArray[np.uint64] | None,
        *,
        isl: int,
        overlap_blocks: int,
        now: float,
        expected_output_tokens: int | None = None,
        track_prefill: bool = True,
        owner: str | None = None,
    ) -> bool:
        """Book a request of `isl` tokens, `overlap_blocks` of which the worker has in its cache.

        `seq_hashes` are those of its full blocks; None books no blocks. Without `track_prefill` it
        adds no prefill tokens. False if the id is booked already, the table is full, or the owner
        has its share of it.
        """
        entries = 1 + (0 if seq_hashes is None else len(seq_hashes))
        if owner is not None and self._owned.entries_of(owner) + entries > self.max_entries_each:
            self.over_share += 1
            return False
        prefill_tokens = 0
        if track_prefill:
            prefill_tokens = max(0, isl - overlap_blocks * self.block_size)
        booked = self._book.add_request(
            request_id, number, seq_hashes, isl, prefill_tokens, expected_output_tokens or 0, now
        )
        if booked and owner is not None:
            self._owned.add(request_id, owner, entries, number, prefill_tokens)
        if booked and self.listener is not None:
            self.listener.on_booked(
                request_id, number, seq_hashes, isl, prefill_tokens, expected_output_tokens
            )
        return booked

    def add_peer_request(
        self,
        request_id: str,
        number: int,
        hashes: bytes | None,
        isl: int,
        prefill_tokens: int,
        expected_output_tokens: int,
        now: float,
    ) -> bool:
        """Book a request of another router, whose id begins with PEER_MARK.

        `hashes` are its blocks' sequence hashes, 8 bytes each, little-endian.
        """
        booked = self._book.add_request(
            request_id, number, hashes, isl, prefill_tokens, expected_output_tokens, now
        )
        if booked:
            self._peers[request_id] = number
        return booked

    def mark_prefill_completed(self, request_id: str, cached_tokens: int | None = None) -> bool:
        """The first token is out: its prompt weighs no more. False if the id is not booked.

        `cached_tokens` here, and `output_tokens` below, are for the listener.
        """
        if self._owned.bookings:
            self._owned.complete_prefill(request_id)
        known = self._book.mark_prefill_completed(request_id)
        if known and self.listener is not None and request_id not in self._peers:
            self.listener.on_prefilled(request_id, cached_tokens)
        return known

    def add_output_tokens(self, request_id: str, generated: int) -> bool:
        """Note that `generated` tokens are out in all; opt-in, for counting blocks of output.

        When prompt and output together reach into a further block, one unshared block is
        added. If the expected output length is known, every block that only this request holds
        then weighs the part of the output that is still to come. True if a block was added.
        """
        return self._book.add_output_tokens(request_id, generated)

    def touch(self, request_id: str, now: float) -> bool:
        """Note that a request is alive: its age counts from `now`. False if it is not booked."""
        return self._book.touch(request_id, now)

    def touch_all(self, request_ids: Iterable[str], now: float) -> None:
        """`touch` for each of them."""
        touch = self._book.touch
        for request_id in request_ids:
            touch(request_id, now)

    def free(self, request_id: str, output_tokens: int | None = None) -> bool:
        """The request ended, however it did. False if the id is not booked, which is no error."""
        if self._owned.bookings:
            self._owned.remove((request_id,))
        known = self._book.free(request_id)
        if known and (self._peers or self.listener is not None):
            self._on_gone((request_id,), output_tokens)
        return known

    def expire(self, now: float) -> list[str]:
        """Drop the requests that are too old; their ids. Costs nothing while there are none."""
        expired = self._book.expire(now)
        self._owned.remove(expired)
        self._on_gone(expired)
        return expired

    def _on_gone(self, request_ids: Iterable[str], output_tokens: int | None = None) -> None:
        if self._peers or self.listener is not None:
            for request_id in request_ids:
                own = self._peers.pop(request_id, None) is None
                if own and self.listener is not None:
                    self.listener.on_ended(request_id, output_tokens)

    def worker_of(self, request_id: str) -> int | None:
        """The number of the worker a request is booked on."""
        return self._book.worker_of(request_id)

    # Loads

    def potential(
        self,
        seq_hashes: npt.NDArray[np.uint64] | None,
        isl: int,
        overlaps: npt.NDArray[np.uint32] | None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """What every worker's load would be with this request on it: (blocks, prefill tokens).

        Blocks are whole numbers: the active ones and those of `seq_hashes` not among them. Costs
        O(hashes + (hash, worker) pairs that are active). ValueError if `overlaps`, in blocks, does
        not have `capacity` entries.
        """
        return self._book.potential(seq_hashes, isl, overlaps)

    def potential_of(self, seq_hashes: npt.NDArray[np.uint64] | None, number: int) -> int:
        """The blocks of one worker alone."""
        return self._book.potential_of(seq_hashes, number)

    def active_blocks(self) -> npt.NDArray[np.int64]:
        """Distinct blocks held, fractional ones by their fraction, rounded."""
        return self._book.active_blocks()

    def active_prefill_tokens(self) -> npt.NDArray[np.int64]:
        """Prompt tokens still to be prefilled."""
        return self._book.active_prefill_tokens()

    def certain_prefill_tokens(self) -> npt.NDArray[np.int64]:
        """Those of them that the router follows itself: without those of bookings with an owner,
        who need not say when a prompt is computed."""
        tokens = self._book.active_prefill_tokens()
        return self._owned.without(tokens) if self._owned.bookings else tokens

    def active_requests(self) -> npt.NDArray[np.int64]:
        """Requests in flight."""
        return self._book.active_requests()

    def own_requests(self) -> npt.NDArray[np.int64]:
        """Those of them that this router has booked itself."""
        requests = self._book.active_requests()
        for number in self._peers.values():
            requests[number] -= 1
        return requests

    def private_hashes(self, count: int) -> npt.NDArray[np.uint64]:
        """Sequence hashes that no other request has: for prompts assumed to share no blocks."""
        return self._book.fresh_hashes(count)

    def entries_of(self, owner: str) -> int:
        """What an owner has booked, in entries of the table."""
        return self._owned.entries_of(owner)

    # What happened, and how big it is

    @property
    def has_owned(self) -> bool:
        """Whether any request is booked for an owner."""
        return bool(self._owned.bookings)

    def is_owned(self, request_id: str) -> bool:
        """Whether a request is booked for an owner, by whose word alone its prompt is computed."""
        return request_id in self._owned

    @property
    def total_requests(self) -> int:
        return self._book.total_requests

    @property
    def duplicates(self) -> int:
        """Requests that were not booked because their id was."""
        return self._book.duplicates

    @property
    def refused(self) -> int:
        """Requests and output blocks that were not booked because the table was full."""
        return self._book.refused

    @property
    def expired(self) -> int:
        """Requests that were dropped for their age."""
        return self._book.expired

    def memory_bytes(self) -> int:
        """Native memory in use, without the request ids. Walks the table: not for a hot path."""
        return self._book.memory_bytes()

    def check_integrity(self) -> None:
        """Recount everything from the requests; AssertionError if a sum is wrong. For tests."""
        self._book.check_integrity()
        self._owned.check(lambda request_id: self._book.worker_of(request_id) is not None)
