"""KvEventFeed: the cache events of one engine's ranks for gRPC subscribers (SubscribeKvEvents).

A new subscriber gets the state of the cache, then what changes. While nobody has ever asked,
nothing is kept and nothing is encoded.
"""

import asyncio
import time
from collections import deque
from typing import Any

from ...indexer.wire import StorageTier
from ...workers.trtllm_proto import common_pb
from .engine import ServedEngine
from .kv_events import ENGINE_TIERS, CachedBlock, KvEvent, chains
from .kv_messages import add_kv_event, add_stored

# Chunks of a snapshot are numbered up to the state's number, so there must be numbers below it.
FIRST_SEQUENCE = 1024
BLOCKS_PER_CHUNK = 8192
# Recent batches that a subscriber who was away can have again.
HISTORY_BATCHES = 256
# Batches that a slow subscriber may be behind before it is cut off.
MOST_BEHIND = 4096


class KvSubscription:
    """One subscriber's batches, serialised, in order."""

    def __init__(self) -> None:
        self.overrun = False  # it fell too far behind
        self.reason = ""  # why it ends, if it was closed
        self._batches: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def push(self, batch: bytes) -> None:
        if self.overrun or self.reason:
            return  # what came before is all that it will read
        if len(self._batches) >= MOST_BEHIND:
            self.overrun = True
        else:
            self._batches.append(batch)
        self._arrived.set()

    def close(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._arrived.set()

    async def next(self) -> bytes | None:
        """The next batch; None if there will be none: see `overrun` and `reason`."""
        while not self._batches:
            if self.overrun or self.reason:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft()


class KvEventFeed:
    """Numbers the batches of one engine and hands them to its subscribers."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._sequence = FIRST_SEQUENCE  # of the last batch
        self._event_ids = [0] * engine.dp_size  # of each rank's last event
        self._recording = False
        self._history: deque[tuple[int, bytes]] = deque(maxlen=HISTORY_BATCHES)
        self._subscriptions: set[KvSubscription] = set()

    def beat(self) -> None:
        """A record of the load for all subscribers, under the number of the last batch."""
        for subscription in self._subscriptions:
            for rank in range(self._engine.dp_size):
                subscription.push(self._load_record(self._sequence, rank))

    def on_events(self, rank: int, events: list[KvEvent]) -> None:
        """A rank's cache changed: one batch for all subscribers."""
        self._sequence += 1
        if self._recording:
            batch = self._new_batch(self._sequence, rank)
            for offset, event in enumerate(events, start=1):
                add_kv_event(batch, event, self._event_ids[rank] + offset)
            data: bytes = batch.SerializeToString()
            self._history.append((self._sequence, data))
            self._send(data)
        self._event_ids[rank] += len(events)

    def lose(self, rank: int, events: int) -> None:
        """So many events of a rank were lost before they could be told: their ids are missing."""
        self._event_ids[rank] += events
        self._history.clear()

    def subscribe(self, start: int, *, load_first: bool = False) -> KvSubscription:
        """Batches from number `start` on; from the state of the cache if 0 or not to be had.

        `load_first` puts a record of the engine's load, numbered 0, before everything.
        """
        self._recording = True
        subscription = self._new_subscription()
        if load_first:
            for rank in range(self._engine.dp_size):
                subscription.push(self._load_record(0, rank))
        oldest = self._history[0][0] if self._history else self._sequence + 1
        if start and oldest <= start <= self._sequence + 1:
            for number, data in self._history:
                if number >= start:
                    subscription.push(data)
        else:
            for chunk in self._snapshot():
                subscription.push(chunk)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: KvSubscription) -> None:
        self._subscriptions.discard(subscription)

    def close(self) -> None:
        """The engine stops: subscriptions end once they were read."""
        self.end("the engine stops")

    def end(self, reason: str) -> None:
        """End the subscriptions that there are, once they were read."""
        for subscription in self._subscriptions:
            subscription.close(reason)

    def _new_subscription(self) -> KvSubscription:
        return KvSubscription()

    def _send(self, batch: bytes) -> None:
        for subscription in self._subscriptions:
            subscription.push(batch)

    def _load_record(self, sequence: int, rank: int) -> bytes:
        record = self._new_batch(sequence, rank)
        record.load.load_only = True
        data: bytes = record.SerializeToString()
        return data

    def _snapshot(self) -> list[bytes]:
        """The caches as batches: for each rank cleared, then every block, parents first."""
        caches: list[tuple[int, StorageTier, list[CachedBlock]]] = [
            (rank, tier, list(self._engine.cached_blocks(rank, tier)))
            for rank in range(self._engine.dp_size)
            for tier in ENGINE_TIERS
        ]
        parts: list[tuple[int, StorageTier, int, list[CachedBlock]]] = [
            (rank, tier, first, blocks[first : first + BLOCKS_PER_CHUNK])
            for rank, tier, blocks in caches
            for first in range(0, max(tier == "device", len(blocks)), BLOCKS_PER_CHUNK)
        ]
        chunks = []
        for index, (rank, tier, first, part) in enumerate(parts):
            batch = self._new_batch(self._sequence - len(parts) + 1 + index, rank)
            batch.snapshot.index = index
            batch.snapshot.count = len(parts)
            batch.snapshot.blocks = sum(len(blocks) for _, _, blocks in caches)
            if first == 0 and tier == "device":
                batch.events.add().cleared.SetInParent()
            for event in chains(part, tier):
                add_stored(batch, event, 0)
            chunks.append(batch.SerializeToString())
        return chunks

    def _new_batch(self, sequence: int, rank: int) -> Any:
        load, facts = self._engine.load(rank), self._engine.facts
        capacity = facts.settings.get("total_kv_blocks", 0)
        batch = common_pb.KvEventBatch(
            sequence_number=sequence, timestamp=time.time(), dp_rank=rank
        )
        batch.load.running_requests = load.running
        batch.load.waiting_requests = load.waiting
        batch.load.max_running_requests = facts.max_batch_size
        if capacity:
            batch.load.active_token_usage = load.active_blocks / capacity
            batch.load.token_usage = (load.active_blocks + load.inactive_blocks) / capacity
        batch.load.sample = sequence
        return batch
