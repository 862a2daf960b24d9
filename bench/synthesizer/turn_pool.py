"""Chooses the learned turn that a turn of a drawn session gets its lengths and pauses from."""

from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from .sessions import TurnRecords
from .streams import Stream

# Chosen on the conversation trace: more to choose from mixes more, and strays further from what
# was learned; docs/synthesizer.md has the figures.
NEAREST = 4  # records to choose from, by how much they take over
POOL_SHARE = 16  # a class's pool holds one in this many of its records,
POOL_LEAST = 32  # but at least and
POOL_MOST = 64  # at most this many,
POOL_PART = 3  # and never more than this part: else turns of a short trace lose its course
DEEP = 64  # blocks; deviations count the more the deeper they are, doubly from about here
ALIKE = 2  # this many that are just alike are enough to choose from

STEERED = 4  # turns of a session before which ones go on is steered

LEAST_FITTED = 12  # records to say how new tokens depend on those taken over,
DEPENDS = 0.5  # and the share of their variance that this explains at least

# A record's place among the others, in one number: what it takes over, its turn, its index.
TAKES, TURN = 1 << 48, 1 << 40
LAST_TURN = 255


class Record(NamedTuple):
    """One of a model's turn records; see TurnRecords."""

    number: int
    takes: int
    new_tokens: int
    output: int
    children: tuple[tuple[float, int, float], ...]  # gap in ms, kind and value of the share


class Balance:
    """How many blocks more drawn turns took over than those of the learned course did by then,
    weighted."""

    def __init__(self) -> None:
        self.surplus = 0.0

    def add(self, taken: int, learned: int) -> None:
        """A turn was drawn, in the place of a learned one."""
        self.surplus += (taken - learned) * (1 + (taken + learned) / DEEP)


class TurnPool:
    """Records of one class, sorted by what they take over; each is drawn once a pass.

    The pool moves along the trace: what is drawn is replaced by the next record. So a turn is like
    one from about the same part of the trace, and none is used twice as often as another.
    """

    def __init__(self, records: list[Record], stream: Stream, block_size: int) -> None:
        self._records = records
        self._slope = new_by_taken(records, block_size)
        self._index = stream.index
        self._mean_takes = sum(record.takes for record in records) / max(1, len(records))
        self._next = 0
        self._pool: list[int] = []  # sorted by TAKES, TURN, and index
        for _ in range(pool_size(len(records))):
            self._refill()

    def draw(self, takes: int, number: int, balance: Balance, most_new: int) -> Record | None:
        """A record of a turn of this number that takes over about `takes` blocks, with no more than
        `most_new` new tokens; None if none of those has so few.

        If few are just alike, from those that take over no less while there is a surplus, else no
        more: long sessions are few, and their number alone would make the prompts of a short trace
        too long or too short. Like lots from an urn instead of throws of a die.
        """
        pool, index = self._pool, self._index
        wanted = takes * TAKES + min(number, LAST_TURN) * TURN
        low, high = bisect_left(pool, wanted), bisect_left(pool, wanted + TURN)
        if high - low >= ALIKE:
            pass
        elif balance.surplus > 0:
            low = min(low, len(pool) - 1)
            high = min(len(pool), max(high, low + NEAREST))
        else:
            high = max(high, 1)
            low = max(0, min(low, high - NEAREST))
        found: list[int] = []
        if number >= STEERED:
            # Deep sessions go on while too little is taken over, shallow ones while too much is.
            wanted = (balance.surplus > 0) == (takes < self._mean_takes)
            found = [each for each in range(low, high) if self._goes_on(each) == wanted]
        # The one that is longer in the pool, so that few stay behind in it.
        some = [low + index(high - low), low + index(high - low)]
        at = max([each for each in some if each in found] or found or some, key=self._waits)
        if self._new_tokens(at) > most_new:
            fitting = [each for each in range(low, high) if self._new_tokens(each) <= most_new]
            if not fitting:
                return None
            at = max(fitting, key=self._waits)
        record = self._records[pool.pop(at) % TURN]
        self._refill()
        if self._slope and takes != record.takes:
            tokens = record.new_tokens + round(self._slope * (takes - record.takes))
            record = record._replace(new_tokens=max(tokens, 0))
        return record

    def _goes_on(self, at: int) -> bool:
        return bool(self._records[self._pool[at] % TURN].children)

    def _new_tokens(self, at: int) -> int:
        return self._records[self._pool[at] % TURN].new_tokens

    def _waits(self, at: int) -> int:
        """How many records were taken in since this one."""
        return (self._next - 1 - self._pool[at] % TURN) % len(self._records)

    def _refill(self) -> None:
        record = self._records[self._next]
        turn = min(record.number, LAST_TURN)
        insort(self._pool, record.takes * TAKES + turn * TURN + self._next)
        self._next = (self._next + 1) % len(self._records)


def new_by_taken(records: list[Record], block_size: int) -> float:
    """How many fewer new tokens a turn has for each block more that it takes over, as a number
    from minus the block size to 0.

    0 unless they depend on each other. Where prompts are as long however much of them is shared,
    such as a fixed number of retrieved chunks, a record's own new tokens would make one too long
    that takes over more than the record did.
    """
    taken = np.array([record.takes for record in records], np.float64)
    new = np.array([record.new_tokens for record in records], np.float64)
    spread = float(taken.var() * new.var()) if records else 0.0
    if len(records) < LEAST_FITTED or not spread > 0:
        return 0.0
    together = float(np.mean((taken - taken.mean()) * (new - new.mean())))
    if together >= 0 or together**2 < DEPENDS * spread:
        return 0.0
    return max(together / float(taken.var()), -float(block_size))


def pool_size(records: int) -> int:
    """How many of a class's records are to choose from at a time."""
    wanted = max(POOL_LEAST, min(POOL_MOST, records // POOL_SHARE))
    return min(records, wanted, max(NEAREST, records // POOL_PART))


def list_records(turns: TurnRecords) -> list[Record]:
    """The records of a class, as they are drawn."""
    children = list(
        zip(
            turns.gaps_ms.tolist(),
            turns.share_kinds.tolist(),
            turns.share_values.tolist(),
            strict=True,
        )
    )
    offsets = turns.child_offsets.tolist()
    return [
        Record(number, takes, tokens, output, tuple(children[start:end]))
        for number, takes, tokens, output, start, end in zip(
            turns.numbers.tolist(),
            turns.takes.tolist(),
            turns.new_tokens.tolist(),
            turns.outputs.tolist(),
            offsets,
            offsets[1:],
            strict=False,
        )
    ]
