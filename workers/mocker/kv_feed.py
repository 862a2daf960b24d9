"""KvEventFeed: the cache events of one engine's ranks for gRPC subscribers (SubscribeKvEvents).

A new subscriber gets the state of the cache, then what changes. While nobody has ever asked,
nothing is kept and nothing is encoded.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any

from ...indexer.wire import StorageTier
from ..trtllm_proto import common_pb
from .engine import ENGINE_TIERS, MockEngine
from .faults import Fault, FaultyMessages
from .kv_events import BlocksStored, CachedBlock, KvEvent
from .messages import add_kv_event, add_stored

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
        self.closed = False  # the engine stops
        self.cut = False  # a fault: it breaks here
        self._batches: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def push(self, batch: bytes) -> None:
        if self.overrun or self.closed or self.cut:
            return  # what came before is all that it will read
        if len(self._batches) >= MOST_BEHIND:
            self.overrun = True
        else:
            self._batches.append(batch)
        self._arrived.set()

    def break_off(self) -> None:
        self.cut = True
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def next(self) -> bytes | None:
        """The next batch; None if there will be none: see `overrun`, `closed` and `cut`."""
        while not self._batches:
            if self.overrun or self.closed or self.cut:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft()


class KvEventFeed:
    """Numbers the batches of one engine and hands them to its subscribers."""

    def __init__(self, engines: list[MockEngine]) -> None:
        """`engines`: one for each rank."""
        self._engines = engines
        self._sequence = FIRST_SEQUENCE  # of the last batch
        self._event_ids = [0] * len(engines)  # of each rank's last event
        self._recording = False
        self._history: deque[tuple[int, bytes]] = deque(maxlen=HISTORY_BATCHES)
        self._subscriptions: set[KvSubscription] = set()
        self._messages: FaultyMessages[bytes] = FaultyMessages()
        self._cut = self._overrun = 0.0  # shares of messages
        self._random = Random(0)

    def set_fault(self, fault: Fault) -> None:
        """Mishandle what changes from now on. A message that was kept back is let go, and what was
        lost until now shows: an engine says now and then which batch was the last."""
        self._send(self._messages.begin(fault))
        self._cut, self._overrun, self._random = fault.cut, fault.overrun, Random(fault.seed)
        self.beat()

    def beat(self) -> None:
        """A record of the load for all subscribers, under the number of the last batch."""
        for subscription in self._subscriptions:
            for rank in range(len(self._engines)):
                subscription.push(self._load_record(self._sequence, rank))

    def on_events(self, rank: int, events: list[KvEvent]) -> None:
        """A rank's cache changed: one batch for all subscribers."""
        if self._random.random() < self._overrun:
            self._event_ids[rank] += len(events)
            self._history.clear()
            return
        self._sequence += 1
        if self._recording:
            batch = self._new_batch(self._sequence, rank)
            for offset, event in enumerate(events, start=1):
                add_kv_event(batch, event, self._event_ids[rank] + offset)
            data: bytes = batch.SerializeToString()
            self._history.append((self._sequence, data))
            self._send(self._messages.take(data))
            if self._random.random() < self._cut:
                for subscription in self._subscriptions:
                    subscription.break_off()
        self._event_ids[rank] += len(events)

    def subscribe(self, start: int, *, load_first: bool = False) -> KvSubscription:
        """Batches from number `start` on; from the state of the cache if 0 or not to be had.

        `load_first` puts a record of the engine's load, numbered 0, before everything.
        """
        self._recording = True
        subscription = KvSubscription()
        if load_first:
            for rank in range(len(self._engines)):
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
        for subscription in self._subscriptions:
            subscription.close()

    def _send(self, batches: list[bytes]) -> None:
        for batch in batches:
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
            (rank, tier, list(engine.cached_blocks(tier)))
            for rank, engine in enumerate(self._engines)
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
        engine = self._engines[rank]
        capacity = engine.config.num_gpu_blocks
        batch = common_pb.KvEventBatch(
            sequence_number=sequence, timestamp=time.time(), dp_rank=rank
        )
        batch.load.running_requests = engine.running
        batch.load.waiting_requests = engine.waiting
        batch.load.max_running_requests = engine.config.max_num_seqs
        batch.load.active_token_usage = engine.active_blocks / capacity
        batch.load.token_usage = (engine.active_blocks + engine.inactive_blocks) / capacity
        batch.load.sample = sequence
        return batch


def chains(blocks: Iterable[CachedBlock], tier: StorageTier) -> list[BlocksStored]:
    """A tier's blocks, in their order, cut where one is not the parent of the next."""
    events: list[BlocksStored] = []
    for block in blocks:
        if events and events[-1].blocks[-1].block_hash == block.parent_hash:
            events[-1].blocks.append(block)
        else:
            events.append(BlocksStored([block], tier))
    return events
