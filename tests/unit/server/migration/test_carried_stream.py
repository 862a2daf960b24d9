"""A stream over several engines is the one that a single engine would have given."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_engine import chunk, complete, prompt

from dynamo_router.engines.mocker.sampling import plan_output
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.server.migration import CarriedStream, EndedEarlyError
from dynamo_router.workers.trtllm_proto import pb

VOCABULARY, EOS = 64, 2


def answered(body: bytes, at_once: int, cached: int = 0) -> Iterator[bytes]:
    """What an engine says to a request: chunks of so many tokens, then the whole."""
    request = pb.GenerateRequest.FromString(body)
    sampling = request.sampling_config
    ids = np.array(request.tokenized.input_token_ids, dtype=np.uint32)
    plan = plan_output(
        EngineRequest(
            request_id="",
            token_ids=ids,
            max_tokens=request.max_tokens,
            min_tokens=sampling.min_tokens,
            stop_token_ids=frozenset(request.stop_token_ids),
            keep_stop_token=request.include_stop_token_in_output,
        ),
        vocab_size=VOCABULARY,
        ends=frozenset({EOS}),
    )
    tokens = plan.tokens[: plan.visible].tolist()
    for begin in range(0, len(tokens), at_once):
        some = tokens[begin : begin + at_once]
        message = chunk(request, *some)
        message.chunk.prompt_tokens, message.chunk.cached_tokens = len(ids), cached
        message.chunk.completion_tokens = begin + len(some)
        for token in some:
            message.chunk.logprobs.add(token_id=token, logprob=-token / 8)
        yield message.SerializeToString()
    whole = complete(request, *tokens)
    whole.complete.finish_reason, whole.complete.cached_tokens = plan.finish_reason, cached
    if plan.matched_stop is not None:
        whole.complete.matched_token_id = plan.matched_stop
    for token in tokens:
        whole.complete.logprobs.add(token_id=token, logprob=-token / 8)
    yield whole.SerializeToString()


def decoded(messages: list[bytes]) -> tuple[list[tuple[int, int, int]], list[Any], Any]:
    """Of chunks: each token with the counts beside it; the last message."""
    told, logprobs = [], []
    for message in messages[:-1]:
        part = pb.GenerateResponse.FromString(message).chunk
        assert part.completion_tokens == len(told) + len(part.token_ids)
        told += [(token, part.prompt_tokens, part.cached_tokens) for token in part.token_ids]
        logprobs += part.logprobs
    return told, logprobs, pb.GenerateResponse.FromString(messages[-1])


@given(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(0, 20),
    st.sets(st.integers(0, VOCABULARY - 1), max_size=6),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=5),
)
def test_the_rest_of_an_answer_follows_what_has_come(
    ids: list[int],
    max_tokens: int,
    min_tokens: int,
    stops: set[int],
    keep: bool,
    cuts: list[tuple[int, int]],
) -> None:
    request = pb.GenerateRequest(
        request_id="r",
        max_tokens=max_tokens,
        streaming=True,
        stop_token_ids=sorted(stops),
        include_stop_token_in_output=keep,
    )
    request.tokenized.input_token_ids.extend(ids)
    request.sampling_config.min_tokens = min_tokens
    body = request.SerializeToString()
    undisturbed = list(answered(body, 1, 3))
    stream, shown, over = CarriedStream(body, "r"), [], False
    following: bytes | None = body
    for leg, (at_once, most) in enumerate(cuts):
        assert following is not None
        for number, message in enumerate(answered(following, at_once, 3 if leg == 0 else 0)):
            if number == most:
                break
            shown.append(stream.take(message))
            over = pb.GenerateResponse.FromString(message).HasField("complete")
        if over:
            break
        following = stream.move()
        if following is None:
            shown.append(stream.take(stream.end()))
            break
    else:
        assert following is not None
        shown += map(stream.take, answered(following, 2, 3 if not cuts else 0))
    told, logprobs, last = decoded(shown)
    expected, their_logprobs, their_last = decoded(undisturbed)
    assert [token for token, _, _ in told] == [token for token, _, _ in expected]
    assert {prompt_tokens for _, prompt_tokens, _ in told} <= {len(ids)}
    assert logprobs == their_logprobs
    assert last.complete.cached_tokens in (3, 0 if not cuts or not cuts[0][1] else 3)
    last.complete.cached_tokens = their_last.complete.cached_tokens
    assert last == their_last
    assert stream.last == shown[-1]


def test_the_next_worker_is_asked_for_the_rest_alone() -> None:
    request = prompt("r", 3)
    request.max_tokens = 9
    request.sampling_config.min_tokens, request.sampling_config.seed = 5, 7
    request.sampling_config.temperature = 0.5
    stream = CarriedStream(request.SerializeToString(), "r")
    for token in (11, 12):
        message = chunk(request, token).SerializeToString()
        assert stream.take(message) is message
    body = stream.move()
    assert body is not None
    asked = pb.GenerateRequest.FromString(body)
    assert list(asked.tokenized.input_token_ids) == [1, 2, 3, 11, 12]
    sampling = asked.sampling_config
    assert (asked.max_tokens, sampling.min_tokens, sampling.temperature) == (7, 3, 0.5)
    assert asked.request_id == "r" and asked.streaming
    # With its seed the engine would draw the same random numbers a second time.
    assert sampling.seed != 7 and sampling.HasField("seed")
    assert stream.move() == body


def test_no_seed_is_made_up_and_min_tokens_end_at_zero() -> None:
    request = prompt("r", 3, sampling_config=pb.SamplingConfig(min_tokens=1))
    stream = CarriedStream(request.SerializeToString(), "r")
    stream.take(chunk(request, 11, 12).SerializeToString())
    asked = pb.GenerateRequest.FromString(stream.move() or b"")
    assert not asked.sampling_config.HasField("seed")
    assert asked.sampling_config.min_tokens == 0


@pytest.mark.parametrize("reason", ["cancelled", "abort"])
def test_an_engine_that_shuts_down_has_not_ended_the_answer(reason: str) -> None:
    request = prompt("r", 3)
    stream = CarriedStream(request.SerializeToString(), "r")
    stream.take(chunk(request, 11).SerializeToString())
    last = complete(request, 11)
    last.complete.finish_reason = reason
    with pytest.raises(EndedEarlyError, match=reason):
        stream.take(last.SerializeToString())
    assert stream.delivered == 1 and not stream.last


def test_tokens_that_only_the_last_message_has() -> None:
    request = prompt("r", 3)
    stream = CarriedStream(request.SerializeToString(), "r")
    stream.take(chunk(request, 11).SerializeToString())
    assert stream.move()
    last = pb.GenerateResponse.FromString(
        stream.take(complete(request, 12, 13).SerializeToString())
    )
    assert list(last.complete.output_token_ids) == [11, 12, 13]
    assert last.complete.completion_tokens == 3 and last.complete.prompt_tokens == 3


@pytest.mark.parametrize("broken", [b"\x0a\x01r\x12\xff", b"\xff"])
def test_what_cannot_be_read_passes_and_is_noted(broken: bytes) -> None:
    stream = CarriedStream(prompt("r", 3).SerializeToString(), "r")
    assert stream.take(broken) is broken
    assert stream.delivered == 0 and not stream.is_readable


def test_long_ids_and_many_messages() -> None:
    request = prompt("r" * 300, 3)
    request.max_tokens = 2000
    stream = CarriedStream(request.SerializeToString(), request.request_id)
    for token in range(1000):
        stream.take(chunk(request, token).SerializeToString())
    assert stream.delivered == 1000 and stream.is_readable
    asked = pb.GenerateRequest.FromString(stream.move() or b"")
    assert list(asked.tokenized.input_token_ids) == [1, 2, 3, *range(1000)]
