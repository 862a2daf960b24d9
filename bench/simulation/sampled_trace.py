"""SampledTrace: requests that have ids and no text, for simulations that must not take long."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...indexer.hashing import sequence_hashes
from ..traces import TraceRequest, mix_values
from .prepared_trace import Hashes, SimulatedTrace


class SampledRequest(NamedTuple):
    """Lengths in tokens, and the ids of the prompt's blocks: equal ids are equal beginnings."""

    prompt_tokens: int
    output_tokens: int
    ids: NDArray[np.uint64]


class SampledTrace(SimulatedTrace):
    """Requests at times, ascending, in seconds. Their hashes are made of their ids, not of tokens:
    prompts share what their ids share, in whole blocks of either size.
    """

    def __init__(
        self,
        requests: Sequence[SampledRequest],
        arrivals_s: NDArray[np.float64],
        *,
        block_size: int,
        trace_block_size: int,
    ) -> None:
        super().__init__(
            [
                TraceRequest(at * 1e3, each.prompt_tokens, each.output_tokens, ())
                for each, at in zip(requests, arrivals_s.tolist(), strict=True)
            ],
            block_size=block_size,
            trace_block_size=trace_block_size,
        )
        self.arrivals_s = arrivals_s
        self._sampled = requests

    def hashes(self, place: int) -> tuple[Hashes, Hashes]:
        """As those of every full block of prompt and output."""
        found = self._hashes[place]
        if found is None:
            request, size = self._sampled[place], self.block_size
            blocks = (request.prompt_tokens + request.output_tokens) // size
            full = request.prompt_tokens // size
            number = np.arange(blocks, dtype=np.uint64)
            # An id stands for all before it: the one that a block ends in names its prefix.
            last = ((number[:full] + np.uint64(1)) * np.uint64(size) - np.uint64(1)) // np.uint64(
                self.trace_block_size
            )
            local = number << np.uint64(40)
            local[:full] ^= request.ids[last.astype(np.int64)]
            local[full:] ^= np.uint64(place + 1) << np.uint64(20) ^ np.uint64(1 << 62)
            mix_values(local)
            found = self._hashes[place] = local, sequence_hashes(local)
        return found
