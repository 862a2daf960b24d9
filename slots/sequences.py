"""The active requests of one worker, under the names Dynamo's users know. For embedding and tests.

The router itself uses table.py, which answers for all workers in one call.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .table import DEFAULT_MAX_HELD, SlotTable

_WORKER = 0

TokenSequence = npt.NDArray[np.uint64] | Sequence[int]


class ActiveSequences:
    """Blocks and prefill tokens of the requests that one worker has in flight.

    A token sequence is the sequence hashes of a prompt's full blocks (u64 array or ints), or None
    where blocks are not tracked. Lengths are in tokens, `overlap` and results in blocks. `now` is a
    monotonic time in seconds.
    """

    def __init__(
        self, block_size: int, *, expiry_s: float = 300.0, max_held: int = DEFAULT_MAX_HELD
    ) -> None:
        self._table = SlotTable(block_size, expiry_s=expiry_s, max_held=max_held)
        self._table.add_worker(_WORKER)

    def add_request(
        self,
        request_id: str,
        token_sequence: TokenSequence | None,
        isl: int,
        overlap: int,
        expected_output_tokens: int | None = None,
        *,
        now: float,
    ) -> list[str]:
        """Book a request; returns the ids that had expired by `now` and were dropped first.

        An id that is booked already is ignored and counted, and so is an overlap beyond `isl`.
        """
        expired = self._table.expire(now)
        self._table.add_request(
            request_id,
            _WORKER,
            _hashes(token_sequence),
            isl=isl,
            overlap_blocks=overlap,
            now=now,
            expected_output_tokens=expected_output_tokens,
        )
        return expired

    def mark_prefill_completed(self, request_id: str) -> None:
        """Its prompt tokens weigh no more; unknown ids are ignored, and so is a second time."""
        self._table.mark_prefill_completed(request_id)

    def add_output_tokens(self, request_id: str, generated: int) -> bool:
        """See SlotTable.add_output_tokens."""
        return self._table.add_output_tokens(request_id, generated)

    def free(self, request_id: str) -> int:
        """Release a request; unknown ids are ignored. Returns the active blocks left."""
        self._table.free(request_id)
        return self.active_blocks

    def force_expiry(self, now: float) -> list[str]:
        """Drop the requests that are too old; their ids."""
        return self._table.expire(now)

    def new_blocks(self, token_sequence: TokenSequence) -> int:
        """How many of the blocks no request holds."""
        return self.potential_blocks(token_sequence) - self.active_blocks

    def potential_blocks(self, token_sequence: TokenSequence) -> int:
        """Active blocks if a request with this sequence came."""
        return self.potential_blocks_and_tokens(token_sequence, 0, 0)[0]

    def potential_blocks_and_tokens(
        self, token_sequence: TokenSequence | None, isl: int, overlap: int
    ) -> tuple[int, int]:
        """Active blocks and prefill tokens if this request came."""
        overlaps = np.array([overlap], dtype=np.uint32)
        blocks, tokens = self._table.potential(_hashes(token_sequence), isl, overlaps)
        return int(blocks[_WORKER]), int(tokens[_WORKER])

    @property
    def active_blocks(self) -> int:
        """Distinct blocks in use, fractional ones by their fraction, rounded."""
        return int(self._table.active_blocks()[_WORKER])

    @property
    def active_tokens(self) -> int:
        """Prompt tokens still to be prefilled."""
        return int(self._table.active_prefill_tokens()[_WORKER])

    @property
    def duplicates(self) -> int:
        """Requests ignored because their id was booked."""
        return self._table.duplicates

    @property
    def overlaps_clamped(self) -> int:
        """Requests whose overlap was longer than their prompt."""
        return self._table.overlaps_clamped

    def __len__(self) -> int:
        return self._table.total_requests

    def __contains__(self, request_id: str) -> bool:
        return self._table.worker_of(request_id) is not None


def _hashes(token_sequence: TokenSequence | None) -> npt.NDArray[np.uint64] | None:
    if token_sequence is None:
        return None
    return np.ascontiguousarray(token_sequence, dtype=np.uint64)
