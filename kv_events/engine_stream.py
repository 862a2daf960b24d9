"""EngineStream: reads one engine's KV events, over gRPC, ZMQ or HTTP, into the index.

stream_cursor.py decides what to do with each batch.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from secrets import randbits
from typing import Protocol, TypeAlias, runtime_checkable

import structlog

from ..base.backoff import Backoff
from ..base.errors import ConfigError, StatusCode
from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..indexer.wire import (
    CLEARED_EVENTS,
    BatchHead,
    EngineBatch,
    EngineEvents,
    encode_heartbeat,
    frame_batch,
    read_grpc_batch,
)
from ..process.supervised import is_cancelled, stopped, supervise
from ..workers.channels import EventCall
from ..workers.failures import EngineCallError
from .dialects import EventsEnded, EventsLost, EventsRefused, PulledCall, ZmqMessage
from .event_subscribers import EventSubscribers
from .stream_cursor import StreamCursor, StreamStep

HEADERS_S = 5.0
"""How long an engine may take to say that it accepts a subscription,"""
QUIET_S = 1.0
"""and to send something after that, until it counts as one without events yet."""
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 2.0
UNIMPLEMENTED_RETRY_S = 60.0
"""An engine that has no such method may be replaced by one that has it."""
FULL_WAIT_S = 0.05
"""The index's mailbox is full: the engine is read no faster than the index is."""

_NO_EVENTS = EngineBatch(BatchHead(0), b"")

log = structlog.get_logger(__name__)

Message: TypeAlias = bytes | ZmqMessage | EngineBatch
"""What a stream reads: a KvEventBatch over gRPC, a message over ZMQ, a batch over HTTP."""
Call: TypeAlias = EventCall | PulledCall[ZmqMessage] | PulledCall[EngineBatch]


@runtime_checkable
class Subscriber(Protocol):
    """The way to an engine that may offer its events."""

    def subscribe_kv_events(self, start: int) -> Call: ...


class StreamListener(Protocol):
    """Observer of a worker's stream."""

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        """The engine took a subscription, or it ended; `lasting`: it has no such method."""
        ...

    def on_refused(self, worker_id: int, reason: str) -> None:
        """Its events cannot be indexed."""
        ...


@dataclass(slots=True)
class StreamCounts:
    """Of all streams together; they only grow."""

    batches: int = 0
    subscriptions: int = 0
    gaps: int = 0
    """times that batches or events were missing"""
    undecodable: int = 0
    strange_ranks: int = 0
    """batches of ranks that their worker does not have"""


class _Rank:
    """The numbering under which the index gets one rank's events."""

    def __init__(self) -> None:
        self.publisher_id = randbits(53)
        self.sequence = 0
        self.next_event_id = 1


class _AskAgain(Exception):
    """The subscription is to be made anew, from where the cursor stands."""


class _NoStream(Exception):
    """There is none, nor will there be one soon."""


class _Unwanted(Exception):
    """The engine's events cannot be indexed: the stream is not read any more."""


class EngineStream:
    """Reads between `open` and `close`. The index believes it under `publisher_id` of each rank.

    Its frames are numbered without a hole, whatever the engine's numbers are: nothing gets lost
    between here and the index.
    """

    def __init__(
        self,
        worker_id: int,
        ranks: Iterable[int],
        index: EventIndex,
        listener: StreamListener,
        counts: StreamCounts,
        *,
        block_size: int,
        subscribers: EventSubscribers,
    ) -> None:
        """`subscribers` give the present way to a worker, a Subscriber if it may have events."""
        self._worker_id, self._index, self._listener = worker_id, index, listener
        self._counts, self._block_size = counts, block_size
        self._subscribers = subscribers
        self._ranks = {rank: _Rank() for rank in ranks}
        self._first_rank = min(self._ranks)
        self._cursor = StreamCursor()
        self._call: Call | None = None
        self._payloads = EngineEvents(block_size)  # over ZMQ
        self._task: asyncio.Task[None] | None = None
        self._resyncing = False
        self._believed = False
        self._passed_over = False  # batches of this subscription were not applied
        self._unposted: deque[bytes] = deque()  # frames that the index has no room for
        self._backoff = Backoff(first=FIRST_RETRY_S, cap=LONGEST_RETRY_S)
        self.error = ""
        """what ended the last subscription, for people"""

    @property
    def is_open(self) -> bool:
        return self._task is not None

    @property
    def is_synced(self) -> bool:
        """Whether the index has got the state of the cache, or what there was of it."""
        return self._cursor.synced

    @property
    def is_complete(self) -> bool:
        """Whether the index has all that the engine holds."""
        return self._cursor.complete

    def publisher_id(self, rank: int) -> int:
        return self._ranks[rank].publisher_id

    def open(self) -> None:
        """Subscribe, and go on trying."""
        if self._task is None:
            self._cursor.forget()
            self._backoff.reset()
            self._task = supervise(f"event stream-{self._worker_id}", self._run)

    async def close(self) -> None:
        """End the subscription. Idempotent."""
        task, self._task = self._task, None
        await stopped(task)
        await self._subscribers.close(self._worker_id)

    def believe(self, believed: bool) -> None:
        """Whether the index takes this stream's events; until then batches are passed over."""
        self._believed = believed
        if believed and self._passed_over:
            self.resync()

    def resync(self) -> None:
        """Have the engine send the state of its cache: the index has lost some of it."""
        self._resyncing = True
        if self._call is not None:
            self._call.cancel()

    def confirm(self) -> None:
        """Confirm to the index that it has everything, where it had reason to doubt that."""
        for number, rank in self._ranks.items():
            if self.is_synced and rank.sequence:
                worker = WorkerWithDpRank(self._worker_id, number)
                self._index.post(
                    encode_heartbeat(
                        worker, rank.next_event_id - 1, rank.publisher_id, rank.sequence - 1, 0
                    )
                )

    async def _run(self) -> None:
        while True:
            lasting = False
            try:
                await self._follow()
            except _Unwanted:
                return
            except (EventsRefused, ConfigError) as refusal:
                self._listener.on_refused(self._worker_id, str(refusal))
                return
            except _AskAgain:
                await asyncio.sleep(self._backoff.next())
                continue
            except EventsEnded as end:
                self.error = str(end)
                if isinstance(end, EventsLost):
                    self._forget()
                    await self._flush()
            except _NoStream as end:
                lasting = True
                self.error = str(end)
            except EngineCallError as error:
                lasting = error.code() is StatusCode.UNIMPLEMENTED
                self.error = f"{error.code().name}: {error.details()}"
            self._cursor.on_broken()
            self._listener.on_stream(self._worker_id, False, lasting=lasting)
            await asyncio.sleep(UNIMPLEMENTED_RETRY_S if lasting else self._backoff.next())

    async def _follow(self) -> None:
        """One subscription, to its end: an exception says which."""
        client = await self._subscribers.of(self._worker_id)
        if not isinstance(client, Subscriber):
            raise _NoStream("its protocol has no stream of KV events")
        self._cursor.on_subscribed()
        if self._cursor.start == 0:
            self._payloads.forget()
        self._resyncing = self._passed_over = False
        self._counts.subscriptions += 1
        call = self._call = client.subscribe_kv_events(self._cursor.start)
        try:
            try:
                async with asyncio.timeout(HEADERS_S):
                    await call.initial_metadata()
            except TimeoutError:
                why = await call.why_silent() if isinstance(call, PulledCall) else ""
                raise EventsEnded(why or f"no answer in {HEADERS_S:g} s") from None
            with contextlib.suppress(StopAsyncIteration):
                if self._take(await self._first(call)) is not None:
                    await self._flush()
                await call.deliver(self._take, self._flush)
            raise EventsEnded("the engine ended the stream of events (OK)")
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            if self._resyncing:
                self._cursor.forget()
                raise _AskAgain from None
            # The worker's client is closed before its stream is, when a pool ends or a worker goes.
            raise EventsEnded("its client was closed") from None
        finally:
            self._call = None
            call.cancel()

    def _forget(self) -> None:
        """Clear what the index has by this stream."""
        if self._believed and self._cursor.synced:
            for number in self._ranks:
                self._post(number, _NO_EVENTS, clears=True)
        self._cursor.lose_all()

    async def _first(self, call: Call) -> Message:
        """The first message of a subscription, which counts as taken from then on, or when the
        engine was quiet for a while."""
        reading: asyncio.Future[Message] = asyncio.ensure_future(call.read())
        try:
            await asyncio.wait([reading], timeout=QUIET_S)
            if not reading.done():
                self._up()
            message = await reading
            self._up()
            return message
        finally:
            reading.cancel()

    def _up(self) -> None:
        self.error = ""
        self._listener.on_stream(self._worker_id, True)

    def _batch(self, message: Message) -> EngineBatch | None:
        """The batch in a message; None if the message is damaged."""
        if isinstance(message, ZmqMessage):
            try:
                return self._payloads.read(message.payload, message.sequence)
            except ValueError as reason:
                raise EventsRefused(str(reason)) from None
        if isinstance(message, bytes):
            return read_grpc_batch(message, self._block_size)
        return message

    def _take(self, message: Message) -> bytes | None:
        """Hand a batch to the index; not None if that has no room for it now (`_flush`)."""
        batch = self._batch(message)
        if batch is None:
            self._counts.undecodable += 1
            self._cursor.forget()
            raise _AskAgain
        head = batch.head
        if head.wrong_size:
            reason = f"blocks of {head.wrong_size} tokens, the router's have {self._block_size}"
            self._listener.on_refused(self._worker_id, reason)
            raise _Unwanted
        if not self._believed:
            self._passed_over = True
            self._cursor.forget()
            return None
        gaps = self._cursor.gaps
        step = self._cursor.take(head)
        self._counts.gaps += self._cursor.gaps - gaps
        if step is StreamStep.IGNORE:
            return None
        if step is StreamStep.RESUBSCRIBE:
            raise _AskAgain
        self._counts.batches += 1
        number = self._first_rank if head.dp_rank < 0 else head.dp_rank
        clears = step is StreamStep.CLEAR_AND_APPLY
        if clears:
            for other in self._ranks.keys() - {number}:
                self._post(other, _NO_EVENTS, clears=True)
        elif self._cursor.synced:
            self._backoff.reset()
        if number in self._ranks:
            self._post(number, batch, clears=clears)
        else:
            self._counts.strange_ranks += 1
        return self._unposted[0] if self._unposted else None

    def _post(self, number: int, batch: EngineBatch, *, clears: bool) -> None:
        events = batch.head.events
        if clears:
            events += CLEARED_EVENTS
        if not events:
            return
        rank = self._ranks[number]
        frame = frame_batch(
            batch.data,
            worker_id=self._worker_id,
            dp_rank=number,
            publisher_id=rank.publisher_id,
            sequence=rank.sequence,
            first_event_id=rank.next_event_id,
            block_size=self._block_size,
            clears=clears,
            decoded=batch.decoded,
        )
        rank.sequence += 1
        rank.next_event_id += events
        if self._unposted or not self._index.post(frame):
            self._unposted.append(frame)

    async def _flush(self, _: bytes = b"") -> None:
        """Wait until the index had room for all."""
        while self._unposted:
            await asyncio.sleep(FULL_WAIT_S)
            while self._unposted and self._index.post(self._unposted[0]):
                self._unposted.popleft()
