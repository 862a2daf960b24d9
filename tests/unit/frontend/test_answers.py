"""Chunks of a stream: those of text alone are written by a shorter way, which must not be seen."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
