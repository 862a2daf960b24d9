"""Tokens that stand for bytes: the pieces of an answer are the text that the library makes of all
its ids, however they come."""

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.processor import ByteText, Detokenizer, ModelText
from dynamo_router.frontend.processor._byte_text import TokenBytes
from dynamo_router.frontend.processor.tokenizer import Decoding
from dynamo_router.process.off_loop import OffLoop

SPECIAL = ["<s>", "</s>"]
ADDED = ["<tool>", "字é", "a b", "\u0120x"]
"""Not special: of characters for bytes alone, of others, of both."""


@cache
def decoding() -> Decoding:
    letters = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "ab", "ÃĤ", "ðŁ"]
    vocab = {token: number for number, token in enumerate(letters)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.add_special_tokens(SPECIAL)
    made.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    made.decoder = decoders.ByteLevel()
    return Decoding(made)


def reader(special: bool) -> ByteText:
    tokens = decoding().token_bytes
    assert tokens is not None
    return ByteText(tokens, decoding().shown(special))


def whole(ids: Sequence[int], special: bool) -> str:
    known = [each for each in ids if 0 <= each < 1 << 32]
    return str(decoding().tokenizer.decode(known, skip_special_tokens=not special))


ID = st.one_of(st.integers(0, 275), st.sampled_from([-1, 1 << 20, (1 << 32) - 1, 1 << 40]))


@settings(max_examples=600)
@given(st.lists(st.lists(ID, max_size=6), max_size=30), st.booleans())
def test_the_pieces_are_the_whole_text(parts: list[list[int]], special: bool) -> None:
    text, ids = reader(special), [each for part in parts for each in part]
    pieces = [text.feed(part) for part in parts]
    assert "".join(pieces) + text.flush() == whole(ids, special)
    assert text.flush() == ""


WRITER = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


@given(st.text(min_size=1, max_size=40), st.integers(1, 5))
def test_no_piece_has_a_part_of_a_character(said: str, size: int) -> None:
    ((written, _),) = WRITER.pre_tokenize_str(said)
    ids = [decoding().tokenizer.token_to_id(letter) or 0 for letter in written]
    assert len(ids) == len(said.encode())
    text = reader(False)
    pieces = [text.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert "".join(pieces) == said
    assert text.flush() == ""


def test_many_ids_at_once() -> None:
    ids = [7, 300, 40, 259] * 5000
    assert reader(True).feed(ids) == whole(ids, True)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "array of 32 bits": lambda ids: array("I", ids),
    "array of 64 bits": lambda ids: array("q", ids),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_come_in_any_sequence(kind: str) -> None:
    ids = [5, 80, 258, 90, 1 << 20]
    assert reader(False).feed(KINDS[kind](ids)) == whole(ids, False)


@given(st.lists(st.lists(st.integers(0, 275), max_size=6), max_size=30), st.booleans())
def test_arrays_are_read_as_lists_are(parts: list[list[int]], special: bool) -> None:
    """Characters may begin in one and end in the next."""
    text, ids = reader(special), [each for part in parts for each in part]
    pieces = [text.feed(array("I", part)) for part in parts]
    assert "".join(pieces) + text.flush() == whole(ids, special)


def test_a_number_that_is_no_id_of_any_protocol_is_refused() -> None:
    with pytest.raises(OverflowError):
        reader(False).feed([1 << 70])
    with pytest.raises(TypeError):
        reader(False).feed(["a"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        TokenBytes(None)  # type: ignore[arg-type]


def test_answers_are_read_by_it_where_the_decoder_joins_bytes(
    off_loop: OffLoop, tmp_path: Path
) -> None:
    assert isinstance(ModelText(OWN_MODEL, off_loop).detokenizer(), ByteText)
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(ModelText(tmp_path, off_loop).detokenizer(), Detokenizer)
