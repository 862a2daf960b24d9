"""What vLLM and SGLang publish: the kernel reads it as plain Python does."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.engine_events import FIELDS, Damaged, EngineOracle, Refused
from support.kv_events.engine_events import CLEARED, removed, stored

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire import (
    EngineEvents,
    RouterEvent,
    decode_event_message,
    frame_batch,
)

SIZE = 4
WORKER = WorkerWithDpRank(2**63 + 7, 3)
HASHES = (
    st.integers(1, 6)
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=12)
    | st.sampled_from([b"\x01" * 32, b"\xff" * 32])
)
TOKENS = st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1])
TEXTS = st.sampled_from(["", "a", "b", "ümlaut", "x" * 40])
KEYS = st.lists(TEXTS | st.integers(0, 3) | st.sampled_from([b"d", ["img", 0]]), max_size=3)
MORE: dict[str, st.SearchStrategy[Any]] = {
    "lora_name": TEXTS | st.none(),
    "lora_id": st.integers(0, 3) | st.none(),
    "cache_salt": TEXTS | st.none(),
    "extra_keys": st.lists(st.none() | KEYS, max_size=6) | st.none(),
    "medium": st.sampled_from(["GPU", "cpu", "CPU_PINNED", "Disk", "NVME", "remote", "x", 5]),
    "locality": st.sampled_from(["REMOTE", "remote", "LOCAL", None]),
    "kv_cache_spec_kind": st.sampled_from(
        ["full", "full_attention", "mla", "mla_x", "mamba", "sliding_window", "", None, 7]
    ),
    "group_idx": st.integers(0, 3),
}
ODD: dict[str, Any] = {
    "no size": {"block_size": None},
    "size of text": {"block_size": "4"},
    "another size": {"block_size": 2 * SIZE},
    "smaller": {"block_size": 2},
    "size zero": {"block_size": 0},
    "pairs": {"token_ids": [[1, 2]] * SIZE},
    "pairs behind a token": {"token_ids": [1, [1, 2]]},
    "negative token": {"token_ids": [-1] * SIZE},
    "huge token": {"token_ids": [2**32] * SIZE},
    "no tokens": {"token_ids": None},
    "tokens of text": {"token_ids": "abcd"},
    "text": {"block_hashes": ["x"]},
    "half": {"block_hashes": [1.5]},
    "no hashes": {"block_hashes": None},
    "a block without a name": {"block_hashes": [None]},
    "parent of bytes": {"parent_block_hash": b"\x01" * 32},
    "parent of text": {"parent_block_hash": "x"},
    "adapter that is a number": {"lora_name": 5},
    "salt that is a list": {"cache_salt": [None]},
    "another type": {"type": "Something"},
    "a type that is none": {"type": 7},
}


class Kernel:
    def __init__(self) -> None:
        self.events = EngineEvents(SIZE)

    def read(self, payload: bytes, first: int) -> list[RouterEvent]:
        try:
            batch = self.events.read(payload, 9)
        except ValueError:
            raise Refused from None
        if batch is None:
            raise Damaged
        made = decode_event_message(framed(batch.data, first))
        assert len(made) == batch.head.events
        return made


def framed(data: bytes, first: int = 5, clears: bool = False) -> bytes:
    return frame_batch(
        data,
        worker_id=WORKER.worker_id,
        dp_rank=WORKER.dp_rank,
        publisher_id=9,
        sequence=11,
        first_event_id=first,
        block_size=SIZE,
        clears=clears,
        decoded=True,
    )


def outcome(reader: Kernel | EngineOracle, payload: bytes) -> list[RouterEvent] | str:
    """Its events; tiers of what is about no block count for nothing."""
    try:
        events = reader.read(payload, 5)
    except (Refused, Damaged) as error:
        return type(error).__name__
    nothing = [getattr(event.data, "block_hashes", None) == () for event in events]
    return [
        RouterEvent(event.worker, event.event_id, event.data) if none else event
        for event, none in zip(events, nothing, strict=True)
    ]


def pack(*events: Any, rank: Any = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def as_array(event: dict[str, Any]) -> list[Any]:
    kind = event["type"]
    return [kind, *(event.get(name) for name in FIELDS[kind])]


@st.composite
def engine_events(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["stored", "stored", "removed", "cleared", "other"]))
    if kind == "cleared":
        event = dict(CLEARED)
    elif kind == "other":
        return draw(st.sampled_from([["Other"], {"type": "New", "token_ids": "x"}, [7]]))
    elif kind == "removed":
        hashes = draw(st.lists(HASHES | st.none(), max_size=8))
        names = draw(st.sets(st.sampled_from(["medium", "locality", "group_idx"])))
        event = removed(*hashes, **{name: draw(MORE[name]) for name in sorted(names)})
    else:
        hashes = draw(st.lists(HASHES | st.none(), max_size=8))
        size = draw(st.sampled_from([SIZE, SIZE, SIZE, SIZE, 2]))
        count = len(hashes) * size
        tokens = draw(st.lists(TOKENS, min_size=max(count - 3, 0), max_size=count + 2))
        names = draw(st.sets(st.sampled_from(sorted(MORE)), max_size=3))
        parent = draw(st.none() | HASHES)
        more = {name: draw(MORE[name]) for name in sorted(names)}
        event = stored(hashes, tokens, size, parent, **more)
    if draw(st.integers(0, 3)) == 0:
        return as_array(event)
    places = draw(st.permutations(sorted(event)))
    return {name: event[name] for name in places}


@given(st.lists(st.lists(engine_events(), max_size=4), max_size=4), st.sampled_from([0, None, 3]))
def test_payloads_are_read_as_plain_python_reads_them(messages: list[list[Any]], rank: Any) -> None:
    kernel, oracle = Kernel(), EngineOracle(WORKER, SIZE)
    for events in messages:
        payload = pack(*events, rank=rank)
        wanted = outcome(oracle, payload)
        assert outcome(kernel, payload) == wanted
        if isinstance(wanted, str):
            return  # the stream begins anew, or is not read any more


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("array", [False, True])
def test_odd_events_are_read_or_refused_alike(odd: str, array: bool) -> None:
    event = {**stored([1], list(range(SIZE)), SIZE), **ODD[odd]}
    if array and event["type"] not in FIELDS:
        return
    payload = pack(CLEARED, as_array(event) if array else event)
    assert outcome(Kernel(), payload) == outcome(EngineOracle(WORKER, SIZE), payload)


@given(st.lists(engine_events(), min_size=1, max_size=2), st.data())
def test_damaged_payloads_are_not_read_in_another_way(
    events: list[Any], data: st.DataObject
) -> None:
    payload = bytearray(pack(*events))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), cut):
        outcome(Kernel(), damaged)  # refuses, or reads, and stays within the bytes


def test_of_a_key_that_comes_twice_the_last_one_counts() -> None:
    event = stored([1], [1] * SIZE, SIZE, kv_cache_spec_kind="mamba")
    more = msgspec.msgpack.encode("kv_cache_spec_kind") + b"\xc0"
    more += msgspec.msgpack.encode("token_ids") + msgspec.msgpack.encode([2] * SIZE)
    packed = msgspec.msgpack.encode(event)
    payload = b"\x92\x00\x91" + bytes([packed[0] + 2]) + packed[1:] + more
    wanted = outcome(EngineOracle(WORKER, SIZE), payload)
    assert outcome(Kernel(), payload) == wanted and len(wanted) == 1


def test_a_decoded_frame_that_is_damaged_is_refused() -> None:
    batch = EngineEvents(SIZE).read(pack(removed(1, 2), CLEARED), 1)
    assert batch is not None
    whole = framed(batch.data)
    assert len(decode_event_message(whole)) == 5
    assert len(decode_event_message(framed(batch.data, clears=True))) == 9
    for size in range(1, len(whole)):
        if size != 48:  # a header alone is a batch of nothing
            with pytest.raises(EventError):
                decode_event_message(whole[:size])


@given(st.data())
def test_a_decoded_frame_of_any_bytes_stays_within_them(data: st.DataObject) -> None:
    batch = EngineEvents(SIZE).read(pack(stored([1], [1] * SIZE, SIZE), removed(2)), 1)
    assert batch is not None
    damaged = bytearray(framed(batch.data))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(1, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_event_message(bytes(damaged))
    except EventError:
        pass
