"""Meetings: ids under which two engines meet, none of them twice."""

import random
import uuid
from collections.abc import Callable, Collection

from .connectors import Meeting

_MOST_BITS = 62
SHARE_BITS = 7
"""Of a number, for its router: more shares than a router counts others."""


def share_of(own_id: int, others: Collection[int]) -> int:
    """Which share of the numbers a router's are, by the ids of all: in the order of ids each begins
    at its own, and takes the next share that is free. Routers that know the same ids have shares
    of their own, up to 2^SHARE_BITS of them."""
    shares = 1 << SHARE_BITS
    taken: set[int] = set()
    for router_id in sorted({own_id, *others}):
        share = router_id % shares
        while share in taken:
            share = (share + 1) % shares
        if router_id == own_id:
            break
        taken.add(share)
        if len(taken) == shares:  # all begin anew
            taken.clear()
    return share


class _Walk:
    """Through all numbers of _MOST_BITS bits, from a random one on."""

    def __init__(self, rng: random.Random) -> None:
        self._at, self._step = rng.getrandbits(_MOST_BITS), rng.getrandbits(_MOST_BITS) | 1

    def next(self) -> int:
        self._at += self._step
        return self._at


_OF_PROCESS = _Walk(random.SystemRandom())


class Meetings:
    """Of one pool. Numbers are a walk through its share of all that there are, from a random one
    on: none comes twice at one prefill worker before all others of that share have. The pools of a
    process take the steps of one walk, so that two with the same share make no number twice either.

    Two routers that know each other never make the same number. Of two that do not, one in
    2^SHARE_BITS pairs has the same share; taken over all pairs, a new number is one of n that the
    other's requests have there at that moment with the chance n / 2^bits.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng`: for a walk of its own."""
        self._walk = _OF_PROCESS if rng is None else _Walk(rng)
        self._own_id = (rng or random.SystemRandom()).getrandbits(_MOST_BITS)
        self._others: Callable[[], Collection[int]] = frozenset
        self._share_among: frozenset[int] | None = None
        self._share = 0

    def join(self, own_id: int, others: Callable[[], Collection[int]]) -> None:
        """There are other routers, of the ids that `others` returns now; they call this one
        `own_id`."""
        self._own_id, self._others, self._share_among = own_id, others, None

    def new(
        self, rank: int, ranks: int, parallel: tuple[int, int], number_bits: int = _MOST_BITS
    ) -> Meeting:
        """For the rank of a prefill worker that has `ranks`. The number is at least 1 and below
        2^`number_bits`, and its remainder by `ranks` is the rank: engines find it so."""
        others = frozenset(self._others())
        if others != self._share_among:
            self._share_among, self._share = others, share_of(self._own_id, others)
        number = 0
        while not number:  # which engines keep for their own probes
            bits = number_bits - (ranks - 1).bit_length() - SHARE_BITS
            number = (self._share << bits | self._walk.next() & ((1 << bits) - 1)) * ranks + rank
        return Meeting(number, f"xfer-{uuid.uuid4()}", rank, parallel)
