"""Recorded ZMQ messages of engines are what they are documented to be.

Held here are the frames, the fields, that the engines' block hashes are the sequence hashes that we
compute from their tokens, and what the index gets of them.
"""

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from support.places import VECTORS

from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.indexer.wire import EngineEvents, Stored, decode_event_message, frame_batch

SAMPLES = json.loads((VECTORS / "zmq_messages.json").read_text())["samples"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['seq_be_u64']}")
def test_a_message_has_three_frames(sample: dict[str, Any]) -> None:
    topic, sequence, payload = map(b64decode, sample["frames_b64"])
    assert [len(topic), len(sequence), len(payload)] == sample["frame_lens"]
    assert topic.decode() == sample["topic"]
    assert len(sequence) == 8
    assert int.from_bytes(sequence, "big") == sample["seq_be_u64"]
    published_at, events, rank = msgspec.msgpack.decode(payload)
    assert published_at > 1.7e9 and events and rank == 0


def events_of(sample: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = msgspec.msgpack.decode(b64decode(sample["frames_b64"][2]))[1]
    return events


def recorded_events() -> list[dict[str, Any]]:
    return [event for sample in SAMPLES for event in events_of(sample)]


def test_their_block_hashes_are_our_sequence_hashes() -> None:
    for event in recorded_events():
        assert event["type"] == "BlockStored"
        local_hashes = block_hashes(event["token_ids"], event["block_size"])
        chained = sequence_hashes(local_hashes, event["parent_block_hash"])
        assert chained.tolist() == event["block_hashes"]


def test_a_parent_is_a_block_that_was_stored_before() -> None:
    stored: set[int] = set()
    parents = []
    for event in recorded_events():
        if event["parent_block_hash"] is not None:
            parents.append(event["parent_block_hash"])
            assert parents[-1] in stored
        stored.update(event["block_hashes"])
    assert len(parents) == 6


def test_a_publishers_sequence_grows_by_one() -> None:
    """Two engines were recorded: each number is there once from each."""
    assert sorted(sample["seq_be_u64"] for sample in SAMPLES) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['seq_be_u64']}")
def test_the_index_gets_their_blocks(sample: dict[str, Any]) -> None:
    events = events_of(sample)
    batch = EngineEvents(events[0]["block_size"]).read(b64decode(sample["frames_b64"][2]), 1)
    assert batch is not None and batch.head.events == len(events)
    names = {"worker_id": 1, "dp_rank": 0, "publisher_id": 2, "sequence": 0, "first_event_id": 1}
    frame = frame_batch(batch.data, **names, block_size=1, decoded=batch.decoded)
    for made, event in zip(decode_event_message(frame), events, strict=True):
        assert isinstance(made.data, Stored) and made.data.parent_hash == event["parent_block_hash"]
        assert [block.block_hash for block in made.data.blocks] == event["block_hashes"]
        local = block_hashes(event["token_ids"], event["block_size"]).tolist()
        assert [block.tokens_hash for block in made.data.blocks] == local
