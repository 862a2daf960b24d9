"""SharedSlots: a slot table that several routers keep in step."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .table import DEFAULT_MAX_ENTRIES, SlotTable

PEER_MARK = "\x1epeer/"
"""What the ids of other routers' requests begin with."""


class BookingListener(Protocol):
    """Hears of what this router books and releases, at once."""

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


class SharedSlots(SlotTable):
    """Tells `listener` of its requests, and counts those of other routers in every load.

    Blocks that requests of two routers share count once, as if one router had booked both.
    """

    def __init__(
        self,
        block_size: int,
        *,
        expiry_s: float = 300.0,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        owner_share: float = 1.0,
    ) -> None:
        super().__init__(
            block_size, expiry_s=expiry_s, max_entries=max_entries, owner_share=owner_share
        )
        self.listener: BookingListener | None = None
        self._peers: dict[str, int] = {}  # the others' requests, and the worker of each

    def _on_booked(
        self,
        request_id: str,
        number: int,
        seq_hashes: npt.NDArray[np.uint64] | None,
        isl: int,
        prefill_tokens: int,
        expected_output_tokens: int | None,
    ) -> None:
        if self.listener is not None:
            self.listener.on_booked(
                request_id, number, seq_hashes, isl, prefill_tokens, expected_output_tokens
            )

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

    def complete_peer_prefill(self, request_id: str) -> bool:
        """The first token of another router's request is out. False if it is not booked."""
        return self._book.mark_prefill_completed(request_id)

    def free_peer_request(self, request_id: str) -> bool:
        """Another router's request ended. False if it is not booked."""
        known = self._book.free(request_id)
        if known:
            del self._peers[request_id]
        return known

    def mark_prefill_completed(self, request_id: str, cached_tokens: int | None = None) -> bool:
        known = super().mark_prefill_completed(request_id)
        if known and self.listener is not None and request_id not in self._peers:
            self.listener.on_prefilled(request_id, cached_tokens)
        return known

    def free(self, request_id: str, output_tokens: int | None = None) -> bool:
        known = super().free(request_id)
        if known:
            self._gone((request_id,), output_tokens)
        return known

    def expire(self, now: float) -> list[str]:
        expired = super().expire(now)
        if expired:
            self._gone(expired)
        return expired

    def remove_worker(self, number: int) -> list[str]:
        """The ids of this router's requests there; the others' go without a word."""
        dropped = super().remove_worker(number)
        self._gone(dropped)
        return [request_id for request_id in dropped if not request_id.startswith(PEER_MARK)]

    def own_requests(self) -> npt.NDArray[np.int64]:
        requests = self.active_requests()
        for number in self._peers.values():
            requests[number] -= 1
        return requests

    def _gone(self, request_ids: Iterable[str], output_tokens: int | None = None) -> None:
        for request_id in request_ids:
            own = self._peers.pop(request_id, None) is None
            if own and self.listener is not None:
                self.listener.on_ended(request_id, output_tokens)
