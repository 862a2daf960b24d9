"""DynamoReplicas: bookings of Dynamo's routers, read, and ours in their format.

They publish each event by itself, without a picture and without an end: what a router had booked
when it died is dropped for its age.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from ...base.envelope import EnvelopeWriter, decode_envelope
from ...base.errors import UNREADABLE, EventError
from ...slots.peers import MAX_COUNT, MAX_ID, Booked, Ended, Event, bytes_of
from .peer_load import PeerLoad

ACTIVE_SEQUENCES = "active_sequences_events"
"""Dynamo's topic."""
EXPIRY_S = 300.0
"""A booking that was not released is dropped after this long,"""
LISTENS_S = 300.0
"""and for this long after its last message, a router of Dynamo's is sent ours."""
MAX_BOOKINGS = 65536
MAX_BYTES = 64 << 20
"""Of all bookings together, estimated."""
_MARK = "dynamo/"


class _Worker(msgspec.Struct, frozen=True):
    worker_id: int
    dp_rank: int = 0


class _LoadHint(msgspec.Struct, frozen=True):
    initial_effective_prefill_tokens: int
    expected_prefill_duration: object = None


class _AddRequest(msgspec.Struct, frozen=True):
    token_sequence: list[int] | None = None
    track_prefill_tokens: bool = True
    expected_output_tokens: int | None = None
    prefill_load_hint: _LoadHint | None = None


class _Added(msgspec.Struct, frozen=True):
    AddRequest: _AddRequest


class _ActiveSequenceEvent(msgspec.Struct, frozen=True):
    request_id: Annotated[str, msgspec.Meta(max_length=MAX_ID)]
    worker: _Worker
    data: _Added | Literal["MarkPrefillCompleted", "Free"]
    router_id: int
    lora_name: str | None = None


class _EventBatch(msgspec.Struct, frozen=True):
    events: list[_ActiveSequenceEvent]


_decode_one = msgspec.msgpack.Decoder(_ActiveSequenceEvent).decode
_decode_batch = msgspec.msgpack.Decoder(_EventBatch).decode
_encode = msgspec.msgpack.Encoder().encode


class DynamoReplicas:
    """Reads messages of Dynamo's routers, and writes those that they read."""

    def __init__(
        self,
        load: PeerLoad,
        router_id: int,
        elsewhere: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        """`elsewhere`: workers of the endpoint whose bookings are of no concern here."""
        self._load, self._router_id, self._elsewhere = load, router_id, elsewhere
        self._bookings: dict[str, tuple[float, Booked]] = {}  # oldest first
        self._bytes = 0  # of them
        self._listens_until = float("-inf")
        self._envelopes = EnvelopeWriter(router_id, ACTIVE_SEQUENCES)
        self._workers: dict[str, _Worker] = {}  # of our requests that were sent to them
        self.refused = 0
        """bookings for which there was no room"""

    def __len__(self) -> int:
        return len(self._bookings)

    def hear(self, message: bytes, now: float, ours: Collection[int]) -> bool:
        """Take a message of their topic in; whether load may have fallen. What routers of `ours`
        say there is known already. EventError if it cannot be read."""
        payload = decode_envelope(message).payload
        try:
            events = [_decode_one(payload)]
        except UNREADABLE:
            try:
                events = _decode_batch(payload).events
            except UNREADABLE as error:
                raise EventError(f"no event of active sequences: {error}") from error
        fell, elsewhere = False, self._elsewhere()
        with self._load.lock:
            for event in events:
                if event.router_id == self._router_id or event.router_id in ours:
                    continue
                if event.worker.worker_id in elsewhere:
                    continue
                if isinstance(event.data, _Added):
                    self._listens_until = now + LISTENS_S
                    self._book(event, event.data.AddRequest, now)
                elif event.data == "Free":
                    fell = self._release(event.request_id) or fell
                elif event.request_id in self._bookings:
                    fell = True
                    self._load.complete_prefill(_MARK + event.request_id, -1)
        return fell

    def tick(self, now: float) -> None:
        """Drop what is too old."""
        with self._load.lock:
            while self._bookings:
                request_id, (booked_at, _) = next(iter(self._bookings.items()))
                if now - booked_at < EXPIRY_S:
                    break
                self._release(request_id)

    def clear(self) -> None:
        with self._load.lock:
            for request_id in list(self._bookings):
                self._release(request_id)

    def listens(self, now: float) -> bool:
        """Whether a router of Dynamo's is to be sent ours."""
        if now >= self._listens_until:
            self._workers.clear()
        return now < self._listens_until

    def singly(self, events: Iterable[Event]) -> Iterator[bytes]:
        """Each event as a message of its own on their topic."""
        for event in events:
            data: _Added | Literal["MarkPrefillCompleted", "Free"]
            if isinstance(event, Booked):
                worker = _Worker(event.worker_id, event.dp_rank)
                self._workers[event.request_id] = worker
                data = _Added(
                    _AddRequest(
                        np.frombuffer(event.hashes, np.dtype("<u8")).tolist(),
                        True,
                        event.expected_output_tokens or None,
                        _LoadHint(event.prefill_tokens),
                    )
                )
            elif event.request_id not in self._workers:
                continue  # booked before they were there
            elif isinstance(event, Ended):
                worker, data = self._workers.pop(event.request_id), "Free"
            else:
                worker, data = self._workers[event.request_id], "MarkPrefillCompleted"
            sent = _ActiveSequenceEvent(event.request_id, worker, data, self._router_id)
            yield self._envelopes.wrap(_encode(sent))

    def _book(self, event: _ActiveSequenceEvent, added: _AddRequest, now: float) -> None:
        self._release(event.request_id)
        if len(self._bookings) >= MAX_BOOKINGS:
            self.refused += 1
            return
        hashes = added.token_sequence or []
        hint = added.prefill_load_hint
        known = len(hashes) * self._load.slots.block_size
        left = 0
        if added.track_prefill_tokens:
            left = known if hint is None else hint.initial_effective_prefill_tokens
        try:
            booking = Booked(
                event.request_id,
                event.worker.worker_id,
                event.worker.dp_rank,
                np.array(hashes, np.dtype("<u8")).tobytes(),
                min(max(known, left, 1), MAX_COUNT),
                min(max(left, 0), MAX_COUNT),
                min(max(added.expected_output_tokens or 0, 0), MAX_COUNT),
            )
        except (OverflowError, ValueError) as error:
            raise EventError(f"no hash of a sequence: {error}") from error
        if self._bytes + bytes_of(booking) > MAX_BYTES:
            self.refused += 1
            return
        self._bytes += bytes_of(booking)
        self._bookings[event.request_id] = now, booking
        self._load.book(_MARK + event.request_id, booking)

    def _release(self, request_id: str) -> bool:
        held = self._bookings.pop(request_id, None)
        if held is None:
            return False
        self._bytes -= bytes_of(held[1])
        self._load.release(_MARK + request_id, 0)
        return True
