"""The kernel that writes a line, beside JSON as the standard library makes it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.server.record._line import line_of

NAMES = (
    "ttft_ms",
    "itl_ms",
    "e2e_ms",
    "queue_ms",
    "engine_ttft_ms",
    "foreseen_ttft_ms",
    "soonest_ttft_ms",
    "ttft_objective_ms",
    "itl_objective_ms",
)
TEXTS = ("status", "session_id", "tenant", "worker")
counts = st.integers(0, 2**40)
seconds = st.one_of(st.none(), st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, 0.0]))
plain = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\'))


def milliseconds(value: float) -> float:
    """To three decimals, halves away from 0."""
    us = value * 1e6
    return int(us + 0.5 if us >= 0 else us - 0.5) / 1e3


@given(
    arrived=st.floats(0, 1e9),
    lengths=st.tuples(counts, counts),
    hashes=st.lists(st.integers(0, 2**53), max_size=5),
    texts=st.tuples(plain, plain, plain, plain),
    tokens=st.tuples(st.none() | counts, st.none() | counts),
    times=st.tuples(*[seconds] * 9),
    attempts=st.integers(1, 9),
)
def test_a_line_says_what_is_known_and_nothing_else(
    arrived: float,
    lengths: tuple[int, int],
    hashes: list[int],
    texts: tuple[str, str, str, str],
    tokens: tuple[int | None, int | None],
    times: tuple[float | None, ...],
    attempts: int,
) -> None:
    ids = json.dumps(hashes).encode()
    line = line_of(arrived, *lengths, ids, texts, *tokens, times, attempts)  # type: ignore[arg-type]
    expected: dict[str, object] = {
        "timestamp": milliseconds(arrived),
        "input_length": lengths[0],
        "output_length": lengths[1],
        "hash_ids": hashes,
    }
    expected |= {name: text for name, text in zip(TEXTS, texts, strict=True) if text}
    for name, count in zip(("overlap_tokens", "cached_tokens"), tokens, strict=True):
        if count is not None:
            expected[name] = count
    for name, value in zip(NAMES, times, strict=True):
        if value is not None and math.isfinite(value):
            expected[name] = milliseconds(value)
    if attempts != 1:
        expected["attempts"] = attempts
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    found = json.loads(line)
    assert list(found) == list(expected)
    assert found == expected


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "\x7f", "ä"])
def test_a_text_that_json_would_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not plain"):
        line_of(0.0, 1, 1, b"[]", ("ok", text, "", ""), None, None, (None,) * 9, 1)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no time"):
        line_of(math.inf, 1, 1, b"[]", ("ok", "", "", ""), None, None, (None,) * 9, 1)
