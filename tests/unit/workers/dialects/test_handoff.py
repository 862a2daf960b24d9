"""What goes from a prefill worker to a decode worker, in the words of both dialects."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_engine import chunk, complete, prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.workers.dialects import (
    CONTEXT_ONLY,
    for_decode,
    for_prefill,
    given_handoff,
    handoff_of,
    with_handoff,
)
from dynamo_router.workers.dialects.dynamo_messages import AnswerWriter, read_request
from dynamo_router.workers.trtllm_proto import pb


def request() -> pb.GenerateRequest:
    made = prompt("r1", 32)
    made.max_tokens, made.streaming = 20, False
    made.sampling_config.min_tokens = 5
    made.sampling_config.temperature = 0.5
    return made


@pytest.mark.parametrize(("least", "of_prefill"), [(0, 0), (1, 1), (5, 1)])
def test_a_prefill_is_the_request_with_one_token(least: int, of_prefill: int) -> None:
    """Which is not the last one where the answer is to have more: an engine that may end with it
    would."""
    asked = request()
    asked.sampling_config.min_tokens = least
    found = pb.GenerateRequest.FromString(for_prefill(asked.SerializeToString()))
    assert found.tokenized == asked.tokenized and found.request_id == "r1"
    assert (found.max_tokens, found.streaming) == (1, True)
    assert found.sampling_config.min_tokens == of_prefill
    assert found.sampling_config.temperature == 0.5
    assert found.disaggregated_params.request_type == CONTEXT_ONLY
    assert given_handoff(found) is None


def test_a_decode_is_the_request_with_the_handoff() -> None:
    asked = request()
    found = pb.GenerateRequest.FromString(for_decode(asked.SerializeToString(), b"{}"))
    assert given_handoff(found) == b"{}"
    found.ClearField("disaggregated_params")
    assert found == asked and given_handoff(asked) is None


def test_a_decode_without_a_handoff_is_refused() -> None:
    found = pb.GenerateRequest.FromString(for_decode(request().SerializeToString(), b""))
    with pytest.raises(InvalidRequestError, match="handoff"):
        given_handoff(found)


@given(st.binary(max_size=300))
def test_an_answer_keeps_what_it_says_beside_a_handoff(handoff: bytes) -> None:
    plain = complete(request(), 7, 8).SerializeToString()
    message = with_handoff(plain, handoff)
    assert handoff_of(message) == handoff
    found = pb.GenerateResponse.FromString(message)
    assert list(found.complete.output_token_ids) == [7, 8]
    assert handoff_of(message + b"\x0a\x01x") == handoff  # an id that is put behind it


def test_answers_without_a_handoff() -> None:
    assert handoff_of(chunk(request(), 7).SerializeToString()) is None
    assert handoff_of(b"\xff") is None


def test_to_and_from_workers_of_dynamo() -> None:
    asked = request().SerializeToString()
    first = read_request(for_prefill(asked), None)
    assert first.body["stop_conditions"]["max_tokens"] == 1
    assert "prefill_result" not in first.body
    writer = AnswerWriter(first.message, first.prompt_tokens)
    params = {"kv_transfer_params": {"remote_engine_id": "e", "remote_block_ids": [1, 2]}}
    said = writer.on_part({"token_ids": [9], "disaggregated_params": params})
    assert said is not None and handoff_of(said) is None
    writer.on_part({"token_ids": [], "finish_reason": "length"})
    handoff = handoff_of(writer.complete())
    given = {"disaggregated_params": params, "prompt_tokens_details": None}
    assert handoff is not None and msgspec.json.decode(handoff) == {"prefill_result": given}
    then = read_request(for_decode(asked, handoff), None)
    assert then.body["stop_conditions"]["max_tokens"] == 20
    assert then.body["prefill_result"]["disaggregated_params"] == params


def test_a_handoff_that_no_worker_of_dynamo_made() -> None:
    with pytest.raises(InvalidRequestError, match="handoff"):
        read_request(for_decode(request().SerializeToString(), b"\x00"), None)
