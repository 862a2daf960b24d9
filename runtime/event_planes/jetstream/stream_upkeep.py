"""StreamUpkeep: what one of the routers that read a stream does for all of them. Pure.

A snapshot of the index is saved now and then, and once many messages are behind the last one; then
those messages go that it covers and that every living router has applied. Readers whose router is
gone are removed. Invariant: no message goes that a router which starts from the snapshot, or one
that is reading, still needs.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

TURN_S = 10.0
"""Routers take this work by the order of their names, each so much later than the one before."""
STALE_S = 60.0
"""How long a router may be away before its reader counts for nothing, and is removed."""


class ReaderFact(NamedTuple):
    """What the server says of one router's consumer."""

    name: str
    acked: int
    bound: bool
    """whether the stream has a reader"""


class UpkeepPlan(NamedTuple):
    """What is to be done now."""

    save: bool
    purge_below: int | None
    """messages before this sequence are to go"""
    remove: Sequence[str]


class StreamUpkeep:
    """The part of the router whose reader is called `name`."""

    def __init__(self, name: str, *, threshold: int, interval_s: float, pool: str = "") -> None:
        """A snapshot is saved when `threshold` messages are behind the last one, or any are and it
        is `interval_s` old; beyond `threshold` messages the stream is purged. `pool`: readers that
        save the same snapshot have it at the end of their names."""
        self._name, self._threshold, self._interval_s = name, threshold, interval_s
        self._pool = pool
        self._snapshot: int | None = None
        self._snapshot_at = float("-inf")  # when it was first seen
        self._due_since: float | None = None
        self._away_since: dict[str, float] = {}

    def plan(
        self,
        now: float,
        *,
        first: int,
        last: int,
        read: int,
        readers: Collection[ReaderFact],
        snapshot: int | None,
    ) -> UpkeepPlan:
        """`first` and `last` are those of the stream's messages, `read` how far this router has
        applied them, `snapshot` how far the saved one goes; None: there is none of this stream."""
        if snapshot != self._snapshot or self._snapshot_at == float("-inf"):
            self._snapshot, self._snapshot_at, self._due_since = snapshot, now, None
        stale = self._stale(readers, now)
        living = [r for r in readers if r.name not in stale]
        messages = last - first + 1
        return UpkeepPlan(
            save=self._is_my_turn(read, [r.name for r in living if r.bound], now),
            purge_below=self._purge_below(first, messages, living),
            remove=sorted(stale - {self._name}),
        )

    def _stale(self, readers: Collection[ReaderFact], now: float) -> set[str]:
        away = {reader.name for reader in readers if not reader.bound}
        self._away_since = {name: self._away_since.get(name, now) for name in away}
        return {name for name, since in self._away_since.items() if now - since >= STALE_S}

    def _is_my_turn(self, read: int, bound: Collection[str], now: float) -> bool:
        behind = read - (self._snapshot or 0)
        late = now - self._snapshot_at >= self._interval_s
        if not (behind >= self._threshold or (behind > 0 and late)):
            self._due_since = None
            return False
        if self._due_since is None:
            self._due_since = now
        before = sum(name < self._name and name.endswith(self._pool) for name in bound)
        if now - self._due_since < before * TURN_S:
            return False
        self._due_since = now + TURN_S  # if it fails, the others' turn comes, then ours again
        return True

    def _purge_below(self, first: int, messages: int, living: Collection[ReaderFact]) -> int | None:
        if self._snapshot is None or messages <= self._threshold:
            return None
        floor = min([self._snapshot, *(reader.acked for reader in living)])
        return floor + 1 if floor >= first else None
