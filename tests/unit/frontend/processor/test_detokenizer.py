"""The text of an answer, token by token, is that of all its ids: with decoders of each family, with
special tokens shown or hidden, ids that no tokenizer knows, and bytes that are no characters.
"""

import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from dynamo_router.frontend.processor import ModelText
from dynamo_router.frontend.processor.tokenizer import MOST_PENDING
from dynamo_router.process.off_loop import OffLoop

SPECIAL = ["<s>", "</s>", "<|x|>"]
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
LEAD = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
KEPT = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def by_bytes(decoder: decoders.Decoder) -> Tokenizer:
    words = ["▁", "▁a", "b", "▁hello", "world", "é", "▁▁▁", "字", "\n", "\ufffd", "."]
    vocab = {token: number for number, token in enumerate([*SPECIAL, *BYTES, *words])}
    return made(models.BPE(vocab=vocab, merges=[], byte_fallback=True), decoder)


def made(model: models.Model, decoder: decoders.Decoder) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoder
    return tokenizer


def tokenizers() -> dict[str, Tokenizer]:
    letters = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "Ġhello", "ab"]
    pieces = [*SPECIAL, "[UNK]", "hello", "##ing", "a", ".", "'", "s", "字"]
    words = [*SPECIAL, "<unk>", "▁", "▁a", "b", "▁hello", "字", "."]
    of_letters = {token: number for number, token in enumerate(letters)}
    of_pieces = {token: number for number, token in enumerate(pieces)}
    return {
        "byte fallback, first blank left out": by_bytes(LEAD),
        "byte fallback": by_bytes(KEPT),
        "bytes": made(models.BPE(vocab=of_letters, merges=[]), decoders.ByteLevel()),
        "word pieces": made(models.WordPiece(of_pieces, unk_token="[UNK]"), decoders.WordPiece()),
        "metaspace": made(models.Unigram([(w, 0.0) for w in words], 3), decoders.Metaspace()),
    }


@pytest.fixture(params=tokenizers())
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizers()[request.param]


@pytest.fixture
def text(tokenizer: Tokenizer, off_loop: OffLoop, tmp_path: Path) -> ModelText:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return ModelText(tmp_path, off_loop)


def drawn_ids(tokenizer: Tokenizer, draw: random.Random) -> list[int]:
    """Of odd parts: special tokens, characters in bytes, any bytes, unknown ids, words."""
    size = tokenizer.get_vocab_size()
    bytes_of = [number for name in BYTES if (number := tokenizer.token_to_id(name)) is not None]
    others = [number for number in range(size) if number not in bytes_of]
    ids: list[int] = []
    while len(ids) < draw.randint(1, 60):
        part = draw.randint(0, 5)
        if part == 0:
            ids += [draw.randrange(len(SPECIAL))] * draw.randint(1, 20)
        elif part == 1 and bytes_of:
            character = draw.choice(["é", "字", "😀", "a", " "]).encode()
            ids += [bytes_of[byte] for byte in character] * draw.randint(1, 6)
        elif part == 2 and bytes_of:
            ids += draw.choices(bytes_of, k=draw.randint(1, 20))
        elif part == 3:
            ids += [size + draw.randrange(5)] * draw.randint(1, 20)
        else:
            ids += draw.choices(others, k=draw.randint(1, 5))
    return ids


def without_broken_bytes(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Of bytes in a row that are no characters the library decodes none: leave those out."""
    names = {number: name for name in BYTES if (number := tokenizer.token_to_id(name)) is not None}
    kept: list[int] = []
    at = 0
    while at < len(ids):
        run = bytes(BYTES[names[number]] for number in ids[at : at + 4] if number in names)
        if ids[at] not in names:
            kept.append(ids[at])
            at += 1
            continue
        for size in range(1, 5):
            part = ids[at : at + size]
            if len(part) == size and all(number in names for number in part):
                if "\ufffd" not in run[:size].decode(errors="replace"):
                    kept += part
                    at += size
                    break
        else:
            at += 1
    return kept


@pytest.mark.parametrize("special", [True, False])
def test_the_pieces_are_the_whole_text(
    text: ModelText, tokenizer: Tokenizer, special: bool
) -> None:
    for seed in range(600):
        ids = drawn_ids(tokenizer, random.Random(seed))
        reader = text.detokenizer(special=special)
        pieces = "".join(reader.feed([number]) for number in ids) + reader.flush()
        shown = range(0 if special else len(SPECIAL), tokenizer.get_vocab_size())
        known = [number for number in ids if number in shown]
        good = without_broken_bytes(tokenizer, known)
        whole = tokenizer.decode(good, skip_special_tokens=not special)
        if good == known:
            assert squeezed(pieces) == squeezed(whole), (seed, ids)
        else:  # broken bytes are U+FFFD, and take no character beside them along
            assert stripped(pieces) == stripped(whole), (seed, ids)


def squeezed(said: str) -> str:
    return re.sub("\ufffd+", "\ufffd", said)


def stripped(said: str) -> str:
    return said.replace("\ufffd", "").lstrip(" ")


class CountedStream:
    """A stream that may not be made to keep more ids than the bound."""

    def __init__(self, skip_special_tokens: bool) -> None:
        self._stream, self._kept = DecodeStream(skip_special_tokens=skip_special_tokens), 0

    def step(self, tokenizer: Tokenizer, token_id: int) -> str | None:
        piece = self._stream.step(tokenizer, token_id)
        self._kept = 0 if piece else self._kept + 1
        assert self._kept <= MOST_PENDING
        return piece


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", ["special", "unknown", "broken", "blank"])
def test_no_step_looks_back_further_than_some_ids(
    text: ModelText,
    tokenizer: Tokenizer,
    special: bool,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dynamo_router.frontend.processor.tokenizer.DecodeStream", CountedStream)
    broken = tokenizer.token_to_id("<0xBF>")
    numbers = {"special": 2, "unknown": 1 << 31, "broken": broken or 0}
    number = numbers.get(kind, tokenizer.token_to_id("▁") or 0)
    reader = text.detokenizer(special=special)
    shown = "".join(reader.feed([number]) for _ in range(300)) + reader.flush()
    assert shown.count("\ufffd") == (300 if kind == "broken" and broken is not None else 0)
