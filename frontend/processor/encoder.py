"""Encoder: texts to token ids, where a long one costs what is new in it.

It is cut into pieces whose ids depend on nothing around them (see cut_rules); those of a piece that
was encoded before are kept. So are those of short words, which pieces are made of.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import count, islice
from os import urandom
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import InvalidRequestError
from ...process.off_loop import OffLoop
from ...workers.dialects import pack_tokens
from ._cuts import Cutter
from ._words import WordIds
from .cut_rules import CutRules
from .piece_cache import KEY_BYTES, PieceCache, Tenant

LEAST_CHARS = 1024
MOST_CHARS = 4096
"""Of a piece, where the text has a cut."""
LONG_CHARS = 2048
"""A longer text is encoded off the event loop: a thousand characters take about a millisecond."""
SECONDS_PER_CHAR = 1e-6
ID_BYTES = 4
STEP_CHARS = 256 << 10
"""Looked up, or hashed, in one turn of the event loop."""
BATCH_CHARS = 64 << 10
"""Encoded in one turn of the off-loop thread, by all cores."""
MOST_WORDS, MOST_WORD_CHARS = 16 << 10, 64
"""Words whose ids are kept, in each of two tables of a tokenizer, and characters of one of them:
some 200 bytes each, 500 at most. They are common to all callers but those with a cache namespace of
their own, as the words are that the library keeps."""
KNOWN_CHARS = 16 << 10
"""Of a text whose words are looked up before its pieces are: some 10 ns for each."""
NEAR_CHARS = 1 << 10
LEARNT = 32
"""Words that are encoded by themselves: of a text with more that are not known, some of them beside
the text as it is, so that one of odd words costs little more than without tables."""

EncodeTexts = Callable[[list[str], bool, int | None], list[bytes]]
"""The ids of texts, with special tokens or without, as numbers of 32 bits. InvalidRequestError."""

_SECRET = urandom(KEY_BYTES)
"""In the keys of pieces. Two texts with one key would be given each other's ids, within a cache
namespace: of 10 million pieces that comes once in 10**24 times, and no caller knows this, to look
for such texts."""
_numbers = count()


class EncodedPiece(NamedTuple):
    """The ids of a piece, as numbers of 32 bits, and its key; None: it has none."""

    ids: bytes
    key: bytes | None


class _Missing(NamedTuple):
    """A piece without ids: text[begin:end], the nth one. No key: it is not kept."""

    nth: int
    begin: int
    end: int
    key: bytes | None


class Encoder:
    """Of one tokenizer: `encode` is how it makes ids, `rules` where its texts may be cut."""

    def __init__(
        self,
        encode: EncodeTexts,
        rules: CutRules,
        off_loop: OffLoop,
        cache: PieceCache,
        least: int = LEAST_CHARS,
        most: int = MOST_CHARS,
    ) -> None:
        self._encode, self._off_loop, self._cache = encode, off_loop, cache
        self._least = least
        self._cutter: Cutter | None = None
        self._words: WordIds | None = None
        self._around = _around(encode, rules)
        self.reason = rules.reason or ("" if cache.most_bytes else "token_cache_bytes is 0")
        """why nothing is kept; empty: it is"""
        if not self.reason:
            self._cutter = Cutter(rules.atoms, rules.stops, least, most)
            self._gaps = Cutter(rules.atoms, rules.stops, 1, 1)
            self._longest_atom = max(map(len, rules.atoms), default=0)
            if rules.stops:
                self._words = WordIds(self._gaps, MOST_WORDS, MOST_WORD_CHARS)
        self.number = next(_numbers)
        """of no other tokenizer"""

    def encode_known(self, text: str) -> bytes | None:
        """The ids of a text that is not long and belongs to no cache namespace, and of whose words
        all but a few are known; None: `encode` may know them. No special tokens are added."""
        words = self._words
        if words is None or len(text) > KNOWN_CHARS:
            return None
        found = words.known(text, LEARNT)
        if found is None or sum(map(len, found[2])) > LONG_CHARS:
            return None
        if not found[2]:
            return found[0]
        parts, missing = _with_gaps(*found)
        try:
            made = self._encode(list(missing), False, None)
        except InvalidRequestError:  # of the text, which it is part of
            return None
        return _filled(words, parts, missing, iter(made))

    def last_cut(self, text: str, end: int) -> int:
        """The last place before `end` where the text can be cut, whatever comes there; 0: none."""
        if self._cutter is None:
            return 0
        end -= self._longest_atom
        for near in (NEAR_CHARS, STEP_CHARS):  # those of words are close to each other
            begin = max(end - near, 0)
            if begin < end and (cuts := self._gaps.cuts(text, begin, begin, end)):
                return cuts[-1]
        return 0

    async def encode(
        self, text: str, tenant: Tenant, *, add_special_tokens: bool, most: int | None = None
    ) -> npt.NDArray[np.uint32]:
        """InvalidRequestError if it cannot be encoded, OverflowError with the number of its ids, as
        far as it is known, if they are more than `most`."""
        around = self._around if add_special_tokens else (b"", b"")
        if self._cutter is None or around is None:
            found = await self._run([text], add_special_tokens, most)
        elif tenant.namespace is None and (known := self.encode_known(text)) is not None:
            _check_count(len(known) // ID_BYTES, most)
            found = [around[0], known, around[1]] if add_special_tokens else [known]
        elif len(text) <= self._least or (
            len(text) < 2 * self._least and self._words is not None and tenant.namespace is None
        ):  # of its words, no two pieces are worth a look each
            found = await self._encode_words([text], tenant)
            _check_count(len(found[0]) // ID_BYTES, most)
            if add_special_tokens:
                found = [around[0], *found, around[1]]
        else:
            pieces = await self._encode_pieces(text, tenant, most, keep=True)
            found = [around[0], *(each.ids for each in pieces), around[1]]
        return np.frombuffer(found[0] if len(found) == 1 else b"".join(found), np.uint32)

    async def encode_pieces(
        self, text: str, tenant: Tenant, most: int | None = None
    ) -> list[EncodedPiece]:
        """The same without special tokens, for who keeps its pieces: those that are new are not
        kept."""
        if self._cutter is None or len(text) < 2 * self._least:
            ids = await self.encode(text, tenant, add_special_tokens=False, most=most)
            return [EncodedPiece(ids.tobytes(), None)]
        if tenant.namespace is None and (known := self.encode_known(text)) is not None:
            _check_count(len(known) // ID_BYTES, most)
            return [EncodedPiece(known, None)]
        return await self._encode_pieces(text, tenant, most, keep=False)

    async def _encode_pieces(
        self, text: str, tenant: Tenant, most: int | None, *, keep: bool
    ) -> list[EncodedPiece]:
        cutter, cache, least = self._cutter, self._cache, self._least
        assert cutter is not None
        salt = b"%b%d %b:" % (_SECRET, self.number, str(tenant.namespace).encode())
        pieces: list[EncodedPiece] = []
        missing: list[_Missing] = []
        begin = size = missed = 0
        for at in range(0, len(text), STEP_CHARS):
            until = min(at + STEP_CHARS, len(text))
            if at:
                await asyncio.sleep(0)
            ends = cutter.cuts(text, begin, max(at, begin), until)
            if until == len(text):
                ends.append(until)
            for end in ends:
                key = ids = None
                if end - begin >= least:
                    if end - begin <= STEP_CHARS:
                        key = sha256(salt + _bytes(text[begin:end])).digest()[:KEY_BYTES]
                    else:
                        key = await _long_key(salt, text, begin, end)
                    ids = cache.ids(key)
                if ids is None:
                    missing.append(_Missing(len(pieces), begin, end, key))
                    missed += end - begin
                    ids = b""
                pieces.append(EncodedPiece(ids, key))
                size += len(ids)
                begin = end
        cache.found_chars += len(text) - missed
        for nth, batch in enumerate(_batches(missing)):
            _check_count(size // ID_BYTES, most)
            if nth:
                await asyncio.sleep(0)
            found = await self._encode_words(
                [text[each.begin : each.end] for each in batch], tenant
            )
            cache.encoded_chars += sum(each.end - each.begin for each in batch)
            size += sum(map(len, found))
            for each, ids in zip(batch, found, strict=True):
                pieces[each.nth] = EncodedPiece(ids, each.key)
                if keep and each.key is not None:
                    cache.put(each.key, pack_tokens(np.frombuffer(ids, np.uint32))[0], tenant)
        _check_count(size // ID_BYTES, most)
        return pieces

    async def _encode_words(self, texts: list[str], tenant: Tenant) -> list[bytes]:
        """Encode pieces, by the words that are known of them. No special tokens are added."""
        words = self._words
        long = any(
            len(text) > STEP_CHARS for text in texts
        )  # to look for its words takes long, too
        if words is None or long or tenant.namespace is not None:
            return await self._run(texts, False, None)
        wanted: list[str] = []
        gaps: list[tuple[list[Any], dict[str, list[int]]]] = []
        for text in texts:
            if (known := words.known(text, LEARNT)) is not None:
                parts, missing = _with_gaps(*known)
            else:
                parts, missing = words.look_up(text)
            if len(missing) > LEARNT:
                learnt: dict[str, list[int]] = {word: [] for word in islice(missing, LEARNT)}
                parts, missing = [None], {**learnt, text: [0]}
            wanted += missing
            gaps.append((parts, missing))
        made = iter(await self._run(wanted, False, None) if wanted else ())
        return [_filled(words, parts, missing, made) for parts, missing in gaps]

    async def _run(
        self, texts: list[str], add_special_tokens: bool, most: int | None
    ) -> list[bytes]:
        """Encode them, off the loop if that takes long."""
        work = partial(self._encode, texts, add_special_tokens, most)
        chars = sum(map(len, texts))
        if chars <= LONG_CHARS:
            return work()
        return await self._off_loop.run(work, size=chars, seconds=chars * SECONDS_PER_CHAR)


def _with_gaps(
    made: bytes, places: list[int], words: list[str]
) -> tuple[list[Any], dict[str, list[int]]]:
    """Parts of ids, those of words that are not known empty; and where those are missing, by word.
    `places`: where they are missing in `made`."""
    parts: list[Any] = []
    missing: dict[str, list[int]] = {}
    begin = 0
    for word, place in zip(words, places, strict=True):
        parts += made[begin:place], b""
        missing.setdefault(word, []).append(len(parts) - 1)
        begin = place
    parts.append(made[begin:])
    return parts, missing


def _filled(
    words: WordIds, parts: list[Any], missing: dict[str, list[int]], made: Iterator[bytes]
) -> bytes:
    """All ids, with those of each word that was missing, which are kept."""
    for word, places in missing.items():
        ids = next(made)
        words.keep(word, ids)
        for place in places:
            parts[place] = ids
    return b"".join(parts)


def _check_count(ids: int, most: int | None) -> None:
    if most is not None and ids > most:
        raise OverflowError(ids)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text cannot be tokenized: {error}") from None


async def _long_key(salt: bytes, text: str, begin: int, end: int) -> bytes:
    """The key of text[begin:end], which has no cut: some of it in each turn of the loop, as to copy
    and hash 15 MB takes 35 ms."""
    key = sha256(salt)
    for at in range(begin, end, STEP_CHARS):
        if at > begin:
            await asyncio.sleep(0)
        key.update(_bytes(text[at : min(at + STEP_CHARS, end)]))
    return key.digest()[:KEY_BYTES]


def _batches(missing: list[_Missing]) -> Iterator[list[_Missing]]:
    batch: list[_Missing] = []
    chars = 0
    for each in missing:
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(each)
        chars += each.end - each.begin
    if batch:
        yield batch


def _around(encode: EncodeTexts, rules: CutRules) -> tuple[bytes, bytes] | None:
    """The ids before and behind those of a text with special tokens; None: they vary."""

    def ids(text: str, special: bool) -> list[int]:
        return array("I", encode([text], special, None)[0]).tolist()

    common: set[tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    try:
        for probe in (*islice(rules.atoms, 2), "a", "a b"):
            bare, whole = ids(probe, False), ids(probe, True)
            places = range(len(whole) - len(bare) + 1)
            found = {
                (tuple(whole[:at]), tuple(whole[at + len(bare) :]))
                for at in places
                if whole[at : at + len(bare)] == bare
            }
            common = found if common is None else common & found
    except InvalidRequestError:  # of a model without an unknown token
        return None
    if common is None or len(common) != 1:
        return None
    before, behind = common.pop()
    return array("I", before).tobytes(), array("I", behind).tobytes()
