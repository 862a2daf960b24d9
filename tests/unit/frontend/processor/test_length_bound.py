"""How long a text may be for its tokens: never less than the tokenizer makes of any text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.processor.length_bound import COMPOSED, most_characters

FILE = (OWN_MODEL / "tokenizer.json").read_bytes()
TOKENIZER = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
LONGEST = max(map(len, TOKENIZER.get_vocab()))


def bound_of(**changes: Any) -> int | None:
    return most_characters(json.dumps({**json.loads(FILE), **changes}).encode(), ["ab", "abc"])


@given(st.text() | st.text(" a=-\n", min_size=100, max_size=2000))
def test_no_text_has_more_characters(text: str) -> None:
    most = most_characters(FILE, TOKENIZER.get_vocab())
    assert most == LONGEST
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert len(text) <= most * len(ids)


def test_a_text_of_the_longest_token_is_as_long_as_can_be() -> None:
    vocabulary = TOKENIZER.get_vocab()
    token = max(vocabulary, key=len)
    text = TOKENIZER.decode([vocabulary[token]])
    assert len(text.encode()) == LONGEST and len(TOKENIZER.encode(text).ids) == 1


ADDED = {"id": 9, "content": "<x>", "normalized": False, "special": True}
BPE = {"type": "BPE", "vocab": {}, "merges": []}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "invert": False}


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({}, 3),
        ({"normalizer": {"type": "NFC"}}, 3 * COMPOSED),
        ({"normalizer": {"type": "NFKC"}}, None),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}]}}, None),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, None),
        ({"pre_tokenizer": {**SPLIT, "behavior": "Removed"}}, None),
        ({"added_tokens": [{**ADDED, "rstrip": True}]}, None),
        ({"added_tokens": [{**ADDED, "lstrip": False}]}, 3),
        ({"model": {"type": "WordPiece"}}, None),
        ({"model": BPE, "pre_tokenizer": None}, None),  # any number is one unknown token
        (
            {
                "model": {**BPE, "byte_fallback": True},
                "pre_tokenizer": None,
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "\u2581"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                    ],
                },
            },
            3,
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}},
            None,
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "a"}}, None),
    ],
)
def test_steps_that_leave_something_out_have_no_bound(
    changes: dict[str, Any], bound: int | None
) -> None:
    assert bound_of(**changes) == bound


def test_a_file_of_another_form_has_no_bound() -> None:
    assert most_characters(b'{"model": 1}', ["a"]) is None
