"""Requests are read within bounds, as protobuf reads them, and long ones off the event loop."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_engine import prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.router import prompt as module
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch._generate_request import parse_generate, parse_tokens
from dynamo_router.server.dispatch.request_reader import LONG_BYTES, RequestReader
from dynamo_router.workers.trtllm_proto import pb

u32 = st.integers(0, 2**32 - 1)
MANY = 2**20


@st.composite
def selections(draw: st.DrawFn) -> bytes:
    """A serialized selection: fields in any order, tokens packed or not, in several pieces."""
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        request = rpb.SelectWorkerRequest(
            token_ids=draw(st.lists(u32, max_size=20)),
            request_id=draw(st.text(max_size=9)),
            allowed_worker_ids=draw(st.lists(st.integers(0, 2**64 - 1), max_size=3)),
        )
        if draw(st.booleans()):
            request.pinned_worker.worker_id = draw(u32)
        pieces.append(request.SerializeToString())
        if draw(st.booleans()):  # a token that is not packed
            pieces.append(b"\x08" + bytes([draw(st.integers(0, 127))]))
        if draw(st.booleans()):  # a field of ours that is unknown to the message
            pieces.append(b"\x9a\x06\x02hi")
    return b"".join(pieces)


@settings(max_examples=200)
@given(selections())
def test_tokens_and_the_rest_are_what_protobuf_reads(body: bytes) -> None:
    tokens, rest = parse_tokens(body, 1, MANY, MANY)
    whole = rpb.SelectWorkerRequest.FromString(body)
    assert tokens.tolist() == list(whole.token_ids)
    whole.ClearField("token_ids")
    assert rpb.SelectWorkerRequest.FromString(rest) == whole


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        tokens, rest = parse_tokens(body, 1, MANY, MANY)
    except ValueError:
        return
    assert len(tokens) <= len(body) and len(rest) <= len(body)


def test_what_is_too_long_is_said_before_it_is_decoded() -> None:
    body = rpb.SelectWorkerRequest(token_ids=range(10), request_id="abc").SerializeToString()
    assert len(parse_tokens(body, 1, 10, 5)[0]) == 10
    with pytest.raises(OverflowError, match="max_prompt_tokens"):
        parse_tokens(body, 1, 9, 5)
    with pytest.raises(OverflowError, match="decoded_bytes"):
        parse_tokens(body, 1, 10, 4)
    with pytest.raises(OverflowError, match="max_prompt_tokens"):
        parse_generate(prompt("abc", 3).SerializeToString(), 2, 3)
    with pytest.raises(OverflowError, match="max_id_bytes"):
        parse_generate(b"\x0a\x04\xff\xff\xff\xff", 2, 3)


@pytest.fixture
def hits() -> LimitHits:
    return LimitHits()


@pytest.fixture
async def reader(hits: LimitHits) -> AsyncIterator[RequestReader]:
    reader = RequestReader(16, CallerLimits(max_prompt_tokens=200_000, max_id_bytes=8), hits)
    yield reader
    reader.close()


def generation(tokens: int, request_id: str = "x") -> bytes:
    request = pb.GenerateRequest(request_id=request_id, streaming=True)
    request.tokenized.input_token_ids.extend([70_000] * tokens)
    body: bytes = request.SerializeToString()
    return body


async def test_long_requests_are_read_and_hashed_on_another_thread(
    reader: RequestReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def hashing(*args: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        return block_hashes(*args, **more)

    block_hashes = module.block_hashes
    monkeypatch.setattr(module, "block_hashes", hashing)
    long, short = generation(100_000), generation(100)
    assert len(long) > LONG_BYTES > len(short)
    assert (await reader.generate(short)).prompt.isl == 100
    assert reader.off_loop.runs == 0
    facts = await reader.generate(long)
    assert reader.off_loop.runs == 1 and len(facts.prompt.local_hashes) == 100_000 // 16
    assert threads == [t for t in threads if t is not threading.main_thread()] != []
    body = rpb.ExplainRequest(token_ids=[1] * 150_000).SerializeToString()
    tokens, rest = await reader.tokens(body)
    assert reader.off_loop.runs == 2 and (len(tokens), rest) == (150_000, b"")


async def test_limits_are_counted_and_named(reader: RequestReader, hits: LimitHits) -> None:
    for body in (generation(200_001), generation(1, "more than 8")):
        with pytest.raises(InvalidRequestError, match="is more than"):
            await reader.generate(body)
    with pytest.raises(InvalidRequestError, match="is more than"):
        await reader.prompt([1] * 200_001, None, None)
    with pytest.raises(InvalidRequestError, match="lora_name"):
        reader.check_name("lora_name", "more than 8")
    with pytest.raises(InvalidRequestError, match="type"):
        await reader.tokens(b"\xff")
    assert hits.counts() == {"max_prompt_tokens": 2, "max_id_bytes": 2}
