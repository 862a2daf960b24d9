"""Broken event messages: never a crash or a byte read beyond the end, and never another meaning.

The oracle reads a message with msgspec and walks what comes out; where it accepts or refuses, the
native decoder must do the same. Only bytes that msgspec cannot parse at all are left to the native
decoder alone (it is laxer there: it does not check the UTF-8 of text that it does not keep).
"""

import ctypes
import mmap
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.indexer.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    StorageTier,
    Stored,
    StoredBlock,
)
from dynamo_router.indexer.wire import (
    decode_cache_event,
    decode_event_message,
    encode_cache_event,
    encode_event_message,
    encode_router_event,
)
from dynamo_router.runtime.errors import EventError
from dynamo_router.runtime.identity import WorkerWithDpRank

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


# --- the oracle


def parse(data: bytes) -> Any:
    codec: Any = msgspec.json if is_json(data) else msgspec.msgpack
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


# --- messages, and what can happen to them

U64 = st.integers(0, 2**64 - 1)
BLOCKS = st.lists(st.builds(StoredBlock, U64, U64), max_size=4).map(tuple)
EVENTS = st.lists(
    st.builds(
        RouterEvent,
        st.builds(WorkerWithDpRank, U64, st.integers(0, 2**32 - 1)),
        U64,
        st.builds(Stored, st.none() | U64, BLOCKS)
        | st.builds(Removed, st.lists(U64, max_size=4).map(tuple))
        | st.builds(Cleared),
        st.sampled_from(TIERS),
    ),
    min_size=1,
    max_size=3,
)
# Bytes that mean much: heads of every msgpack type, punctuation of JSON, both ends of the range.
TELLING = [*range(0x7F, 0x100), *b'{}[]",:\\-.0189eEnul \n', 0, 1, 15, 32]


def encoded(events: list[RouterEvent], form: str) -> bytes:
    if form == "message":
        return encode_event_message(events, 2**40, 7, 2**41)
    texts = [encode_router_event(event) for event in events]
    if form == "json":
        return b"[" + b",".join(texts) + b"]"
    if form == "small json":
        return texts[0]
    found: list[Any] = [msgspec.json.decode(each) for each in texts]
    if form == "json inside":
        payload = b"[" + b",".join(texts) + b"]"
        return msgspec.msgpack.encode(
            {"topic": "kv-events", "payload": payload, "sequence": 1, "publisher_id": 2}
        )
    return msgspec.msgpack.encode(found)


FORMS = ["message", "bare", "json", "small json", "json inside"]


def damage(message: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(message)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(damaged) + 1)
        end = min(len(damaged), at + rng.choice([1, 1, 2, 9, 30]))
        action = rng.randrange(6)
        if action == 0:
            del damaged[at:]
        elif action == 1:
            del damaged[at:end]
        elif action == 2:
            damaged[at:at] = bytes(rng.choice(TELLING) for _ in range(rng.choice([1, 2, 9])))
        elif action == 3:
            damaged[at:end] = bytes(rng.choice(TELLING) for _ in range(end - at))
        elif action == 4 and at < end:
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            damaged[at:at] = damaged[rng.randrange(len(damaged) + 1) :][: rng.choice([1, 13, 57])]
    return bytes(damaged)


ODD = [None, True, 0, -1, 2**32, -(2**63), 2**64 - 1, 1.5, "", "cleared", [], {}, [1, 2], {"a": 1}]


def change(value: Any, rng: random.Random) -> Any:
    """The same with one part, somewhere inside, gone or something else."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = change(value[key], rng)
        if isinstance(value, dict) and rng.random() < 0.2:
            return list(value.values())
        return value
    return rng.choice(ODD)


class Guarded:
    """A buffer that ends where readable memory ends: a byte read beyond it kills the process."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = (size + page - 1) // page * page
        self.map = mmap.mmap(-1, self.size + page)
        view = (ctypes.c_char * (self.size + page)).from_buffer(self.map)
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(ctypes.addressof(view) + self.size)
        assert libc.mprotect(guard, ctypes.c_size_t(page), 0) == 0, ctypes.get_errno()

    def put(self, data: bytes) -> memoryview:
        start = self.size - len(data)
        self.map[start : self.size] = data
        return memoryview(self.map)[start : self.size]


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    return Guarded(1 << 16)


def native(message: bytes | memoryview) -> list[RouterEvent] | None:
    try:
        return decode_event_message(message)
    except EventError:
        return None


def check(message: bytes, guarded: Guarded) -> None:
    found = native(guarded.put(message))
    assert found == native(message)
    try:
        expected = read_message(message)
    except Refused:
        assert found in (None, []) if not message else found is None
    except Unparsed:
        pass
    else:
        assert found == expected


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, form=st.sampled_from(FORMS), seed=st.integers(0, 2**32))
def test_a_damaged_message(
    events: list[RouterEvent], form: str, seed: int, guarded: Guarded
) -> None:
    message = encoded(events, form)
    assert native(message) == (events[:1] if form == "small json" else events)
    check(message, guarded)
    rng = random.Random(seed)
    for _ in range(20):
        check(damage(message, rng), guarded)


@settings(max_examples=40, deadline=None)
@given(events=EVENTS, form=st.sampled_from(FORMS))
def test_every_beginning_of_a_message_is_refused(
    events: list[RouterEvent], form: str, guarded: Guarded
) -> None:
    message = encoded(events, form)
    for length in range(1, len(message)):
        assert native(guarded.put(message[:length])) is None


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), events=EVENTS)
def test_a_damaged_cache_event(seed: int, events: list[RouterEvent], guarded: Guarded) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        data = damage(encode_cache_event(events[0]), rng)
        try:
            found = decode_cache_event(9, guarded.put(data))
        except EventError:
            found = None
        try:
            expected = read_cache_event(9, msgspec.json.decode(data))
        except Refused:
            assert found is None
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            assert found == expected


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes, guarded: Guarded) -> None:
    native(guarded.put(data))


SCALARS = st.none() | st.booleans() | U64 | st.floats() | st.text(max_size=9)


@settings(max_examples=150, deadline=None)
@given(
    value=st.recursive(
        SCALARS | st.binary(max_size=9) | st.sampled_from(WORDS),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_structure_out_of_our_words(value: Any, guarded: Guarded) -> None:
    check(msgspec.msgpack.encode(value), guarded)
    check(msgspec.json.encode(value), guarded)


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 2**32))
def test_a_message_with_one_part_changed(
    events: list[RouterEvent], seed: int, guarded: Guarded
) -> None:
    rng = random.Random(seed)
    texts = [encode_router_event(event) for event in events]
    for _ in range(20):
        value = change([msgspec.json.decode(text) for text in texts], rng)
        check(msgspec.msgpack.encode(value), guarded)
        check(msgspec.json.encode(value), guarded)
        payload = msgspec.msgpack.encode(value)
        sealed = {"publisher_id": 1, "sequence": 2, "topic": "kv-events", "payload": payload}
        check(msgspec.msgpack.encode(change(sealed, rng)), guarded)
