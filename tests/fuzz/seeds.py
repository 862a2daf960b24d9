"""Golden messages that fuzzing starts from: every form that a decoder accepts, and near misses.

`write_corpus` puts them into a folder for fuzzers that read their corpus from one.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from fuzz.dynamo_part import part_seeds
from fuzz.http2_peer import http2_seeds
from fuzz.http2_server import http2_server_seeds
from fuzz.http_answer import answer_seeds

from dynamo_router.base.envelope import EventEnvelope, encode_envelope
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.indexer.wire.codec import (
    encode_cache_event,
    encode_event_message,
    encode_router_event,
)
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored, StoredBlock
from dynamo_router.workers.trtllm_proto import pb

pack = msgspec.msgpack.encode

BLOCKS = tuple(StoredBlock(10**19 + i, 2**64 - 1 - i) for i in range(3))
EVENTS = [
    RouterEvent(WorkerWithDpRank(7, 0), 1, Stored(None, BLOCKS)),
    RouterEvent(WorkerWithDpRank(7, 0), 2, Stored(10**19 + 2, (StoredBlock(5, 6),))),
    RouterEvent(WorkerWithDpRank(2**53, 3), 1, Stored(0, ()), "host_pinned"),
    RouterEvent(WorkerWithDpRank(7, 0), 3, Removed((10**19 + 2, 0, 2**64 - 1))),
    RouterEvent(WorkerWithDpRank(7, 1), 2**64 - 1, Removed(()), "disk"),
    RouterEvent(WorkerWithDpRank(7, 0), 4, Cleared()),
]
AS_ARRAYS = [
    [7, "device", None, [3, {"stored": [None, None, [[10, 20], [-1, 2**64 - 1, None]]]}, 1]]
]


def _event_messages() -> list[bytes]:
    texts = [encode_router_event(event) for event in EVENTS]
    together = b"[" + b",".join(texts) + b"]"
    values = [msgspec.json.decode(text) for text in texts]
    sealed = {"publisher_id": 1, "sequence": 2, "published_at": 3, "topic": "kv-events"}
    return [
        encode_event_message(EVENTS, 2**53 - 1, 9, 1_700_000_000_000),
        *(encode_event_message([event], 1, 2, 3) for event in EVENTS),
        encode_event_message(EVENTS[:1], 1, 2, 3, "kv_metrics"),
        pack(values),
        pack(values[0]),
        pack(AS_ARRAYS),
        pack(AS_ARRAYS[0]),
        pack([1, 2, 3, "kv-events", pack(AS_ARRAYS)]),
        pack({**sealed, "payload": together}),
        pack({**sealed, "topic": b"kv-events", "payload": pack(values), "later": {"a": [1.5]}}),
        together,
        texts[0],
        json.dumps(values, indent=1).encode(),
        json.dumps(AS_ARRAYS).encode(),
        texts[0].replace(b'"blocks"', b'"\\u0062locks"'),
        (24).to_bytes(8, "big") + bytes(16) + b"{" + bytes(23),
    ]  # fmt: skip


def _cache_events() -> list[bytes]:
    texts = [encode_cache_event(event) for event in EVENTS]
    return [
        *texts,
        *(json.dumps(json.loads(text), indent=1).encode() for text in texts),
        b'{"event_id":0,"data":"cleared"}',
        b'[1,{"stored":[null,null,[[1,2],[-1,18446744073709551615]]]},2]',
        b'{"data":{"removed":{"block_hashes":[-9223372036854775808,0]}},"event_id":1,"x":[{},1e5]}',
    ]


def _generate_requests() -> list[bytes]:
    plain = pb.GenerateRequest(request_id="request-1", max_tokens=16, streaming=True)
    plain.tokenized.input_token_ids.extend([1, 127, 128, 2**31, 2**32 - 1])
    rich = pb.GenerateRequest(cache_salt_id=-5, stop=["a", "é"], stop_token_ids=[2])
    rich.MergeFrom(plain)
    rich.tokenized.original_text = "text"
    rich.sampling_config.num_return_sequences = 3
    rich.lora_config.task_id = 2**40
    rich.multimodal_input.image_data.append(b"image")
    rich.prompt_tuning_config.embedding_table = b"table"
    unpacked = b"\x12\x07\x10\x07\x18\x01\x10\xac\x02"
    bodies = [plain.SerializeToString(), rich.SerializeToString()]
    return [*bodies, bodies[0] + unpacked, unpacked, bodies[1] + bodies[0]]


def _generate_answers() -> list[bytes]:
    chunk = pb.GenerateStreamChunk(token_ids=[1, 300], completion_tokens=2, cached_tokens=2**31)
    whole = pb.GenerateComplete(output_token_ids=[1, 300], finish_reason="stop", cached_tokens=64)
    streamed = pb.GenerateResponse(request_id="request-1", chunk=chunk).SerializeToString()
    complete = pb.GenerateResponse(request_id="request-1", complete=whole).SerializeToString()
    return [streamed, complete, streamed + complete, streamed + streamed]


def _envelopes() -> list[bytes]:
    return [
        encode_envelope(EventEnvelope(1, 0, 2, "kv-events", b"payload")),
        encode_envelope(EventEnvelope(2**53 - 1, 2**64 - 1, 2**41, "kv_metrics", b"")),
        pack([1, 2, 3, "topic", b"as an array"]),
    ]


def _traces() -> list[bytes]:
    lines = SAMPLE_TRACE.read_bytes().splitlines(keepends=True)
    short = [line for line in lines if len(line) < 200][:6]
    return [b"".join(short), short[0], short[0].rstrip(b"\n"), b"\n".join(short)]


def _message_rows() -> list[bytes]:
    into_itself = RouterEvent(WorkerWithDpRank(7, 0), 1, Stored(None, BLOCKS[:1] * 2))
    rows = [
        _event_messages()[:8],
        [encode_event_message([event], 1, place, 3) for place, event in enumerate(EVENTS)],
        [encode_event_message([into_itself], 1, 0, 3)],
    ]
    return [b"".join(len(each).to_bytes(2, "little") + each for each in row) for row in rows]


def _calls() -> list[bytes]:
    call = bytes
    return [
        call([0, 0, 9, 0, 0]) + bytes(range(9)) + call([0, 1, 12, 0, 0]) + bytes(range(12)),
        call([0, 0, 6, 0, 3]) + bytes(6) + call([2, 0, 6, 1, 3]) + bytes(6) + call([3, 0, 0, 0, 0]),
        b"".join(call([0, who, 10, 0, 2]) + bytes(range(who, who + 10)) for who in range(10))
        + b"".join(call([2 + who % 6, who, 8, who, 2]) + bytes(range(8)) for who in range(10)),
    ]


SEEDS: Mapping[str, Sequence[bytes]] = {
    "event_message": _event_messages(),
    "cache_event": _cache_events(),
    "generate_request": _generate_requests(),
    "generate_answer": _generate_answers(),
    "envelope": _envelopes(),
    "trace": _traces(),
    "index": _message_rows(),
    "tree": _calls(),
    "http2": http2_seeds(),
    "http2_server": http2_server_seeds(),
    "http_answer": answer_seeds(),
    "dynamo_part": part_seeds(),
}


def write_corpus(folder: Path, target: str) -> None:
    """The target's seeds, a file each, named by their content."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS[target]:
        (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)


def known_words() -> list[Any]:
    """Texts that mean something to a decoder: a dictionary for fuzzers that take one."""
    return [
        *("worker_id", "storage_tier", "residency_domain", "event", "event_id", "data", "stored"),
        *("removed", "cleared", "parent_hash", "start_position", "blocks", "block_hash", "dp_rank"),
        *("tokens_hash", "mm_extra_info", "block_hashes", "publisher_id", "sequence", "topic"),
        *("published_at", "payload", "kv-events", "kv_metrics", "device", "host_pinned", "disk"),
        *("timestamp", "input_length", "output_length", "hash_ids"),
    ]
