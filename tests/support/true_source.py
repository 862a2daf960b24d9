"""An engine behind a publisher that tells the truth: what it said, and what it held after each."""

from collections import defaultdict
from dataclasses import dataclass

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.codec import encode_event_message, encode_heartbeat
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    Stored,
    StoredBlock,
)

Cache = frozenset[int]
ROOTS = (1, 2)  # block 10 * r hangs below block r


@dataclass(frozen=True)
class Message:
    """One event, or a heartbeat if it has no data; `life` counts the engine's restarts."""

    life: int
    publisher: int
    sequence: int
    event_id: int
    data: EventData | None = None

    def encode(self, worker: WorkerWithDpRank) -> bytes:
        if self.data is None:
            return encode_heartbeat(worker, self.event_id, self.publisher, self.sequence, 0)
        event = RouterEvent(worker, self.event_id, self.data)
        return encode_event_message([event], self.publisher, self.sequence, 0)


class TrueSource:
    """Numbers its events from 1, each in an envelope of its own."""

    def __init__(self) -> None:
        self.life = self.publisher = self.event_id = 0
        self.sequence = -1
        self.after: defaultdict[tuple[int, int], set[Cache]] = defaultdict(set)
        """by publisher and event id: what was cached just after; one cache for each life"""
        self.restart(in_place=False)

    def restart(self, *, in_place: bool) -> None:
        """Begin with an empty cache and the first event id; in place the publisher lives on."""
        if not in_place:
            self.publisher, self.sequence = self.publisher + 1, -1
        if not in_place or self.event_id:
            self.life += 1  # of one that said nothing nobody knows
        self.event_id = 0
        self.cache: Cache = frozenset()
        self.said: list[Message] = []
        self.after[self.publisher, 0].add(self.cache)

    def flip(self, root: int, child: bool) -> Message:
        """Cache a block or drop it, with what must come or go along."""
        block = 10 * root if child else root
        if block not in self.cache:
            chain = [b for b in ([root, block] if child else [root]) if b not in self.cache]
            parent = root if chain[0] != root else None
            stored = Stored(parent, [StoredBlock(b, b) for b in chain])
            return self._say(stored, self.cache | set(chain))
        gone = [b for b in (10 * root, root) if b in self.cache and (b == block or not child)]
        return self._say(Removed(gone), self.cache - set(gone))

    def clear(self) -> Message:
        return self._say(Cleared(), frozenset())

    def announce(self) -> list[Message]:
        """A clear, and all that is cached once more, parents first."""
        cached = sorted(self.cache)
        return [self.clear(), *(self.flip(b // 10 or b, b >= 10) for b in cached)]

    def beat(self) -> Message:
        return Message(self.life, self.publisher, max(0, self.sequence), self.event_id)

    def _say(self, data: EventData, cache: Cache) -> Message:
        self.event_id += 1
        self.sequence += 1
        self.cache = cache
        self.after[self.publisher, self.event_id].add(cache)
        self.said.append(Message(self.life, self.publisher, self.sequence, self.event_id, data))
        return self.said[-1]
