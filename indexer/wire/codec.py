"""The wire form of KV events: messages of the event plane, and Dynamo's JSON cache events.

Publishers encode; tools and tests decode to Python values. The index's thread decodes natively,
through the same kernel.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from ...base.envelope import EventEnvelope, encode_envelope
from ...base.errors import EventError
from ...base.identity import WorkerWithDpRank
from ._wire import EventDecoder
from ._writer import EventWriter
from .events import TIERS, Cleared, EventData, Removed, RouterEvent, Stored, StoredBlock

__all__ = [
    "EventWriter",
    "decode_cache_event",
    "decode_event_message",
    "describe_decode_error",
    "encode_cache_event",
    "encode_event_message",
    "encode_heartbeat",
    "encode_router_event",
]

Bytes: TypeAlias = bytes | bytearray | memoryview
# kind, worker_id, dp_rank, event_id, tier, parent_hash, external_hashes, local_hashes
Row: TypeAlias = tuple[int, int, int, int, int, int | None, list[int], list[int]]

# By DecodeError of the kernel (_reader.pxd).
_DECODE_ERRORS = (
    "no error",
    "it ends too early",
    "it is neither msgpack nor JSON of a known form",
    "bytes follow its end",
    "a field has a wrong type",
    "a number is out of its field's range",
    "a field is missing",
    "an event is none of stored, removed, cleared",
    "it nests too deep",
    "it is too large",
    "out of memory",
)


def describe_decode_error(code: int) -> str:
    """What a code of the native decoder means, for a log line or an exception."""
    return f"event message cannot be decoded: {_DECODE_ERRORS[code]}"


def decode_event_message(message: Bytes) -> list[RouterEvent]:
    """The KV events of one message of the event plane, in order.

    Understands the msgpack envelope, bare msgpack events, and JSON events. Empty for what is known
    to carry none: other topics, acknowledgements, calls of the request plane. Raises EventError
    for everything else. Multimodal details of a block are not kept, and a storage tier of an
    unknown name counts as external.
    """
    decoder = EventDecoder()
    if code := decoder.decode_message(message):
        raise EventError(describe_decode_error(code))
    return [_event(row) for row in decoder.rows()]


def decode_cache_event(worker_id: int, event: Bytes) -> RouterEvent:
    """One JSON cache event of this worker: {"event_id", "data", "dp_rank" (optional)}.

    Raises EventError if it is something else.
    """
    decoder = EventDecoder()
    if code := decoder.decode_cache_event(worker_id, event):
        raise EventError(describe_decode_error(code), worker_id=worker_id)
    return _event(decoder.rows()[0])


def encode_event_message(
    events: Iterable[RouterEvent],
    publisher_id: int,
    sequence: int,
    published_at_ms: int,
    topic: str = "kv-events",
) -> bytes:
    """One message of the event plane with these events, as Dynamo's publishers write it.

    A publisher that has its hashes in arrays is faster with an `EventWriter`.
    """
    writer = EventWriter()
    for event in events:
        worker_id, dp_rank = event.worker
        match event.data:
            case Stored(parent_hash=parent_hash, blocks=blocks):
                writer.stored(
                    worker_id,
                    dp_rank,
                    event.event_id,
                    parent_hash,
                    [block.block_hash for block in blocks],
                    [block.tokens_hash for block in blocks],
                    event.storage_tier,
                )
            case Removed(block_hashes=block_hashes):
                writer.removed(worker_id, dp_rank, event.event_id, block_hashes, event.storage_tier)
            case Cleared():
                writer.cleared(worker_id, dp_rank, event.event_id, event.storage_tier)
    return writer.message(publisher_id, sequence, published_at_ms, topic)


def encode_heartbeat(
    worker: WorkerWithDpRank,
    last_event_id: int,
    publisher_id: int,
    sequence: int,
    published_at_ms: int,
) -> bytes:
    """A message that says which event a publisher sent last (0: none), and in which message.

    It goes over a subject of its own: it is no KV event, and moves no numbering.
    """
    payload = msgspec.msgpack.encode(
        {
            "worker_id": worker.worker_id,
            "dp_rank": worker.dp_rank,
            "last_event_id": last_event_id,
        }
    )
    return encode_envelope(
        EventEnvelope(publisher_id, sequence, published_at_ms, "kv-heartbeat", payload)
    )


def encode_cache_event(event: RouterEvent) -> bytes:
    """The JSON cache event of `decode_cache_event`; the worker's id is not in it."""
    return msgspec.json.encode(_cache_event(event))


def encode_router_event(event: RouterEvent) -> bytes:
    """The JSON of a whole event, worker and tier included, as an index dump lists it."""
    return msgspec.json.encode(
        {
            "worker_id": event.worker.worker_id,
            "storage_tier": event.storage_tier,
            "residency_domain": "worker",
            "event": _cache_event(event),
        }
    )


def _cache_event(event: RouterEvent) -> dict[str, object]:
    return {
        "event_id": event.event_id,
        "data": _json_data(event.data),
        "dp_rank": event.worker.dp_rank,
    }


def _json_data(data: EventData) -> object:
    match data:
        case Stored(parent_hash=parent_hash, blocks=blocks):
            return {"stored": {"parent_hash": parent_hash, "blocks": blocks}}
        case Removed(block_hashes=block_hashes):
            return {"removed": {"block_hashes": block_hashes}}
        case Cleared():
            return "cleared"


def _event(row: Row) -> RouterEvent:
    kind, worker_id, dp_rank, event_id, tier, parent_hash, external_hashes, local_hashes = row
    data: EventData
    if kind == 0:
        data = Stored(parent_hash, tuple(map(StoredBlock, external_hashes, local_hashes)))
    elif kind == 1:
        data = Removed(tuple(external_hashes))
    else:
        data = Cleared()
    return RouterEvent(WorkerWithDpRank(worker_id, dp_rank), event_id, data, TIERS[tier])
