"""Batches of gRPC event streams: the kernel makes of them what protobuf and our hashes say."""

import random
from typing import Any

import numpy as np
import pytest
from fuzz.damage import damage
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.hashing import compute_block_hash_for_seq
from dynamo_router.indexer.wire import (
    TIERS,
    BatchHead,
    Removed,
    RouterEvent,
    Stored,
    StoredBlock,
    decode_event_message,
    frame_batch,
    read_grpc_batch,
)
from dynamo_router.indexer.wire.events import Cleared
from dynamo_router.workers.trtllm_proto import common_pb

BLOCK = 4
WORKER = WorkerWithDpRank(2**63 + 7, 3)
HASHES = st.integers(-(2**63), 2**63 - 1)
TOKENS = st.integers(0, 2**32 - 1) | st.integers(0, 200)
U64 = st.integers(0, 2**64 - 1)


def framed(data: bytes, first: int = 5, clears: bool = False) -> bytes:
    return frame_batch(
        data,
        worker_id=WORKER.worker_id,
        dp_rank=WORKER.dp_rank,
        publisher_id=9,
        sequence=11,
        first_event_id=first,
        block_size=BLOCK,
        clears=clears,
    )


def read_head(data: bytes, block_size: int) -> BatchHead | None:
    batch = read_grpc_batch(data, block_size)
    assert batch is None or (batch.data == data and not batch.decoded)
    return None if batch is None else batch.head


def oracle(batch: Any, first: int = 5) -> list[RouterEvent]:
    """The same in plain Python."""
    made: list[RouterEvent] = []

    def add(data: Any, tier: int = 0) -> None:
        made.append(RouterEvent(WORKER, first + len(made), data, TIERS[min(tier, 3)]))

    for event in batch.events:
        kind = event.WhichOneof("data")
        if kind == "cleared":
            for tier in range(4):
                add(Cleared(), tier)
        elif kind == "removed":
            tier = event.removed.tier - 1 if event.removed.tier else event.removed.cache_level
            if event.removed.locality == common_pb.KV_CACHE_LOCALITY_REMOTE:
                add(Removed(()))
            else:
                add(Removed(tuple(h % 2**64 for h in event.removed.block_hashes)), max(tier, 0))
        else:
            blocks = _stored_blocks(event.stored)
            parent = None
            if event.stored.HasField("parent_block_hash"):
                parent = event.stored.parent_block_hash % 2**64
            if blocks:
                level = event.stored.blocks[0].cache_level
                tier = event.stored.tier - 1 if event.stored.tier else level
                add(Stored(parent, tuple(blocks)), tier)
            else:
                add(Removed(()))
    return made


def _stored_blocks(stored: Any) -> list[StoredBlock]:
    blocks: list[StoredBlock] = []
    if stored.locality == common_pb.KV_CACHE_LOCALITY_REMOTE:
        return []
    if stored.kv_cache_spec_kind not in ("", "full_attention", "mla_attention"):
        return []
    for block in stored.blocks:
        if len(block.token_ids) != BLOCK:
            break
        adapter = stored.lora_name or (str(block.lora_id) if block.lora_id else None)
        (local_hash,) = compute_block_hash_for_seq(
            list(block.token_ids),
            BLOCK,
            lora_name=adapter,
            cache_namespace=stored.cache_salt or None,
        )
        blocks.append(StoredBlock(block.block_hash % 2**64, local_hash))
    return blocks


@st.composite
def batches(draw: st.DrawFn) -> Any:
    batch = common_pb.KvEventBatch(sequence_number=draw(U64), timestamp=1.5)
    if draw(st.booleans()):
        batch.dp_rank = draw(st.integers(0, 9))
    if draw(st.booleans()):
        batch.snapshot.index, batch.snapshot.count = draw(U64) % 2**32, draw(U64) % 2**32
    if draw(st.booleans()):
        batch.load.running_requests, batch.load.load_only = 3, draw(st.booleans())
    for event_id in draw(st.lists(U64, max_size=4)):
        _draw_event(draw, batch.events.add(event_id=event_id))
    return batch


def _draw_event(draw: st.DrawFn, event: Any) -> None:
    kind = draw(st.sampled_from(["stored", "removed", "cleared", "nothing"]))
    where = draw(st.sampled_from(["", "tier", "level"]))
    if kind == "cleared":
        event.cleared.SetInParent()
    elif kind == "removed":
        event.removed.block_hashes.extend(draw(st.lists(HASHES, max_size=4)))
        if where == "tier":
            event.removed.tier = draw(st.integers(0, 4))
        elif where == "level":
            event.removed.cache_level = draw(st.integers(0, 5))
        if draw(st.integers(0, 4)) == 0:
            event.removed.locality = draw(st.integers(0, 2))
    else:
        stored = event.stored
        stored.SetInParent()
        if draw(st.booleans()):
            stored.parent_block_hash = draw(HASHES)
        if draw(st.integers(0, 3)) == 0:
            stored.lora_name = draw(st.text(max_size=5))
        if draw(st.integers(0, 3)) == 0:
            stored.cache_salt = draw(st.text(max_size=5))
        if draw(st.integers(0, 4)) == 0:
            kinds = ["full_attention", "mla_attention", "mamba", "sliding_window", ""]
            stored.kv_cache_spec_kind = draw(st.sampled_from(kinds))
        if draw(st.integers(0, 4)) == 0:
            stored.locality = draw(st.integers(0, 2))
        if where == "tier":
            stored.tier = draw(st.integers(0, 4))
        for block_hash in draw(st.lists(HASHES, max_size=3)):
            count = draw(st.sampled_from([BLOCK, BLOCK, BLOCK, BLOCK - 1, BLOCK + 1]))
            tokens = draw(st.lists(TOKENS, min_size=count, max_size=count))
            block = stored.blocks.add(block_hash=block_hash, token_ids=tokens)
            if draw(st.booleans()):
                block.block_size = count
            if draw(st.integers(0, 3)) == 0:
                block.lora_id = draw(st.integers(0, 2**63 - 1))
            if where == "level":
                block.cache_level = draw(st.integers(0, 5))


@given(batches())
def test_events_are_what_protobuf_and_our_hashes_say(batch: Any) -> None:
    data = batch.SerializeToString()
    expected = oracle(batch)
    head = read_head(data, BLOCK)
    assert decode_event_message(framed(data)) == expected
    assert head is not None and head.events == len(expected)
    cleared = decode_event_message(framed(data, clears=True))
    assert [event.data for event in cleared[:4]] == [Cleared()] * 4
    assert cleared[4:] == oracle(batch, first=9)


@given(batches())
def test_heads_are_what_protobuf_says(batch: Any) -> None:
    head = read_head(batch.SerializeToString(), BLOCK)
    assert head is not None
    ids = [event.event_id for event in batch.events if event.event_id]
    assert head.sequence == batch.sequence_number
    assert head.dp_rank == (batch.dp_rank if batch.HasField("dp_rank") else -1)
    assert (head.first_id, head.last_id) == ((ids[0], ids[-1]) if ids else (0, 0))
    assert head.hole == any(b > a + 1 for a, b in zip(ids, ids[1:], strict=False))
    chunk = batch.snapshot
    assert head.chunk_index == chunk.index
    if batch.HasField("snapshot") and chunk.count:
        assert head.chunk_count == chunk.count
    assert head.load_only == batch.load.load_only
    sizes = [[len(b.token_ids) for b in event.stored.blocks] for event in batch.events]
    wrong = any(size > BLOCK for each in sizes for size in each)
    wrong |= any(size != BLOCK for each in sizes for size in each[:-1])
    assert bool(head.wrong_size) == wrong


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    head = read_head(data, BLOCK)
    try:
        events = decode_event_message(framed(data))
    except EventError:
        return
    assert head is None or head.events == len(events)


@given(batches(), st.integers(0, 2**32))
def test_damaged_batches_are_read_or_refused(batch: Any, seed: int) -> None:
    data = damage(batch.SerializeToString(), random.Random(seed))
    head = read_head(data, BLOCK)
    try:
        events = decode_event_message(framed(data))
    except EventError:
        return
    assert head is None or head.events == len(events)


def test_a_block_with_further_keys_matches_no_prompt_of_tokens() -> None:
    def local_hash(**key: Any) -> int:
        batch = common_pb.KvEventBatch()
        stored = batch.events.add().stored
        block = stored.blocks.add(block_hash=1, token_ids=range(BLOCK), block_size=BLOCK)
        if key:
            block.extra_keys.add(**key)
        (event,) = decode_event_message(framed(batch.SerializeToString()))
        assert isinstance(event.data, Stored)
        return event.data.blocks[0].tokens_hash

    plain = compute_block_hash_for_seq(list(range(BLOCK)), BLOCK)[0]
    assert local_hash() == local_hash(text="adapter") == plain
    image = {"multimodal": common_pb.KvMultimodalKey(identifier="a", offset=1)}
    other = {"multimodal": common_pb.KvMultimodalKey(identifier="b", offset=1)}
    assert len({plain, local_hash(**image), local_hash(**other), local_hash(blob=b"x")}) == 4


def test_a_frame_cut_short_is_refused() -> None:
    whole = framed(b"")
    assert decode_event_message(whole) == []
    for size in range(1, len(whole)):
        with pytest.raises(EventError):
            decode_event_message(whole[:size])


def test_tokens_in_parts_are_those_of_one_block() -> None:
    tokens = np.arange(BLOCK, dtype=np.uint32)
    whole = common_pb.KvBlock(block_hash=1, token_ids=tokens.tolist())
    first = common_pb.KvBlock(block_hash=1, token_ids=tokens[:1].tolist())
    rest = common_pb.KvBlock(token_ids=tokens[1:].tolist())
    parts = first.SerializeToString() + rest.SerializeToString()

    def framed_block(block: bytes) -> bytes:
        stored = bytes([1 << 3 | 2, len(block)]) + block
        event = bytes([2 << 3 | 2, len(stored)]) + stored
        return framed(bytes([3 << 3 | 2, len(event)]) + event)

    in_parts = decode_event_message(framed_block(parts))
    assert in_parts == decode_event_message(framed_block(whole.SerializeToString()))
