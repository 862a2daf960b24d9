"""Messages of an answer, written natively, beside those that protobuf's library writes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.generate import written_chunk, written_complete
from support.fake_engine import prompt

from dynamo_router.workers.dialects._answer_messages import AnswerMessages
from dynamo_router.workers.dialects.trtllm_answer import TokenLogprob, TrtllmAnswer
from dynamo_router.workers.trtllm_proto import pb

UINT32 = st.integers(0, 2**32 - 1) | st.integers(0, 300)
TOKENS = st.lists(UINT32, max_size=40)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(TEXT, UINT32, st.lists(st.tuples(TOKENS, UINT32)), TEXT, st.none() | TEXT | UINT32)
def test_messages_are_those_of_protobuf_to_the_byte(
    request_id: str,
    prompt_tokens: int,
    parts: list[tuple[list[int], int]],
    reason: str,
    matched: int | str | None,
) -> None:
    messages, tokens, cached = AnswerMessages(request_id, prompt_tokens), list[int](), 0
    for more, cached in parts:
        tokens += more
        theirs = written_chunk(request_id, more, prompt_tokens, len(tokens), cached)
        assert messages.chunk(more, cached) == theirs
        assert messages.count == len(tokens)
    theirs = written_complete(request_id, tokens, reason, matched, prompt_tokens, cached)
    text, token = (matched, None) if isinstance(matched, str) else ("", matched)
    assert messages.complete(reason, cached, b"", text, token) == theirs


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70, -(2**70), 1.0, True, "1", None])
def test_of_tokens_of_which_one_is_none_none_is_kept(bad: Any) -> None:
    messages = AnswerMessages("r", 1)
    messages.add([5])
    for act in (messages.add, lambda tokens: messages.chunk(tokens, 0)):
        with pytest.raises((TypeError, ValueError)):
            act([6, bad])
    assert messages.complete("stop", 0) == written_complete("r", [5], "stop", None, 1, 0)


@pytest.mark.parametrize("bad", [None, (1,), "1", {}])
def test_tokens_are_a_list(bad: Any) -> None:
    with pytest.raises(TypeError):
        AnswerMessages("r", 1).add(bad)


LOGPROB = st.floats(-100, 0, width=32)
PAIRS = st.lists(st.tuples(UINT32, LOGPROB), max_size=3)
LOGPROBS = st.builds(TokenLogprob, UINT32, LOGPROB, PAIRS)


@given(st.lists(st.lists(LOGPROBS, max_size=3), max_size=4), st.none() | UINT32, st.booleans())
def test_logprobs_are_in_the_message_that_brings_their_tokens_and_in_the_last(
    parts: list[list[TokenLogprob]], matched: int | None, wanted: bool
) -> None:
    request = prompt("r", 3)
    if wanted:
        request.output_config.logprobs = 1
    answer = TrtllmAnswer(request, 3)
    for part in parts:
        message = answer.add([each.token_id for each in part], part)
        assert (message is None) == (not part)
        if message is not None:
            told = pb.GenerateResponse.FromString(message).chunk
            assert list(told.token_ids) == [each.token_id for each in part]
            assert _read(told.logprobs) == (part if wanted else [])
    told = pb.GenerateResponse.FromString(answer.complete("stop", matched)).complete
    whole = [each for part in parts for each in part]
    assert list(told.output_token_ids) == [each.token_id for each in whole]
    assert _read(told.logprobs) == (whole if wanted else [])
    assert (told.matched_token_id if told.HasField("matched_token_id") else None) == matched
    assert answer.completion_tokens == len(whole)


def _read(logprobs: Any) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            each.token_id, each.logprob, [(top.token_id, top.logprob) for top in each.top_logprobs]
        )
        for each in logprobs
    ]
