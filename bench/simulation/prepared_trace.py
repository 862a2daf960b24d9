"""A trace made ready for simulation: arrivals, prompts, and the hashes engines would compute."""

from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...indexer.hashing import block_hashes, sequence_hashes
from ...router.prompt import Prompt
from ..traces import TRACE_BLOCK_SIZE, TraceRequest, Turn, write_tokens

Hashes = NDArray[np.uint64]
VOCAB_SIZE = 32_000
# Outputs are made of ids that no trace can have.
_OUTPUT_ID = 2**63


class SimulatedTrace:
    """The requests of a trace, of which there is at least one, with content drawn by `seed`.

    `arrivals_s` are seconds after the first one, nan for a request that follows another one. The
    speed-up shortens the pauses between turns as well.

    Prompts share what their ids share; outputs share nothing. Hashes are computed once and kept;
    tokens are not: those of a long trace would not fit the memory.
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
        self._turns = turns
        self._seed = seed
        self._max_output = max_output
        self._returning: list[int] | None = None
        self._hashes: list[tuple[Hashes, Hashes] | None] = [None] * len(requests)
        self._set_times(arrival_speedup)

    def _set_times(self, arrival_speedup: float) -> None:
        times = np.array([request.timestamp_ms for request in self.requests], np.float64)
        self.arrivals_s = (times - times[0]) / 1e3 / arrival_speedup
        self.followers: dict[int, tuple[int, float]] = {}  # who comes when one is done: s after it
        for place, turn in enumerate(self._turns):
            if turn.previous is not None:
                self.arrivals_s[place] = np.nan
                self.followers[turn.previous] = (place, turn.delay_ms / 1e3 / arrival_speedup)

    def sped_up(self, arrival_speedup: float) -> Self:
        """The same requests at the trace's times divided by this. Hashes are shared."""
        other = copy(self)
        other._set_times(arrival_speedup)
        return other

    def evenly_apart(self, gap_s: float) -> Self:
        """The same requests, each this long after the one before; turns follow as they do."""
        other = copy(self)
        other.arrivals_s = self.arrivals_s.copy()
        firsts = ~np.isnan(other.arrivals_s)
        other.arrivals_s[firsts] = gap_s * np.arange(int(firsts.sum()))
        return other

    def __len__(self) -> int:
        return len(self.requests)

    def output_tokens(self, place: int) -> int:
        """Tokens to generate; at least one, as no engine can be asked for less."""
        length = self.requests[place].output_length
        return max(1, length if self._max_output is None else min(length, self._max_output))

    def returning_tokens(self, place: int) -> int:
        """How many of its prompt's tokens a later request begins with."""
        if self._returning is None:
            self._returning = returning_tokens(self.requests, self.trace_block_size)
        return self._returning[place]

    def prompt(self, place: int) -> Prompt:
        """The prompt as a router takes it, hashed already."""
        length = self.requests[place].input_length
        blocks = length // self.block_size
        local, sequence = (hashes[:blocks].tobytes() for hashes in self.hashes(place))
        return Prompt.of_packed(length, self.block_size, (local, sequence))

    def hashes(self, place: int) -> tuple[Hashes, Hashes]:
        """Local and sequence hashes of every full block of prompt and output."""
        found = self._hashes[place]
        if found is None:
            local = block_hashes(self._tokens(place), self.block_size)
            found = self._hashes[place] = local, sequence_hashes(local)
        return found

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


def returning_tokens(requests: Sequence[TraceRequest], trace_block_size: int) -> list[int]:
    """How many tokens of each prompt one of those behind it begins with."""
    later: set[int] = set()
    found: list[int] = []
    for request in reversed(requests):
        depth = 0
        while depth < len(request.hash_ids) and request.hash_ids[depth] in later:
            depth += 1
        found.append(min(depth * trace_block_size, request.input_length))
        later.update(request.hash_ids)
    return found[::-1]
