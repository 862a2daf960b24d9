"""Plain payloads of vLLM and SGLang: the kernel and the translator of every event say the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv_events.engine_events import CLEARED, removed, stored

from dynamo_router.indexer.wire import plain_batch
from dynamo_router.kv_events.dialects import EventsRefused, ZmqPayload
from dynamo_router.kv_events.dialects.zmq_payload import _FIELDS
from dynamo_router.workers.trtllm_proto import common_pb

SIZE = 4
GROUP = {"group_idx": 0}
HASHES = st.integers(-(2**63), 2**64 - 1)
TOKENS = st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1])
ODD: dict[str, Any] = {
    "adapter": {"lora_name": "a"},
    "adapter's number": {"lora_id": 3},
    "salt": {"cache_salt": "s"},
    "keys": {"extra_keys": [["a"]]},
    "host": {"medium": "CPU"},
    "remote": {"locality": "REMOTE"},
    "window": {"kv_cache_spec_kind": "sliding_window"},
    "size": {"block_size": 2 * SIZE},
    "no size": {"block_size": None},
    "pairs": {"token_ids": [[1, 2]] * SIZE},
    "negative token": {"token_ids": [-1] * SIZE},
    "huge token": {"token_ids": [2**32] * SIZE},
    "no tokens": {"token_ids": None},
    "bytes": {"block_hashes": [b"\x01" * 32]},
    "a block without a name": {"block_hashes": [None]},
    "parent of bytes": {"parent_block_hash": b"\x01" * 32},
    "another type": {"type": "Something"},
    "a type that is none": {"type": 7},
}


def translated(payload: bytes, size: int = SIZE) -> bytes | None:
    """By the translator alone, which reads its first payload itself."""
    try:
        return ZmqPayload(size).batch(payload, 9)
    except EventsRefused:
        return None


def pack(*events: Any, rank: Any = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def as_array(event: dict[str, Any]) -> list[Any]:
    kind = event["type"]
    return [kind, *(event.get(name) for name in _FIELDS[kind])]


@st.composite
def plain_events(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["stored", "removed", "cleared"]))
    if kind == "cleared":
        event = CLEARED
    elif kind == "removed":
        event = removed(*draw(st.lists(HASHES, max_size=20)), **GROUP)
    else:
        count = draw(st.integers(0, 20))
        hashes = draw(st.lists(HASHES, min_size=count, max_size=count))
        tokens = draw(st.lists(TOKENS, min_size=count * SIZE - count, max_size=count * SIZE + 2))
        more = draw(
            st.sampled_from([{}, {"extra_keys": [None] * count}, {"kv_cache_spec_kind": "mla"},
                             {"lora_name": "", "lora_id": 0}])
        )  # fmt: skip
        event = stored(hashes, tokens, SIZE, draw(st.none() | HASHES), **more)
    return as_array(event) if draw(st.booleans()) else event


@given(st.lists(plain_events(), max_size=4), st.sampled_from([0, None, 3]))
def test_plain_events_are_translated_to_the_same(events: list[Any], rank: Any) -> None:
    payload = pack(*events, rank=rank)
    found, wanted = plain_batch(payload, 9, SIZE), translated(payload)
    assert found is not None and wanted is not None
    assert common_pb.KvEventBatch.FromString(found) == common_pb.KvEventBatch.FromString(wanted)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("array", [False, True])
def test_what_is_not_plain_is_left_to_the_translator(odd: str, array: bool) -> None:
    event = {**stored([1], list(range(SIZE)), SIZE), **ODD[odd]}
    if array and event["type"] not in _FIELDS:
        return
    packed = as_array(event) if array else event
    lost = {"locality", "cache_salt"} & ODD[odd].keys()  # an array has no place for them
    assert (plain_batch(pack(packed), 9, SIZE) is None) == (not (array and lost))
    assert plain_batch(pack(CLEARED, packed), 9, SIZE) is None or (array and lost)


@given(st.lists(plain_events(), min_size=1, max_size=2), st.data())
def test_damaged_payloads_are_left_to_it_or_read_as_it_reads_them(
    events: list[Any], data: st.DataObject
) -> None:
    payload = bytearray(pack(*events))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), cut):
        found = plain_batch(damaged, 9, SIZE)
        if found is not None:
            wanted = translated(damaged)
            assert wanted is not None
            batch = common_pb.KvEventBatch.FromString(found)
            assert batch == common_pb.KvEventBatch.FromString(wanted)


@pytest.mark.parametrize(
    ("wanted", "instead"),
    [(b"\xa4type", b"\xc4\x04type"), (b"\xb0AllB", b"\xc4\x10AllB"), (b"\xa1n", b"\xa1\xff"),
     (b"\xa1n\x07", b"\xa4type\xabBlockStored"), (b"\x07", b"\xa1\xff"),
     (b"\x07", b"\xd6\xff\0\0\0\1"), (b"\x07", b"\x91" * 2000 + b"\xc0"), (b"\x09", b"\xa1\xff")],
    ids=["field of bytes", "type of bytes", "field", "type twice", "text", "ext", "deep", "rank"],
)  # fmt: skip
def test_what_the_translator_reads_in_another_way_is_left_to_it(
    wanted: bytes, instead: bytes
) -> None:
    payload = pack({"type": "AllBlocksCleared", "n": 7}, rank=9)
    assert plain_batch(payload, 9, SIZE) is not None and payload.count(wanted) == 1
    assert plain_batch(payload.replace(wanted, instead), 9, SIZE) is None


@pytest.mark.parametrize("name", ["lora_id", "lora_name", "cache_salt"])
def test_an_array_is_no_name(name: str) -> None:
    assert plain_batch(pack(stored([1], [1] * SIZE, SIZE, **{name: [None]})), 9, SIZE) is None


def test_what_is_said_last_counts() -> None:
    event = stored([1], [1] * SIZE, SIZE, kv_cache_spec_kind="mla")
    more = msgspec.msgpack.encode("kv_cache_spec_kind") + b"\xc0"
    packed = msgspec.msgpack.encode(event)
    payload = b"\x92\x00\x91" + bytes([packed[0] + 1]) + packed[1:] + more
    found, wanted = plain_batch(payload, 9, SIZE), translated(payload)
    assert found is not None and wanted is not None
    assert common_pb.KvEventBatch.FromString(found) == common_pb.KvEventBatch.FromString(wanted)


def test_a_salted_chain_ends_the_short_way() -> None:
    payload = ZmqPayload(SIZE)
    plain = pack(stored([1], list(range(SIZE)), SIZE))
    assert payload.batch(plain, 9) == payload.batch(plain, 9)
    payload.batch(pack(stored([2], list(range(SIZE)), SIZE, cache_salt="s")), 10)
    below = payload.batch(pack(stored([3], list(range(SIZE)), SIZE, parent=2)), 11)
    assert below is not None
    assert common_pb.KvEventBatch.FromString(below).events[0].stored.cache_salt == "s"
