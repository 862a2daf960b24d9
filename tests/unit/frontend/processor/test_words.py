"""Ids of words that are kept: those of a text are the library's, whatever was encoded before."""

import asyncio
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.processor import NO_TENANT, PieceCache, Tenant
from dynamo_router.frontend.processor._cuts import Cutter
from dynamo_router.frontend.processor._words import WordIds
from dynamo_router.frontend.processor.cut_rules import read_cut_rules
from dynamo_router.frontend.processor.encoder import LEARNT, Encoder
from dynamo_router.frontend.processor.tokenizer import encode_texts
from dynamo_router.process.off_loop import OffLoop


class Made(NamedTuple):
    encoder: Encoder
    tokenizer: Tokenizer
    asked: list[list[str]]
    """texts that the library was given"""

    async def ids(self, text: str, tenant: Tenant = NO_TENANT, **more: int) -> list[int]:
        found = await self.encoder.encode(text, tenant, add_special_tokens=False, **more)
        return found.tolist()

    def library(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def new_encoder(cache_bytes: int = 1 << 20) -> Made:
    path = OWN_MODEL / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    asked: list[list[str]] = []

    def encode(texts: list[str], special: bool, most: int | None) -> list[bytes]:
        asked.append(texts)
        return encode_texts(tokenizer, texts, special, most)

    rules = read_cut_rules(path.read_bytes(), tokenizer)
    made = Made(Encoder(encode, rules, OFF_LOOP, PieceCache(cache_bytes)), tokenizer, asked)
    asked.clear()  # of its first looks at the library
    return made


OFF_LOOP = OffLoop()


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    OFF_LOOP.close()


@pytest.fixture
def made() -> Made:
    return new_encoder()


WORDS = [" a", "a", " the", ", x", "\n\n", "  ", "'s", "1234", "é", " 漢字。", "<|end|>", "-", "\t"]
TEXT = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=40).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_ids_are_the_library_s_whatever_came_before(texts: list[str]) -> None:
    made = WARM

    async def encode() -> None:
        for text in (*texts, "".join(texts), *texts):
            assert await made.ids(text) == made.library(text)

    asyncio.run(encode())


WARM = new_encoder()
GAPS = Cutter((), " ", 1, 1)


async def test_words_that_are_known_are_not_encoded_again(made: Made) -> None:
    first = await made.ids("one two three, four")
    assert made.asked
    made.asked.clear()
    assert await made.ids("one two three, four") == first
    assert await made.ids("one two, four three two") == made.library("one two, four three two")
    assert made.asked == []
    assert await made.ids("one two and, four three") == made.library("one two and, four three")
    assert made.asked == [[" and"]]


async def test_of_odd_words_the_text_is_encoded_and_some_are_learnt(made: Made) -> None:
    text = "".join(f" {chr(97 + n % 26)}{chr(97 + n // 26)}q" for n in range(100))
    assert await made.ids(text) == made.library(text)
    (asked,) = made.asked
    assert text in asked
    assert len(asked) == LEARNT + 1


@pytest.mark.parametrize("kept", [True, False])
async def test_a_namespace_of_its_own_shares_no_words(kept: bool) -> None:
    made = new_encoder(1 << 20 if kept else 0)
    text, tenant = "one two three", Tenant("a", 7) if kept else NO_TENANT
    for _ in range(2):
        assert await made.ids(text, tenant) == made.library(text)
    assert made.asked == [[text], [text]]


async def test_bad_texts_are_refused_and_nothing_of_them_is_kept(made: Made) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="cannot be tokenized"):
            await made.ids("one two \ud800x three")
    with pytest.raises(OverflowError):
        await made.ids("one two three", most=2)
    assert len(await made.ids("one two three", most=3)) >= 0


def test_words_in_use_stay_and_memory_is_bounded() -> None:
    words = WordIds(GAPS, 10, 8)
    words.keep("kept", b"1234")
    for number in range(1000):
        words.keep(f"w{number}", b"0000")
        parts, missing = words.look_up("kept")
        assert (parts, missing) == ([b"1234"], {})
        assert len(words) <= 20
    assert words.look_up("w1")[1] == {"w1": [0]}


def test_missing_words_are_named_once_with_their_places() -> None:
    words = WordIds(GAPS, 4, 8)
    words.keep(" b", b"bbbb")
    assert words.look_up("a b a a") == (
        [None, b"bbbb", None, None],
        {"a": [0], " a": [2, 3]},
    )


NARROW_WORDS = st.sampled_from([" a", " bc", " é", "d", " " + "w" * 33, " " + "w" * 34])
NARROW = st.lists(NARROW_WORDS, min_size=1).map("".join)


@given(st.lists(NARROW, min_size=1, max_size=6), st.integers(0, 9))
def test_a_text_is_known_by_its_words_but_for_those_that_are_not(
    texts: list[str], ids: int
) -> None:
    words = WordIds(GAPS, 1000, 64)
    made: dict[str, bytes] = {}
    for text in texts:
        parts, missing = words.look_up(text)
        count = sum(map(len, missing.values()))
        assert (words.known(text) is None) == (count > 0)
        assert count == 0 or words.known(text, count - 1) is None
        known, at, gaps = words.known(text, count) or (b"", [], [])
        expected = iter(parts)
        begin = 0
        for place, word in [*zip(at, gaps, strict=True), (len(known), None)]:
            before = list(takewhile(lambda each: each is not None, expected))
            assert known[begin:place] == b"".join(before)
            assert word is None or word in missing
            begin = place
        for word, places in missing.items():
            made[word] = bytes([len(made)]) * 4 * ids
            words.keep(word, made[word])
            for place in places:
                parts[place] = made[word]
        assert words.known(text) == (b"".join(parts), [], [])
        assert words.look_up(text) == (parts, {})


def test_wide_texts_and_long_words_are_looked_up_by_word() -> None:
    words = WordIds(GAPS, 10, 64)
    for word, known in ((" 漢", None), (" " + "x" * 34, (b"1234", [], []))):
        words.keep(word, b"1234")
        assert words.known(word) == known
        assert words.look_up(word) == ([b"1234"], {})
    assert words.known("") == (b"", [], [])


def test_words_that_share_a_place_are_not_taken_for_each_other() -> None:
    words = WordIds(GAPS, 1 << 15, 64)
    made = {f" w{n}": n.to_bytes(4, "little") for n in range(20_000)}
    for word, ids in made.items():
        words.keep(word, ids)
    assert all(words.known(word) == (ids, [], []) for word, ids in made.items())


def test_long_words_are_not_kept() -> None:
    words = WordIds(GAPS, 4, 8)
    words.keep("x" * 9, b"1234")
    assert len(words) == 0
    with pytest.raises(ValueError, match="at least one word"):
        WordIds(GAPS, 0, 8)
