"""The kernel that reads chunks of tokens alone, and ends, says what protobuf says, or nothing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.dialects import plain_chunk, plain_end
from dynamo_router.workers.trtllm_proto import pb

numbers = st.integers(0, 2**32 - 1)
chunks = st.builds(
    pb.GenerateStreamChunk,
    token_ids=st.lists(numbers, max_size=70),
    sequence_index=numbers,
    prompt_tokens=numbers,
    completion_tokens=numbers,
    cached_tokens=numbers,
)
ends = st.builds(
    pb.GenerateComplete,
    output_token_ids=st.lists(numbers, max_size=70),
    sequence_index=numbers,
    finish_reason=st.sampled_from(["stop", "length", "", "\u00e9"]),
    prompt_tokens=numbers,
    completion_tokens=numbers,
    cached_tokens=numbers,
)


@given(st.text(max_size=5), chunks)
def test_a_chunk_of_tokens(request_id: str, chunk: Any) -> None:
    message = pb.GenerateResponse(request_id=request_id, chunk=chunk).SerializeToString()
    found = plain_chunk(message)
    assert found is not None
    assert list(found[0]) == list(chunk.token_ids)
    assert found[1:] == (chunk.prompt_tokens, chunk.cached_tokens)


def test_a_chunk_of_very_many_tokens_is_left_to_others() -> None:
    chunk = pb.GenerateStreamChunk(token_ids=range(65_536))
    found = plain_chunk(pb.GenerateResponse(chunk=chunk).SerializeToString())
    assert found is not None and list(found[0]) == list(range(65_536))
    chunk.token_ids.append(1)
    assert plain_chunk(pb.GenerateResponse(chunk=chunk).SerializeToString()) is None


@given(chunks)
def test_what_has_more_in_it_is_left_to_others(chunk: Any) -> None:
    more = pb.GenerateStreamChunk()
    more.CopyFrom(chunk)
    more.logprobs.add(token_id=3, logprob=-1.0)
    assert plain_chunk(pb.GenerateResponse(chunk=more).SerializeToString()) is None
    whole = pb.GenerateResponse(complete=pb.GenerateComplete(output_token_ids=[1]))
    assert plain_chunk(whole.SerializeToString()) is None
    twice = pb.GenerateResponse(chunk=chunk).SerializeToString() * 2
    assert plain_chunk(twice) is None
    assert plain_chunk(pb.GenerateResponse(request_id="r").SerializeToString()) is None


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    found = plain_chunk(data)
    if found is not None:
        response = pb.GenerateResponse.FromString(data)
        assert list(found[0]) == list(response.chunk.token_ids)


@given(st.text(max_size=5), ends)
def test_an_end(request_id: str, whole: Any) -> None:
    message = pb.GenerateResponse(request_id=request_id, complete=whole).SerializeToString()
    told = whole.finish_reason.encode(), whole.prompt_tokens, whole.cached_tokens
    assert plain_end(message) == told
    assert plain_end(message * 2) is None


@given(ends, st.sampled_from([{"matched_token_id": 0}, {"matched_stop_str": ""}]))
def test_an_end_that_says_more_is_left_to_others(whole: Any, more: dict[str, Any]) -> None:
    said = pb.GenerateComplete(**more)
    said.MergeFrom(whole)
    assert plain_end(pb.GenerateResponse(complete=said).SerializeToString()) is None
    scored = pb.GenerateComplete()
    scored.CopyFrom(whole)
    scored.logprobs.add(token_id=3, logprob=-1.0)
    assert plain_end(pb.GenerateResponse(complete=scored).SerializeToString()) is None
    chunk = pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=[1]))
    assert plain_end(chunk.SerializeToString()) is None


@given(st.binary(max_size=40))
def test_any_bytes_for_an_end(data: bytes) -> None:
    found = plain_end(data)
    if found is not None:
        assert found[1] < 1 << 32 and found[2] < 1 << 32
