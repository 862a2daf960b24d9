"""What a fuzzer feeds, by name: each takes any bytes, and fails where a law is broken.

A decoder never crashes and never reads beyond the end (messages lie in `Guarded` memory); it means
what its oracle means, or refuses as documented; what it accepts survives being written and read.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.dynamo_part import check_dynamo_part
from fuzz.guarded import Guarded
from fuzz.http2_peer import check_http2
from fuzz.http2_server import check_http2_server
from fuzz.http_answer import check_http_answer
from google.protobuf.message import DecodeError
from instruments.tree_check import check_integrity
from oracles.events import Refused, Unparsed, parse, read_cache_event, read_message
from oracles.generate import expected, expected_answer, expected_progress
from oracles.tree import OracleTree
from oracles.tree import Refused as TreeRefused

from dynamo_router.base.envelope import decode_envelope, encode_envelope
from dynamo_router.base.errors import EventError, InvalidRequestError, RouterError
from dynamo_router.bench.traces.trace import decode_trace, encode_request
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.wire.codec import (
    decode_cache_event,
    decode_event_message,
    encode_cache_event,
    encode_event_message,
)
from dynamo_router.indexer.wire.events import RouterEvent, Stored
from dynamo_router.server.dispatch._generate_answer import parse_answer, progress_in
from dynamo_router.server.dispatch._generate_request import parse_generate
from dynamo_router.server.dispatch.generate_request import read_generate
from dynamo_router.workers.trtllm_proto import pb

LONGEST = 1 << 16
_memory = Guarded(LONGEST)


def decoded(message: bytes) -> list[RouterEvent] | None:
    """The events of a message, read where memory ends behind it; None if it is refused."""
    try:
        return decode_event_message(_memory.put(message))
    except EventError:
        return None


def check_event_message(data: bytes) -> None:
    found = decoded(data)
    try:
        oracle = read_message(data)
    except Refused:
        assert found in (None, []) if not data else found is None
    except Unparsed:
        pass
    else:
        assert found == oracle
    if found:
        assert decode_event_message(encode_event_message(found, 1, 2, 3)) == found


def check_cache_event(data: bytes) -> None:
    found = None
    with contextlib.suppress(EventError):
        found = decode_cache_event(9, _memory.put(data))
    try:
        oracle = read_cache_event(9, parse(data, json=True))
    except Refused:
        assert found is None
    except Unparsed:
        pass
    else:
        assert found == oracle
    if found is not None:
        assert decode_cache_event(9, encode_cache_event(found)) == found


def check_generate_request(data: bytes) -> None:
    try:
        request_id, tokens, *rest = parse_generate(data)
    except ValueError:
        return  # stricter than protobuf is safe; never wrong is what counts
    with contextlib.suppress(
        DecodeError
    ):  # what routing does not look at is the engine's to refuse
        theirs = expected(pb.GenerateRequest.FromString(data))
        assert (request_id, tokens.tolist(), *rest) == theirs
    with contextlib.suppress(InvalidRequestError):
        read_generate(data, 16)


def check_generate_answer(data: bytes) -> None:
    try:
        found = parse_answer(data)
    except ValueError:
        return
    with contextlib.suppress(DecodeError):
        theirs = pb.GenerateResponse.FromString(data)
        assert found == expected_answer(theirs)
        assert progress_in(data) == expected_progress(theirs)


def check_envelope(data: bytes) -> None:
    with contextlib.suppress(EventError):
        envelope = decode_envelope(data)
        assert decode_envelope(encode_envelope(envelope)) == envelope


def check_trace(data: bytes) -> None:
    """A whole file; what is read of it is read again from what it is written as."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_bytes(data)
        try:
            requests = [request for _, request in decode_trace(path)]
        except RouterError:
            return
        path.write_bytes(b"".join(map(encode_request, requests)))
        assert [request for _, request in decode_trace(path)] == requests


def check_index(data: bytes) -> None:
    """Messages one after the other, each behind its length (two bytes), into one index."""
    index = EventIndex(max_workers=4)
    told = 0
    try:
        while data:
            size = int.from_bytes(data[:2], "little")
            message, data = data[2 : 2 + size], data[2 + size :]
            events = decoded(message)
            if events is None:
                with contextlib.suppress(EventError):
                    index.apply(message)
                    raise AssertionError("the index applied what the decoder refuses")
            else:
                index.apply(message)
                told += sum(
                    len(event.data.blocks) for event in events if isinstance(event.data, Stored)
                )
        assert sum(source.blocks for source in index.sources()) <= told
    finally:
        index.close()


def check_tree(data: bytes) -> None:
    """Bytes as calls: (what, worker, chain length, start, hashes); few values: they meet."""
    tree, oracle = RadixTree(), OracleTree()
    chains: list[list[int]] = [[]]
    while len(data) >= 5:
        what, who, length, start, salt = data[:5]
        body, data = data[5 : 5 + length % 24], data[5 + length % 24 :]
        worker = (who % 5, who // 5 % 2)
        path = chains[start % len(chains)][: length % 7] + [byte % 3 for byte in body]
        hashes = _chained_hashes(path, salt)
        at = start % (len(path) + 1)
        if what % 4 < 2:
            chains.append(path)
            parent = hashes[at - 1] if at else None
            _both(tree, oracle, "store", worker, parent, hashes[at:], path[at:])
        elif what % 4 == 2:
            _both(tree, oracle, "remove", worker, hashes[at:][::-1])
        elif what % 8 == 3:
            tree.clear_all_blocks(worker)
            oracle.clear(worker)
        else:
            tree.remove_worker(worker)
            oracle.drop_worker(worker)
        assert tree.match(path).scores == oracle.match(path)
    check_integrity(tree)
    for chain in chains:
        assert tree.match(chain).scores == oracle.match(chain)
    assert len(tree) == oracle.size()


def _chained_hashes(path: list[int], salt: int) -> list[int]:
    """Mostly hashes as engines make them; every fourth salt makes hashes that collide."""
    if salt % 4 == 3:
        return [(salt // 4 + local) % 5 for local in path]
    hashes, external_hash = [], salt % 4 // 2
    for local in path:
        external_hash = (external_hash * 31 + local + 1) % 2**64
        hashes.append(external_hash)
    return hashes


def _both(tree: RadixTree, oracle: OracleTree, act: str, *arguments: Any) -> None:
    """Do it to both; they must refuse alike."""
    refused = None
    try:
        getattr(oracle, act)(*arguments)
    except TreeRefused as error:
        refused = error.code
    try:
        getattr(tree, act)(*arguments)
    except EventError as error:
        assert error.code == refused
    else:
        assert refused is None


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "event_message": check_event_message,
    "cache_event": check_cache_event,
    "generate_request": check_generate_request,
    "generate_answer": check_generate_answer,
    "envelope": check_envelope,
    "trace": check_trace,
    "index": check_index,
    "tree": check_tree,
    "http2": check_http2,
    "http2_server": check_http2_server,
    "http_answer": check_http_answer,
    "dynamo_part": check_dynamo_part,
}

# Their bytes are msgspec's to read, of whose coverage no fuzzer hears: damage at random does more.
UNSEEN = frozenset({"envelope", "trace", "http_answer", "dynamo_part"})
