"""Broken event messages: never a crash or a byte read beyond the end, and never another meaning.

The laws are those of fuzz/targets.py; here hypothesis makes the messages.
"""

import random
from typing import Any

import msgspec
from fuzz.damage import damage
from fuzz.targets import check_cache_event, check_event_message, decoded
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.events import TIERS, WORDS

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.codec import (
    encode_cache_event,
    encode_event_message,
    encode_router_event,
)
from dynamo_router.indexer.wire.events import (
    Cleared,
    Removed,
    RouterEvent,
    Stored,
    StoredBlock,
)

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


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, form=st.sampled_from(FORMS), seed=st.integers(0, 2**32))
def test_a_damaged_message(events: list[RouterEvent], form: str, seed: int) -> None:
    message = encoded(events, form)
    assert decoded(message) == (events[:1] if form == "small json" else events)
    check_event_message(message)
    rng = random.Random(seed)
    for _ in range(20):
        check_event_message(damage(message, rng))


@settings(max_examples=40, deadline=None)
@given(events=EVENTS, form=st.sampled_from(FORMS))
def test_every_beginning_of_a_message_is_refused(events: list[RouterEvent], form: str) -> None:
    message = encoded(events, form)
    for length in range(1, len(message)):
        assert decoded(message[:length]) is None


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), events=EVENTS)
def test_a_damaged_cache_event(seed: int, events: list[RouterEvent]) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        check_cache_event(damage(encode_cache_event(events[0]), rng))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    decoded(data)


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
def test_any_structure_out_of_our_words(value: Any) -> None:
    check_event_message(msgspec.msgpack.encode(value))
    check_event_message(msgspec.json.encode(value))


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 2**32))
def test_a_message_with_one_part_changed(events: list[RouterEvent], seed: int) -> None:
    rng = random.Random(seed)
    texts = [encode_router_event(event) for event in events]
    for _ in range(20):
        value = change([msgspec.json.decode(text) for text in texts], rng)
        check_event_message(msgspec.msgpack.encode(value))
        check_event_message(msgspec.json.encode(value))
        payload = msgspec.msgpack.encode(value)
        sealed = {"publisher_id": 1, "sequence": 2, "topic": "kv-events", "payload": payload}
        check_event_message(msgspec.msgpack.encode(change(sealed, rng)))
