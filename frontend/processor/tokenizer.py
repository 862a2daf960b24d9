"""A model's text: its tokenizer, special tokens and chat template, as published in one folder."""

import json
import re
from array import array
from collections.abc import Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.decoders import ByteLevel, DecodeStream

from ...base.errors import ConfigError, InvalidRequestError
from ...process.off_loop import OffLoop
from ._byte_text import ByteText, TokenBytes
from .chat_template import ChatTemplate
from .cut_rules import CutRules, read_cut_rules
from .encoder import LONG_CHARS, SECONDS_PER_CHAR, Encoder
from .length_bound import most_characters
from .piece_cache import NO_TENANT, PieceCache, Tenant

TokenIds = Sequence[int] | npt.NDArray[np.uint32]
MOST_PENDING = 16
"""Ids in a row that complete no text before they are decoded as they are."""
MOST_OF_A_CHARACTER = 3
"""Ids that may be the beginning of a character whose last byte is missing: UTF-8 has four bytes."""
FEW_CHARS = 512
"""Of texts that are encoded by this thread alone."""
REPLACEMENT = "\ufffd"
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ModelText:
    """How a model's text becomes token ids and back.

    Read from tokenizer.json, tokenizer_config.json and chat_template.jinja of a model's folder, as
    Hugging Face publishes them. ConfigError, naming the file, if one is missing or cannot be used.
    """

    def __init__(self, folder: Path, off_loop: OffLoop, pieces: PieceCache | None = None) -> None:
        """`pieces` keeps the ids of long texts, of all models of a process; None: nothing does."""
        self.folder = folder
        self._off_loop = off_loop
        self._tokenizer, rules = _read_tokenizer(folder / "tokenizer.json")
        if pieces is None:
            pieces = PieceCache(0)
        self._encoder = Encoder(self._encode, rules, off_loop, pieces)
        self.encode_known, self.last_cut = self._encoder.encode_known, self._encoder.last_cut
        self.encode_pieces = self._encoder.encode_pieces
        self.pieces, self.number = pieces, self._encoder.number
        """what keeps its ids, and a number that no other text there has"""
        self.token_cache = f"off: {self._encoder.reason}" if self._encoder.reason else "on"
        """on, or why ids of its texts are not kept"""
        config = _read_json(folder / "tokenizer_config.json")
        self.special_tokens = {
            name: _token_text(config[name]) for name in SPECIAL_NAMES if config.get(name)
        }
        text = _template_text(folder, config)
        self.template = None if text is None else ChatTemplate(text, self.special_tokens)
        self.long_chats = self._long_chats()
        """on, or why turns of long chats go on from nothing that is kept of them"""
        self.vocab_size = int(self._tokenizer.get_vocab_size())
        self.most_characters = most_characters(
            (folder / "tokenizer.json").read_bytes(), self._tokenizer.get_vocab()
        )
        """of a text for each of its tokens; None: any number"""
        self._decoding = Decoding(self._tokenizer)
        self.eos_token_id = self._tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))

    def _long_chats(self) -> str:
        if self.template is None:
            return "off: there is no chat template"
        if self.template.draws:
            return "off: the chat template draws at random"
        if self.template.growing is None:
            return "off: the chat template has no loop over messages that can begin within them"
        return "on" if self.token_cache == "on" else "off: without token_cache"

    async def encode(
        self,
        text: str,
        tenant: Tenant = NO_TENANT,
        *,
        add_special_tokens: bool,
        most: int | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Token ids of a text; InvalidRequestError if it cannot be encoded, OverflowError with
        their number, as far as it is known, if they are more than `most`."""
        return await self._encoder.encode(
            text, tenant, add_special_tokens=add_special_tokens, most=most
        )

    def decode(self, ids: TokenIds) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(np.asarray(ids, np.uint32).tolist()))

    async def text_of(self, ids: TokenIds) -> str:
        """The same, of many off the event loop."""
        if len(ids) <= LONG_CHARS:
            return self.decode(ids)
        count = len(ids)
        work = partial(self._decode_many, ids)
        return await self._off_loop.run(work, size=count * 4, seconds=count * SECONDS_PER_CHAR)

    def _decode_many(self, ids: TokenIds) -> str:
        # The batch call lets other threads run meanwhile; the plain one does not.
        return str(self._tokenizer.decode_batch([np.asarray(ids, np.uint32).tolist()])[0])

    def token_text(self, token_id: int) -> str:
        """One token by itself, special ones too; bytes that are no character are U+FFFD."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def detokenizer(self, *, special: bool = False) -> "ByteText | Detokenizer":
        """For one answer; `special`: with special tokens in the text."""
        if (tokens := self._decoding.token_bytes) is not None:
            return ByteText(tokens, self._decoding.shown(special))
        return Detokenizer(self._decoding, special=special)

    def ending(self, ids: TokenIds, count: int = 16) -> str:
        """The text of the last ids, special tokens too."""
        last = np.asarray(ids[-count:]).tolist()
        return str(self._tokenizer.decode(last, skip_special_tokens=False))

    def _encode(
        self, texts: list[str], add_special_tokens: bool, most: int | None = None
    ) -> list[bytes]:
        return encode_texts(self._tokenizer, texts, add_special_tokens, most)


def encode_texts(
    tokenizer: Tokenizer, texts: list[str], add_special_tokens: bool, most: int | None = None
) -> list[bytes]:
    """The ids of each, as numbers of 32 bits; InvalidRequestError if one cannot be encoded,
    OverflowError with their number if they are more than `most`."""
    special = add_special_tokens
    try:
        # The batch call lets other threads run meanwhile; the plain one does not, and wakes none.
        if sum(map(len, texts)) <= FEW_CHARS:
            found = [tokenizer.encode(text, add_special_tokens=special) for text in texts]
        else:
            found = tokenizer.encode_batch_fast(texts, add_special_tokens=special)
    except BaseException as error:
        if not _is_fault(error):
            raise
        raise InvalidRequestError(f"the text cannot be tokenized: {error}") from None
    count = sum(map(len, found))
    if most is not None and count > most:
        del found  # the error's traceback would keep it, and lists of it take long to make
        raise OverflowError(count)
    return [array("I", encoding.ids).tobytes() for encoding in found]


def _is_fault(error: BaseException) -> bool:
    """Whether it is one of the library's: what ends a thread of it comes as a class that no module
    has and that is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class Decoding:
    """What the detokenizers of a tokenizer share.

    A decoder may treat the first token of a text in a way of its own, as by leaving out a blank
    before it. So what is decoded in the middle of an answer stands behind an anchor.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.by_bytes = tokenizer.token_to_id("<0x00>") is not None
        """Byte fallback: of bytes in a row all are characters, or the library decodes none."""
        added = tokenizer.get_added_tokens_decoder()
        known = tokenizer.get_vocab().values()
        special = {number for number, token in added.items() if token.special}
        self._shown = tuple(
            bytes(1 if number in ids else 0 for number in range(max(ids, default=-1) + 1))
            for ids in (set(known) - special, set(known))
        )
        self.token_bytes = _token_bytes(tokenizer)
        """None: what a token stands for depends on those beside it"""
        words = (number for number in sorted(set(known) - special) if self._is_word(number))
        self.anchor = list(islice(words, 1))
        self.anchor_text = self.text(self.anchor, True)

    def shown(self, special: bool) -> bytes:
        """By id, 1 for each token that has text: all that the tokenizer knows, or but for the
        special ones."""
        return self._shown[special]

    def text(self, ids: Sequence[int], special: bool) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=not special))

    def _is_word(self, number: int) -> bool:
        """Whether a token is letters, and none of the bytes."""
        text = self.text([number], True).strip()
        written = self.tokenizer.id_to_token(number) or ""
        return text.isascii() and text.isalpha() and not written.startswith("<0x")


def _token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """What each token stands for, where the decoder is that of byte-level BPE, which joins the
    bytes of tokens: a character stands for a byte each, and a token with others for itself."""
    if not isinstance(tokenizer.decoder, ByteLevel):
        return None
    names: dict[int, str] = {}
    for token, number in tokenizer.get_vocab().items():
        if number in names:  # a token that was added in the place of another
            names[number] = tokenizer.id_to_token(number) or ""
        else:
            names[number] = token
    byte_of, is_bytes = _byte_characters()
    found = [b""] * (max(names, default=-1) + 1)
    for number, token in names.items():
        whole = is_bytes.fullmatch(token) is not None
        found[number] = token.translate(byte_of).encode("latin-1") if whole else token.encode()
    return TokenBytes(found)


@cache
def _byte_characters() -> tuple[dict[int, int], "re.Pattern[str]"]:
    """GPT-2's characters for bytes: those that show stand for themselves, the others, in their
    order, for the characters from 256 on. And what is made of them alone."""
    shown = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    byte_of = {byte: byte for byte in shown} | {256 + n: byte for n, byte in enumerate(others)}
    assert {*map(chr, byte_of)} == {*pre_tokenizers.ByteLevel.alphabet()}
    return byte_of, re.compile(f"[{''.join(re.escape(chr(each)) for each in byte_of)}]*")


class Detokenizer:
    """Token ids of one answer to text, never a part of a character.

    A step decodes at most `MOST_PENDING` ids and a few, whatever an engine sends.
    """

    def __init__(self, decoding: Decoding, *, special: bool = False) -> None:
        """`special`: with special tokens in the text."""
        self._decoding, self._special = decoding, special
        self._tokenizer = decoding.tokenizer
        self._shown = decoding.shown(special)
        self._stream = DecodeStream(skip_special_tokens=not special)
        self._pending: list[int] = []
        self._begun = False

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        text = ""
        pending, shown, known = self._pending, self._shown, len(self._shown)
        by_bytes = self._decoding.by_bytes
        for token_id in ids:
            if not (0 <= token_id < known and shown[token_id]):
                continue  # the stream would keep it, and decode it again at each step
            try:
                piece = self._stream.step(self._tokenizer, token_id)
                broken = piece is not None and by_bytes and pending and REPLACEMENT in piece
            except Exception:  # a longer list is decoded to another beginning
                piece, broken = None, True
            if piece is None or broken:
                pending.append(token_id)
                if broken or len(pending) >= MOST_PENDING:
                    text += self._read_pending()
            else:
                text += piece
                self._begun = True
                if pending:
                    pending.clear()
        return text

    def flush(self) -> str:
        """The answer is over: a part of a character, if one is left, as U+FFFD."""
        return self._read_pending(all_of_it=True) if self._pending else ""

    def _read_pending(self, *, all_of_it: bool = False) -> str:
        """The text of the pending ids, except the last ones that may begin a character. The stream
        begins anew behind them."""
        pending, kept = self._pending, 0
        if self._decoding.by_bytes:
            text, kept = self._by_character(all_of_it)
        else:
            for kept in range(MOST_OF_A_CHARACTER + 1):
                text = self._decode(pending[: len(pending) - kept])
                if all_of_it or not text.endswith(REPLACEMENT):
                    break
        del pending[: len(pending) - kept]
        self._begun = True
        self._stream = DecodeStream(skip_special_tokens=not self._special)
        for token_id in (*self._decoding.anchor, *pending):
            self._stream.step(self._tokenizer, token_id)
        return text

    def _by_character(self, all_of_it: bool) -> tuple[str, int]:
        """The pending ids as characters and what is none, and how many are left that may begin a
        character."""
        pending, text, at = self._pending, "", 0
        while (left := len(pending) - at) > 0:
            for size in range(1, min(left, MOST_OF_A_CHARACTER + 1) + 1):
                piece = self._decode(pending[at : at + size])
                if REPLACEMENT not in piece:
                    break
            else:
                few = left <= MOST_OF_A_CHARACTER and not all_of_it
                if few and self._decode(pending[at:]).endswith(REPLACEMENT):
                    return text, left
                piece, size = self._decode(pending[at : at + 1]), 1
            text += piece
            at += size
            self._begun = True
        return text, 0

    def _decode(self, ids: Sequence[int]) -> str:
        decoding = self._decoding
        if self._begun:
            text = decoding.text([*decoding.anchor, *ids], self._special)
            if text.startswith(decoding.anchor_text):
                return text[len(decoding.anchor_text) :]
        return decoding.text(ids, self._special)


def _read_tokenizer(path: Path) -> tuple[Tokenizer, CutRules]:
    if not path.is_file():
        raise ConfigError(f"{path.parent} has no {path.name}", key="model_path")
    try:
        raw = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(raw)
    except BaseException as error:
        if not _is_fault(error):
            raise
        raise ConfigError(f"{path} is no tokenizer: {error}", key="model_path") from None
    # Settings of its training, which would cut prompts short.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, read_cut_rules(raw, tokenizer)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}", key="model_path") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path.name} is no JSON object", key="model_path")
    return found


def _token_text(value: Any) -> str:
    """A special token: its text, or an object that describes it."""
    return str(value["content"] if isinstance(value, dict) else value)


def _template_text(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path.name} cannot be read: {error}", key="model_path") from None
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found}
        found = named.get("default")
    return found if isinstance(found, str) else None
