"""Plain-Python twin of the event decoder: msgspec parses, and what comes out is walked.

Where it accepts or refuses, the native decoder must do the same. Only bytes that msgspec cannot
parse at all are left to the native decoder alone (it is laxer there: it does not check the UTF-8 of
text that it does not keep).
"""

from typing import Any

import msgspec

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    StorageTier,
    Stored,
    StoredBlock,
)

TIERS: tuple[StorageTier, ...] = ("device", "host_pinned", "disk")

WORDS = [
    *("worker_id", "event", "event_id", "data", "stored", "removed", "cleared", "blocks", "topic"),
    *("payload", "block_hashes", "block_hash", "tokens_hash", "parent_hash", "sequence", "dp_rank"),
    "storage_tier",
]


class Refused(Exception):
    """The oracle's verdict: the message parses, and is no event message."""


class Unparsed(Exception):
    """The oracle has no verdict."""


def parse(data: bytes, *, json: bool | None = None) -> Any:
    """The value of a message; `json` says which syntax it has, None: look."""
    codec: Any = msgspec.json if json or (json is None and is_json(data)) else msgspec.msgpack
    try:
        value = codec.decode(data)
        written = codec.encode(value)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise Unparsed from error
    if any(data.count(word) > written.count(word) for word in map(str.encode, WORDS)):
        raise Unparsed  # a key came twice: msgspec forgot a value that had to be right, too
    return value


def is_json(data: bytes) -> bool:
    return data.lstrip(b" \n\r\t")[:1] in (b"{", b"[")


def fields(value: Any, *names: str) -> dict[str, Any]:
    """A struct's fields by name, whether it is a map or an array."""
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    if not isinstance(value, dict):
        raise Refused("no struct")
    decoded = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in value.items()}
    return {name: decoded[name] for name in names if name in decoded}


def need(found: dict[str, Any], name: str) -> Any:
    if name not in found:
        raise Refused(f"no {name}")
    return found[name]


def uint(value: Any, bits: int = 64) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise Refused("no number in range")
    return value


def block_hash(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise Refused("no hash")
    return value % 2**64


def text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise Refused("no text")
    return value


def array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refused("no array")
    return value


def read_data(data: Any) -> EventData:
    if isinstance(data, str | bytes):
        if text(data) == b"cleared":
            return Cleared()
        raise Refused("unknown event")
    if not isinstance(data, dict) or len(data) != 1:
        raise Refused("no event")
    ((kind, content),) = data.items()
    kind = kind.decode("latin1") if isinstance(kind, bytes) else kind
    if kind == "stored":
        found = fields(content, "parent_hash", "start_position", "blocks")
        if isinstance(content, dict) and "parent_hash" not in found and len(content) > len(found):
            raise Refused("perhaps a damaged parent_hash")
        parent = found.get("parent_hash")
        blocks = []
        for each in array(need(found, "blocks")):
            block = fields(each, "block_hash", "tokens_hash")
            blocks.append(
                StoredBlock(
                    block_hash(need(block, "block_hash")), block_hash(need(block, "tokens_hash"))
                )
            )
        return Stored(None if parent is None else block_hash(parent), tuple(blocks))
    if kind == "removed":
        hashes = need(fields(content, "block_hashes"), "block_hashes")
        return Removed(tuple(block_hash(each) for each in array(hashes)))
    if kind == "cleared":
        return Cleared()
    raise Refused("unknown event")


def read_cache_event(worker_id: int, value: Any, tier: StorageTier = "device") -> RouterEvent:
    found = fields(value, "event_id", "data", "dp_rank")
    rank = found.get("dp_rank")
    worker = WorkerWithDpRank(worker_id, 0 if rank is None else uint(rank, 32))
    return RouterEvent(worker, uint(need(found, "event_id")), read_data(need(found, "data")), tier)


def read_router_event(value: Any) -> RouterEvent:
    found = fields(value, "worker_id", "storage_tier", "residency_domain", "event")
    name = found.get("storage_tier")
    tier = b"device" if name is None else text(name)
    known: StorageTier = next((each for each in TIERS if each.encode() == tier), "external")
    return read_cache_event(uint(need(found, "worker_id")), need(found, "event"), known)


def read_payload(value: Any) -> list[RouterEvent]:
    if isinstance(value, list) and not (value and type(value[0]) is int):
        return [read_router_event(each) for each in value]
    return [read_router_event(value)]


def read_message(data: bytes) -> list[RouterEvent]:
    value = parse(data)
    positional = isinstance(value, list) and [type(each) for each in value[:2]] == [int, int]
    named = fields(value, "topic", "payload") if isinstance(value, dict) else {}
    if is_json(data) or not (positional or named):
        return read_payload(value)
    found = fields(value, "publisher_id", "sequence", "published_at", "topic", "payload")
    uint(need(found, "publisher_id"))
    uint(need(found, "sequence"))
    topic, payload = text(need(found, "topic")), text(need(found, "payload"))
    return read_payload(parse(payload)) if topic == b"kv-events" else []
