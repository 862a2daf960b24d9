"""A trace made ready for simulation: arrivals, prompts, and the hashes engines would compute."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...indexer.hashing import block_hashes, sequence_hashes
from ..traces import TRACE_BLOCK_SIZE, TraceRequest, Turn, write_tokens

Hashes = NDArray[np.uint64]
VOCAB_SIZE = 32_000
# Outputs are made of ids that no trace can have.
_OUTPUT_ID = 2**63


class SimulatedTrace:
    """The requests of a trace, of which there is at least one, with content drawn by `seed`.

    `arrivals_s` are seconds after the first one, nan for a request that follows another one. The
    speed-up shortens the pauses between turns as well.

    Prompts share what their ids share; outputs share nothing. Hashes are computed once, tokens
    each time they are asked for, because those of a long trace would not fit the memory.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest | Turn],
        *,
        block_size: int,
        arrival_speedup: float = 1.0,
        max_output: int | None = None,
        seed: int = 0,
        trace_block_size: int = TRACE_BLOCK_SIZE,
    ) -> None:
        turns = [each if isinstance(each, Turn) else Turn(each) for each in requests]
        self.requests = [turn.request for turn in turns]
        self.block_size = block_size
        self.trace_block_size = trace_block_size
        self._seed = seed
        self._max_output = max_output
        times = np.array([request.timestamp_ms for request in self.requests], np.float64)
        self.arrivals_s = (times - times[0]) / 1e3 / arrival_speedup
        self.followers: dict[int, tuple[int, float]] = {}  # who comes when one is done: s after it
        for place, turn in enumerate(turns):
            if turn.previous is not None:
                self.arrivals_s[place] = np.nan
                self.followers[turn.previous] = (place, turn.delay_ms / 1e3 / arrival_speedup)
        self._hashes: list[tuple[Hashes, Hashes] | None] = [None] * len(requests)

    def __len__(self) -> int:
        return len(self.requests)

    def output_tokens(self, place: int) -> int:
        """Tokens to generate; at least one, as no engine can be asked for less."""
        length = self.requests[place].output_length
        return max(1, length if self._max_output is None else min(length, self._max_output))

    def prompt(self, place: int) -> NDArray[np.uint32]:
        """The prompt's token ids."""
        tokens = self._tokens(place)
        if self._hashes[place] is None:  # while its output is at hand too
            self._hashes[place] = self._hash(tokens)
        return tokens[: self.requests[place].input_length]

    def hashes(self, place: int) -> tuple[Hashes, Hashes]:
        """Local and sequence hashes of every full block of prompt and output."""
        return self._hashes[place] or self._hash(self._tokens(place))

    def _tokens(self, place: int) -> NDArray[np.uint32]:
        """Prompt and output."""
        request, output_tokens = self.requests[place], self.output_tokens(place)
        tokens = np.empty(request.input_length + output_tokens, np.uint32)
        for part, ids, block_size in (
            (tokens[: request.input_length], request.hash_ids, self.trace_block_size),
            (tokens[request.input_length :], (_OUTPUT_ID + place,), output_tokens),
        ):
            write_tokens(part, ids, VOCAB_SIZE, seed=self._seed, block_size=block_size)
        return tokens

    def _hash(self, tokens: NDArray[np.uint32]) -> tuple[Hashes, Hashes]:
        local = block_hashes(tokens, self.block_size)
        return local, sequence_hashes(local)
