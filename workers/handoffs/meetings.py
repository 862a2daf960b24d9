"""Meetings: ids under which two engines meet, none of them twice."""

import random
import uuid

from .connectors import Meeting

_MOST_BITS = 62


class Meetings:
    """Of one process. Numbers are a walk through all that there are, from a random one on: none
    comes twice at one prefill worker before all others of its bits have. Those of other processes
    are elsewhere; of 31 bits two may be the same, and that pair is then chosen anew."""

    def __init__(self, rng: random.Random | None = None) -> None:
        rng = rng or random.SystemRandom()
        self._at, self._step = rng.getrandbits(_MOST_BITS), rng.getrandbits(_MOST_BITS) | 1

    def new(
        self, rank: int, ranks: int, parallel: tuple[int, int], number_bits: int = _MOST_BITS
    ) -> Meeting:
        """For the rank of a prefill worker that has `ranks`. The number is at least 1 and below
        2^`number_bits`, and its remainder by `ranks` is the rank: engines find it so."""
        number = 0
        while not number:  # which engines keep for their own probes
            self._at += self._step
            bits = number_bits - (ranks - 1).bit_length()
            number = (self._at & ((1 << bits) - 1)) * ranks + rank
        return Meeting(number, f"xfer-{uuid.uuid4()}", rank, parallel)
