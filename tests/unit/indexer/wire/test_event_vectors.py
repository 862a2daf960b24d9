"""Messages captured from a running Dynamo: each is understood, or knowingly ignored."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.places import VECTORS

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.codec import (
    EventWriter,
    decode_event_message,
    encode_event_message,
)
from dynamo_router.indexer.wire.events import RouterEvent, Stored, StoredBlock

# One message of a worker and what it says, so that the checkout alone notices a changed wire.
STORED = b64decode(
    "haxwdWJsaXNoZXJfaWTPAArMGUH4v4yoc2VxdWVuY2UBrHB1Ymxpc2hlZF9hdM8AAAGh+K266qV0b3BpY6lrdi1ldmVu"
    "dHOncGF5bG9hZMTPkYSpd29ya2VyX2lkz317ofisU5xyrHN0b3JhZ2VfdGllcqZkZXZpY2WwcmVzaWRlbmN5X2RvbWFp"
    "bqZ3b3JrZXKlZXZlbnSDqGV2ZW50X2lkAqRkYXRhgaZzdG9yZWSDq3BhcmVudF9oYXNozzRZhshnp6EdrnN0YXJ0X3Bv"
    "c2l0aW9uwKZibG9ja3ORg6pibG9ja19oYXNoz2IzRvU8rBncq3Rva2Vuc19oYXNoz3gZ6U4X7bB2rW1tX2V4dHJhX2lu"
    "Zm/Ap2RwX3JhbmsA"
)
STORED_SAYS = RouterEvent(
    WorkerWithDpRank(9041998766291524722, 0),
    2,
    Stored(3772194358190121245, (StoredBlock(7076077458628024796, 8654204680587292790),)),
)


def test_a_captured_message_means_what_it_says() -> None:
    assert decode_event_message(STORED) == [STORED_SAYS]


def test_our_message_is_the_captured_one_to_the_byte() -> None:
    written = encode_event_message([STORED_SAYS], 3039158620176268, 1, 1795173497578)
    assert written == STORED


def samples() -> list[Any]:
    recorded = json.loads((VECTORS / "nats_messages.json").read_text())["samples"]
    return [
        pytest.param(sample, id=f"{index}-{sample['subject'].split('.')[-1]}")
        for index, sample in enumerate(recorded)
    ]


def said(sample: dict[str, Any]) -> list[RouterEvent]:
    """A sample's events, from the decoded form that was recorded with it."""
    events = []
    for each in sample["payload_decoded"]:
        event = each["event"]
        stored = event["data"]["stored"]
        blocks = tuple(StoredBlock(b["block_hash"], b["tokens_hash"]) for b in stored["blocks"])
        data = Stored(stored["parent_hash"], blocks)
        worker = WorkerWithDpRank(each["worker_id"], event["dp_rank"])
        events.append(RouterEvent(worker, event["event_id"], data, each["storage_tier"]))
    return events


@pytest.mark.parametrize("sample", samples())
def test_every_captured_message(sample: dict[str, Any]) -> None:
    message = b64decode(sample["payload_b64"])
    assert (len(message) < sample["len"]) == sample.get("truncated", False)
    topic = sample.get("envelope", {}).get("topic")
    if topic == "kv-events":
        events = decode_event_message(message)
        assert events == said(sample)
        envelope = sample["envelope"]
        assert message == encode_event_message(
            events, envelope["publisher_id"], envelope["sequence"], envelope["published_at"]
        )
    elif sample.get("truncated"):
        check_truncated_capture(message, sample["len"])
    else:
        # Another topic, a call of the request plane, or its empty acknowledgement.
        assert topic != "kv-events"
        assert decode_event_message(message) == []


def check_truncated_capture(message: bytes, length: int) -> None:
    """The recording kept the first 4500 bytes of its two largest messages: no more of them exists.

    What is cut is refused as a whole: half an event must not count as one. That we can read such
    messages shows in their beginning. Completed with made-up blocks, it has the recorded length and
    the captured bytes, and decodes.
    """
    with pytest.raises(EventError, match="ends too early"):
        decode_event_message(message)
    publisher_id = number_after(message, b"publisher_id")
    published_at = number_after(message, b"published_at")
    worker_id = number_after(message, b"worker_id")
    blocks = list(kept_blocks(message))
    assert len(message) == 4500
    assert 62 < len(blocks) < 124  # the first event and a part of the second
    blocks += [(2**63 + i, 2**62 + i) for i in range(len(blocks), 124)]
    writer = EventWriter()
    for event_id, part in ((1, blocks[:62]), (2, blocks[62:])):
        block_hashes, tokens_hashes = zip(*part, strict=True)
        writer.stored(worker_id, 0, event_id, None, block_hashes, tokens_hashes)
    completed = writer.message(publisher_id, 0, published_at)
    assert len(completed) == length
    assert completed[:4400] == message[:4400]  # behind that comes the block that was cut
    parts = [event.data for event in decode_event_message(completed)]
    assert [len(part.blocks) for part in parts if isinstance(part, Stored)] == [62, 62]


def number_after(message: bytes, field: bytes) -> int:
    at = message.index(field) + len(field)
    assert message[at] == 0xCF
    return int.from_bytes(message[at + 1 : at + 9], "big")


def kept_blocks(message: bytes) -> Iterator[tuple[int, int]]:
    start = message.find(b"\x83\xaablock_hash")
    while start >= 0 and start + 57 <= len(message):
        block = msgspec.msgpack.decode(message[start : start + 57])
        yield block["block_hash"], block["tokens_hash"]
        start = message.find(b"\x83\xaablock_hash", start + 57)


def test_two_messages_were_truncated_by_the_recorder() -> None:
    recorded = json.loads((VECTORS / "nats_messages.json").read_text())["samples"]
    assert sum(each.get("truncated", False) for each in recorded) == 2
