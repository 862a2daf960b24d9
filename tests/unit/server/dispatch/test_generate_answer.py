"""The native reader of GenerateResponses against protobuf's own, and what routing asks it."""

from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.generate import expected_answer, expected_progress

from dynamo_router.server.dispatch._generate_answer import parse_answer, progress_in
from dynamo_router.server.dispatch.generate_answer import (
    BLANK_BYTES,
    Usage,
    cached_tokens_of,
    check_finish,
    is_blank,
    usage_of,
)
from dynamo_router.workers.trtllm_proto import pb

u32 = st.integers(0, 2**32 - 1)
ids = st.lists(u32, max_size=20)


@st.composite
def answers(draw: st.DrawFn) -> Any:
    answer = pb.GenerateResponse(request_id=draw(st.text(max_size=10)))
    kind = draw(st.sampled_from(["chunk", "complete", "neither"]))
    if kind == "chunk":
        answer.chunk.CopyFrom(
            pb.GenerateStreamChunk(
                token_ids=draw(ids),
                sequence_index=draw(u32),
                prompt_tokens=draw(u32),
                completion_tokens=draw(u32),
                cached_tokens=draw(u32),
            )
        )
    elif kind == "complete":
        answer.complete.CopyFrom(
            pb.GenerateComplete(
                output_token_ids=draw(ids),
                finish_reason=draw(st.text(max_size=5)),
                prompt_tokens=draw(u32),
                completion_tokens=draw(u32),
                cached_tokens=draw(u32),
            )
        )
    return answer


@given(answers())
def test_they_read_the_same(answer: Any) -> None:
    body = answer.SerializeToString()
    assert parse_answer(body) == expected_answer(answer)
    assert progress_in(body) == expected_progress(answer)


@given(st.lists(answers(), min_size=2, max_size=4))
def test_parts_that_come_twice_merge_as_protobuf_has_it(parts: list[Any]) -> None:
    body = b"".join(part.SerializeToString() for part in parts)
    merged = pb.GenerateResponse.FromString(body)
    assert parse_answer(body) == expected_answer(merged)
    assert progress_in(body) == expected_progress(merged)


@settings(max_examples=200)
@given(answers(), st.data())
def test_damaged_bytes_are_never_read_otherwise_than_by_protobuf(answer: Any, data: Any) -> None:
    body = bytearray(answer.SerializeToString())
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = parse_answer(cut)
    except ValueError:
        return  # stricter than protobuf is safe
    try:
        theirs = pb.GenerateResponse.FromString(cut)
    except DecodeError:
        return  # a string, or a part that routing does not look into
    assert found == expected_answer(theirs)
    assert progress_in(cut) == expected_progress(theirs)


def test_an_engine_tells_with_its_first_token_what_it_found_cached() -> None:
    chunk = pb.GenerateStreamChunk(token_ids=[7], cached_tokens=128, completion_tokens=3)
    streamed = pb.GenerateResponse(chunk=chunk).SerializeToString()
    whole = pb.GenerateResponse(
        complete=pb.GenerateComplete(cached_tokens=128, completion_tokens=5)
    ).SerializeToString()
    assert (cached_tokens_of(streamed), cached_tokens_of(whole)) == (128, None)
    assert (check_finish(streamed), check_finish(whole)) == (3, 0)
    assert (usage_of(streamed), usage_of(whole)) == (None, Usage(5, 128))


def test_what_cannot_be_read_tells_nothing() -> None:
    assert cached_tokens_of(b"\xff\xff") is None and usage_of(b"\xff\xff") is None
    assert check_finish(b"\xff\xff") == 0 and not is_blank(b"\xff\xff")


def test_an_answer_without_a_token_is_blank() -> None:
    def said(**fields: Any) -> bytes:
        return bytes(pb.GenerateResponse(**fields).SerializeToString())

    assert is_blank(said(complete=pb.GenerateComplete(finish_reason="stop", prompt_tokens=4)))
    assert is_blank(said(chunk=pb.GenerateStreamChunk(prompt_tokens=4))) and is_blank(b"")
    assert not is_blank(said(complete=pb.GenerateComplete(output_token_ids=[0])))
    assert not is_blank(said(complete=pb.GenerateComplete(completion_tokens=1)))
    assert not is_blank(said(chunk=pb.GenerateStreamChunk(token_ids=[0])))
    assert not is_blank(said(request_id="x" * BLANK_BYTES))
