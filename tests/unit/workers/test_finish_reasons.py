"""Reasons of engines as clients read them: none becomes another one's."""

import pytest

from dynamo_router.base.errors import StatusCode
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.finish_reasons import shown_reason


@pytest.mark.parametrize(
    "reason, shown",
    [
        ("stop", "stop"),
        ("end_id", "stop"),
        ("stop_words", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("cancelled", "abort"),
        ("abort", "abort"),
        ("timeout", "abort"),
        ("", "abort"),
        ("repetition", "repetition"),
        ("Some-New_Word2", "Some-New_Word2"),
    ],
)
def test_a_reason_is_shown_as_it_is_meant(reason: str, shown: str) -> None:
    assert shown_reason(reason) == shown


@pytest.mark.parametrize("reason", ["error", "two words", "x" * 33, "a\n[info] b", "\x1b[2J", "é"])
def test_a_failure_and_what_is_no_word_fail_the_answer(reason: str) -> None:
    with pytest.raises(EngineCallError) as caught:
        shown_reason(reason)
    assert caught.value.code() is StatusCode.INTERNAL
