"""Meetings: ids under which two engines meet, none of them twice."""

import random
import uuid

from .connectors import Meeting

_BITS = 62
"""Of a number: engines take 63, and those of one that want an id of their own kind set the last."""


class Meetings:
    """Of one process. Numbers are a walk through all that there are, from a random one on: none
    comes twice at one prefill worker, and those of other processes are elsewhere."""

    def __init__(self, rng: random.Random | None = None) -> None:
        rng = rng or random.SystemRandom()
        self._at, self._step = rng.getrandbits(_BITS), rng.getrandbits(_BITS) | 1

    def new(self, rank: int, ranks: int, parallel: tuple[int, int]) -> Meeting:
        """For the rank of a prefill worker that has `ranks`. The number is at least 1, and its
        remainder by `ranks` is the rank: engines find it so."""
        number = 0
        while not number:  # which engines keep for their own probes
            self._at += self._step
            bits = _BITS - (ranks - 1).bit_length()
            number = (self._at & ((1 << bits) - 1)) * ranks + rank
        return Meeting(number, f"xfer-{uuid.uuid4()}", rank, parallel)
