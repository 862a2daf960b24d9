"""Chunks of a stream: those of text alone are written by a shorter way, which must not be seen."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.openai import ChatRequest
from dynamo_router.frontend.openai.answers import Answer, Delta, Usage

deltas = st.lists(
    st.tuples(st.integers(0, 2), st.text(max_size=8), st.sampled_from([None, "stop", "length"])),
    max_size=6,
)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@given(deltas, st.text(max_size=8))
def test_the_short_way_writes_the_same(
    kind: Literal["chat", "completion"], said: list[tuple[int, str, str | None]], model: str
) -> None:
    short, long = (Answer("cmpl-1:0", 5, model, None, None, kind) for _ in range(2))
    for index, text, reason in said:
        written = short.chunk(index, Delta(text, reason))
        told = json.loads(long.chunk(index, Delta(text, reason), Usage()))
        del told["usage"]
        assert json.loads(written) == told


def test_a_chunk_without_tokens_has_null_for_logprobs() -> None:
    """As OpenAI's last one: clients that read the first token of what is there found none."""
    asked = ChatRequest(model="m", messages=[], logprobs=True)
    answer = Answer("chatcmpl-1", 5, "m", asked, None, "chat")
    last = json.loads(answer.chunk(0, Delta("", "length")))["choices"][0]
    assert last["finish_reason"] == "length" and last["logprobs"] is None
    whole = json.loads(answer.whole([[Delta("", "length")]], Usage(), None))["choices"][0]
    assert whole["logprobs"] == {"content": []}
