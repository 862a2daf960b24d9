"""Decoding event messages: what is odd but clear is read, what is wrong is refused."""

import json
import struct
from typing import Any

import msgspec
import pytest

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.codec import (
    decode_cache_event,
    decode_event_message,
    describe_decode_error,
    encode_heartbeat,
)
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored, StoredBlock

pack = msgspec.msgpack.encode

WORKER = WorkerWithDpRank(7, 1)
BLOCK = {"block_hash": 10, "tokens_hash": 20}
STORED = {"parent_hash": None, "blocks": [BLOCK]}
EVENT: dict[str, Any] = {"event_id": 3, "data": {"stored": STORED}, "dp_rank": 1}
ROUTER_EVENT: dict[str, Any] = {"worker_id": 7, "event": EVENT}
SAYS = [RouterEvent(WORKER, 3, Stored(None, (StoredBlock(10, 20),)))]


def sealed(**changes: Any) -> bytes:
    """An envelope around EVENT; a field that is changed to `...` is left out."""
    fields = {
        "publisher_id": 1,
        "sequence": 2,
        "published_at": 3,
        "topic": "kv-events",
        "payload": pack([ROUTER_EVENT]),
    }
    fields.update(changes)
    return pack({name: value for name, value in fields.items() if value is not ...})


def envelope(payload: Any) -> bytes:
    return sealed(payload=payload if isinstance(payload, bytes) else pack(payload))


def with_data(data: Any) -> bytes:
    return envelope([{"worker_id": 7, "event": {"event_id": 3, "data": data, "dp_rank": 1}}])


# --- tolerant at the edge


def u64(number: int) -> bytes:
    return b"\xcf" + struct.pack(">Q", number)


NESTED: Any = None
for _ in range(50):
    NESTED = [{"deep": NESTED}]

AS_ARRAY = [3, {"stored": [None, None, [[10, 20]]]}, 1]
LONG_ARRAY = [3, {"stored": [None, None, [[10, 20, None, 5]], 6]}, 1]
REMOVAL = {**EVENT, "data": {"removed": {"block_hashes": [1, 2]}}}
TWICE = b"\x81\xa6stored\x82\xa6blocks" + pack([BLOCK] * 3) + b"\xa6blocks" + pack([BLOCK])
ODD_VALUES = [1.5e-3, -2e5, 0.1, 'é"\\/\b\n\u20ac', True, False, None, {}, []]

CLEAR = {
    "the plain form": envelope([ROUTER_EVENT]),
    "one event, not in a list": envelope(ROUTER_EVENT),
    "no envelope": pack([ROUTER_EVENT]),
    "no envelope, no list": pack(ROUTER_EVENT),
    "fields in another order": pack(
        dict(
            reversed(
                msgspec.msgpack.decode(
                    envelope([{"event": dict(reversed(EVENT.items())), "worker_id": 7}])
                ).items()
            )
        )
    ),
    "unknown fields": envelope(
        [
            {
                "x": NESTED,
                **ROUTER_EVENT,
                7: [1.5, b"bin", True, msgspec.msgpack.Ext(5, b"12345678")],
                "event": {**EVENT, "later": {"a": [{}, [], -1, 2**64 - 1, "t" * 300]}},
            }
        ],
    ),
    "unknown fields of the envelope": sealed(trace={"id": [1, 2]}),
    "unknown fields of blocks": with_data(
        {"stored": {**STORED, "blocks": [{"mm_extra_info": {"a": 1}, **BLOCK, "z": [1]}]}}
    ),
    "keys as bytes": envelope(
        [{b"worker_id": 7, b"event": {b"event_id": 3, b"dp_rank": 1, b"data": {b"stored": STORED}}}]
    ),
    "a topic of bytes": sealed(topic=b"kv-events"),
    "numbers in their widest form": envelope(
        b"\x91\x82\xa9worker_id"
        + u64(7)
        + b"\xa5event\x83\xa8event_id"
        + u64(3)
        + b"\xa7dp_rank"
        + u64(1)
        + b"\xa4data"
        + pack({"stored": STORED})
    ),
    "numbers in a signed form": envelope(
        b"\x91\x82\xa9worker_id\xd0\x07\xa5event\x83\xa8event_id\xd1\x00\x03"
        b"\xa7dp_rank\xd2\x00\x00\x00\x01\xa4data" + pack({"stored": STORED})
    ),
    "containers in their widest form": envelope(
        b"\xdd\x00\x00\x00\x01\xdf\x00\x00\x00\x02\xd9\x09worker_id\x07\xda\x00\x05event"
        + pack(EVENT)
    ),
    "structs as arrays": pack([1, 2, 3, "kv-events", pack([[7, "device", None, AS_ARRAY]])]),
    "one bare event as an array": pack([7, None, None, AS_ARRAY]),
    "JSON arrays": json.dumps([[7, None, None, AS_ARRAY]]).encode(),
    "arrays longer than we know": pack(
        [1, 2, 3, "kv-events", pack([[7, "device", None, [*LONG_ARRAY, 9], 4]]), 8]
    ),
    "no tier": envelope([{**ROUTER_EVENT, "storage_tier": None}]),
    "no time of publishing": sealed(published_at=...),
    "a key twice: the last one": envelope(
        b"\x91\x83\xa9worker_id\x07\xa5event" + pack(REMOVAL) + b"\xa5event" + pack(EVENT)
    ),
    "blocks twice: the last ones": with_data(msgspec.Raw(TWICE)),
    "JSON in the envelope": envelope(json.dumps([ROUTER_EVENT]).encode()),
    "JSON": json.dumps([ROUTER_EVENT]).encode(),
    "JSON, one event": json.dumps(ROUTER_EVENT).encode(),
    "JSON with space": b" \n\t\r" + json.dumps([ROUTER_EVENT], indent=2).encode() + b"\n ",
    "JSON with unknown fields": json.dumps({"a": NESTED, "b": ODD_VALUES, **ROUTER_EVENT}).encode(),
    "JSON with escapes": json.dumps(ROUTER_EVENT)
    .encode()
    .replace(b'"event_id"', b'"\\u0065vent_i\\u0064"')
    .replace(b'"stored"', b'"st\\u006Fred"'),
}


@pytest.mark.parametrize("kind", CLEAR)
def test_what_is_odd_but_clear_is_read(kind: str) -> None:
    assert decode_event_message(CLEAR[kind]) == SAYS


def test_signed_hashes_are_their_unsigned_twins() -> None:
    data = {"stored": {"parent_hash": -1, "blocks": [{"block_hash": -(2**63), "tokens_hash": -2}]}}
    expected = Stored(2**64 - 1, (StoredBlock(2**63, 2**64 - 2),))
    for message in (
        with_data(data),
        msgspec.json.encode({**ROUTER_EVENT, "event": {**EVENT, "data": data}}),
    ):
        assert decode_event_message(message)[0].data == expected
    removed = with_data(
        {"removed": {"block_hashes": [-1, -33, -129, -32769, -(2**31) - 1, -(2**63)]}}
    )
    assert decode_event_message(removed)[0].data == Removed(
        tuple(2**64 + number for number in (-1, -33, -129, -32769, -(2**31) - 1, -(2**63)))
    )


@pytest.mark.parametrize("data", ["cleared", b"cleared", {"cleared": None}, {"cleared": {}}])
def test_cleared_in_each_form(data: Any) -> None:
    assert decode_event_message(with_data(data))[0].data == Cleared()


def test_an_event_without_rank_is_of_rank_0() -> None:
    event = {"event_id": 3, "data": "cleared"}
    extras: list[dict[str, None]] = [{}, {"dp_rank": None}]
    for extra in extras:
        message = envelope([{"worker_id": 7, "event": {**event, **extra}}])
        assert decode_event_message(message)[0].worker == (7, 0)


def test_a_tier_of_some_future_is_not_device_memory() -> None:
    for name, tier in (("device", "device"), ("host_pinned", "host_pinned"), ("warp", "external")):
        message = envelope([{**ROUTER_EVENT, "storage_tier": name}])
        assert decode_event_message(message)[0].storage_tier == tier


@pytest.mark.parametrize(
    "topic", ["kv_metrics", "active_sequences_events", "forward-pass-metrics", "something-new"]
)
def test_other_topics_are_left_unread(topic: str) -> None:
    assert decode_event_message(sealed(payload=b"\xc1 no msgpack", topic=topic)) == []


def test_acknowledgements_and_calls_of_the_request_plane_are_ignored() -> None:
    head, body = b'{"id":"1"}', b"\x81\xa1a\x01"
    frame = struct.pack(">QQQ", len(head), len(body), 0) + head + body
    assert decode_event_message(b"") == []
    assert decode_event_message(frame) == []
    for broken in (frame[:-1], frame + b"x", frame[:23], b"\x00" * 24):
        with pytest.raises(EventError):
            decode_event_message(broken)


# --- strict within

DEEP = b'{"x":' + b"[" * 200 + b"]" * 200 + b',"worker_id":7}'
WRONG = {
    "ends too early": [
        envelope([ROUTER_EVENT])[:-1],
        envelope(b""),
        envelope(pack([ROUTER_EVENT])[:-1]),
        pack([ROUTER_EVENT])[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff" + b"\xc0" * 100,
        b"\x81\xa7payload\xc6\xff\xff\xff\xff1234",
        b"\x81\xc9\xff\xff\xff\xff\x00",
        with_data(msgspec.Raw(b"\x81\xa7removed\x81\xacblock_hashes\xdd\x7f\xff\xff\xff")),
        b"[",
        b'{"worker_id":7,"event":{"event_id":1,"data":"cle',
        b'{"worker_id"',
        b'{"worker_id":7,"x":nul',
        b'{"worker_id":7,"x":"\\u12',
        b'{"worker_id":-',
    ],
    "bytes follow its end": [
        envelope([ROUTER_EVENT]) + b"\x00",
        envelope(pack([ROUTER_EVENT]) + b"\x00"),
        pack(ROUTER_EVENT) + b"\xc0",
        pack([]) + b"\xc0",
        json.dumps(ROUTER_EVENT).encode() + b" x",
        b"[][]",
    ],
    "neither msgpack nor JSON": [
        b"hello",
        b"\xc1",
        pack(7),
        pack("kv-events"),
        pack(None),
        pack({"a": msgspec.Raw(b"\xc1"), **ROUTER_EVENT}),
        b"{worker_id:7}",
        b'{"worker_id":7,}',
        b'{"worker_id" 7}',
        b'{"worker_id":07}',
        b'{"worker_id":"\x01"}',
        b'{"x":"\\q"}',
        b'{"x":+1}',
        b'{"x":1.}',
        b'{"x":nope}',
        json.dumps([ROUTER_EVENT])[:-1].encode() + b",]",
        b'{"x":"\\u12G4"}',
        b'{"x":[1,2}}',
    ],
    "nests too deep": [DEEP],
    "a field has a wrong type": [
        pack([[1, 2, 3], 4]),
        pack(["text"]),
        pack([ROUTER_EVENT, None]),
        sealed(payload=5),
        sealed(topic=5),
        sealed(sequence="1"),
        envelope([{**ROUTER_EVENT, "worker_id": "7"}]),
        envelope([{**ROUTER_EVENT, "worker_id": 7.0}]),
        envelope([{**ROUTER_EVENT, "worker_id": None}]),
        envelope([{**ROUTER_EVENT, "worker_id": True}]),
        envelope([{**ROUTER_EVENT, "event": 5}]),
        envelope([{**ROUTER_EVENT, "storage_tier": 0}]),
        envelope([{**ROUTER_EVENT, "event": {**EVENT, "dp_rank": "0"}}]),
        with_data(5),
        with_data(["stored"]),
        with_data({"stored": None}),
        with_data({"stored": {"parent_hash": "1", "blocks": []}}),
        with_data({"stored": {"parent_hash": None, "blocks": None}}),
        with_data({"stored": {"parent_hash": None, "blocks": {"0": BLOCK}}}),
        with_data({"stored": {"parent_hash": None, "blocks": [5]}}),
        with_data({"stored": {"parent_hash": None, "blocks": [{**BLOCK, "block_hash": None}]}}),
        with_data({"removed": {"block_hashes": ["1"]}}),
        with_data({"removed": {"block_hashes": {}}}),
        json.dumps({**ROUTER_EVENT, "worker_id": 7.5}).encode(),
        json.dumps({**ROUTER_EVENT, "worker_id": "7"}).encode(),
    ],
    "a number is out of its field's range": [
        envelope([{**ROUTER_EVENT, "worker_id": -1}]),
        envelope([{**ROUTER_EVENT, "event": {**EVENT, "event_id": -1}}]),
        envelope([{**ROUTER_EVENT, "event": {**EVENT, "dp_rank": 2**32}}]),
        envelope([{**ROUTER_EVENT, "event": {**EVENT, "dp_rank": -1}}]),
        sealed(sequence=-1),
        json.dumps({**ROUTER_EVENT, "worker_id": 2**64}).encode(),
        json.dumps({**ROUTER_EVENT, "worker_id": -(2**63) - 1}).encode(),
        json.dumps({**ROUTER_EVENT, "worker_id": 10**40}).encode(),
    ],
    "a field is missing": [
        pack({}),
        b"{}",
        b"[{}]",
        pack({"hello": "world"}),
        pack([{"worker_id": 7}]),
        pack([7]),
        envelope([{"event": EVENT}]),
        sealed(payload=...),
        sealed(topic=...),
        sealed(sequence=...),
        sealed(publisher_id=...),
        pack([1, 2, 3, "kv-events"]),
        envelope([{"worker_id": 7, "event": {"data": "cleared"}}]),
        envelope([{"worker_id": 7, "event": {"event_id": 1}}]),
        with_data({"stored": {"parent_hash": None}}),
        # The name of its parent is damaged, perhaps: it is not the beginning of a prompt.
        with_data({"stored": {"parent_hasi": 5, "blocks": [BLOCK]}}),
        with_data({"stored": {"blocks": [{"block_hash": 1}]}}),
        with_data({"stored": {"blocks": [{"tokens_hash": 1}]}}),
        with_data({"stored": [None, None, [[1]]]}),
        with_data({"removed": {}}),
    ],
    "none of stored, removed, cleared": [
        with_data("forgotten"),
        with_data({"forgotten": {}}),
        with_data({}),
        with_data({"stored": STORED, "removed": {"block_hashes": []}}),
        with_data({5: {}}),
    ],
}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        pytest.param(reason, message, id=f"{reason} {index}")
        for reason, messages in WRONG.items()
        for index, message in enumerate(messages)
    ],
)
def test_what_is_wrong_is_refused_with_its_reason(reason: str, message: bytes) -> None:
    with pytest.raises(EventError, match=reason):
        decode_event_message(message)


def test_one_bad_event_refuses_the_message() -> None:
    with pytest.raises(EventError):
        decode_event_message(envelope([ROUTER_EVENT, {**ROUTER_EVENT, "worker_id": None}]))


def test_msgpack_may_nest_as_deep_as_it_likes_where_we_do_not_look() -> None:
    depth = 200_000
    deep = b"\x81\xa1a" * depth + b"\xc0"
    message = b"\x91\x83\xa1x" + deep + pack(ROUTER_EVENT)[1:]
    assert decode_event_message(message) == SAYS


@pytest.mark.parametrize(
    "event",
    [b"", b"null", b"7", b"[]", b"cleared", b'"cleared"', b"\x81\xa8event_id\x01", b"{} {}"],
)
def test_a_cache_event_is_refused_unless_it_is_one(event: bytes) -> None:
    with pytest.raises(EventError) as caught:
        decode_cache_event(9, event)
    assert caught.value.worker_id == 9


def test_a_cache_event_in_dynamos_words() -> None:
    text = (
        b'{"event_id":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":'
        b'[{"block_hash":5,"tokens_hash":18446744073709551615,"mm_extra_info":null}]}}}'
    )
    expected = RouterEvent(WorkerWithDpRank(9, 0), 0, Stored(None, (StoredBlock(5, 2**64 - 1),)))
    for form in (text, bytearray(text), memoryview(text)):
        assert decode_cache_event(9, form) == expected


def test_every_code_has_its_words() -> None:
    texts = {describe_decode_error(code) for code in range(1, 11)}
    assert len(texts) == 10


def beat(**changes: Any) -> bytes:
    fields = {"worker_id": 2**64 - 1, "dp_rank": 7, "last_event_id": 2**63, **changes}
    payload = {key: value for key, value in fields.items() if value is not ...}
    return sealed(payload=msgspec.msgpack.encode(payload), topic="kv-heartbeat")


def test_a_heartbeat_is_no_event() -> None:
    message = encode_heartbeat(WorkerWithDpRank(5, 1), 9, 1, 2, 3)
    assert decode_event_message(message) == decode_event_message(beat()) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (beat(worker_id=...), "missing"),
        (beat(last_event_id=...), "missing"),
        (beat(worker_id="x"), "wrong type"),
        (beat(dp_rank=2**32), "out of its field's range"),
        (beat(last_event_id=-1), "range"),
        (sealed(payload=b"\xc1", topic="kv-heartbeat"), "msgpack"),
        (sealed(payload=b"", topic="kv-heartbeat"), "early"),
        (sealed(payload=msgspec.msgpack.encode({"worker_id": 1, "last_event_id": 1}) + b"\x00",
                topic="kv-heartbeat"), "follow"),
    ],
)  # fmt: skip
def test_a_bad_heartbeat_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(EventError, match=why):
        decode_event_message(bad)
