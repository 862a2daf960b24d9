"""KnownBeginnings: the prompt of a long chat, of which only the messages are read that are new.

A turn of a conversation begins with the bytes of the one before. What was made of those, ids of
tokens as engines get them and hashes of blocks, is kept by a hash of the bytes up to the end of a
message, each turn behind the one that it goes on from; so it is neither read nor made again.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ..base.errors import InvalidRequestError
from ..indexer.hashing import block_hashes, sequence_hashes
from ..router.prompt import Hashes, Prompt
from ..server.dispatch import LONG_BYTES, RequestReader, cut_messages
from ..workers.dialects import pack_tokens
from .engine_requests import SECONDS_PER_BYTE, HashedPrompt
from .openai import BAD_BODY, LONG_BODY
from .processor import ModelText, Tenant
from .processor.chat_template import MAX_RENDERED_CHARS
from .processor.template_pieces import MOST_MESSAGES, Shape, TextPiece, taken_apart, written

MOST_BYTES = 1 << 20
"""Of a body that is read in one turn of the event loop."""
MOST_STEPS = 64 << 10
LEAST_NEW_CHARS = 1024
"""Behind a beginning that is kept: what adds less is made again with the next turn."""
OVERHEAD, PIECE_OVERHEAD, MESSAGE_OVERHEAD = 1000, 200, 150
"""Bytes that a beginning takes beside its numbers: for itself, a piece of the template, a
message."""
ID_BYTES = 4

Ids = npt.NDArray[np.uint32]
_NO_IDS: Ids = np.empty(0, np.uint32)
_NO_HASHES: Hashes = np.empty(0, np.uint64)

_decode = msgspec.json.Decoder(list[dict[str, str]]).decode


class MessagesApart(NamedTuple):
    """Where the messages of a chat's body are."""

    rest: bytes
    """the body with an empty list in their place"""
    begin: int
    """of the first one"""
    ends: list[int]


def messages_apart(body: bytes) -> MessagesApart | None:
    """Of a long body; None: of one that is short, too long, or is to be read in another way."""
    if not LONG_BODY < len(body) <= MOST_BYTES:
        return None
    found = cut_messages(body, MOST_MESSAGES, MOST_STEPS)
    if found is None or len(found[0]) > LONG_BODY:
        return None
    return MessagesApart(*found)


class Beginning:
    """What was made of the first messages of a conversation, but for what `parent` has of them.

    Ids go as far as the text can be cut, whatever comes behind the last message: `tail` is the text
    from there to its end.
    """

    __slots__ = (
        "chars", "largest", "last_hash", "left", "local", "packed", "parent", "pieces", "sequence",
        "shape", "tail", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        parent: bytes | None,
        shape: Shape,
        pieces: tuple[TextPiece, ...],
        chars: int,
        tail: str,
    ) -> None:
        """`parent` is a key. `shape` and `pieces` of the template are those of its own messages,
        `chars` those of the text up to the end of the last one."""
        self.parent, self.shape, self.pieces = parent, shape, pieces
        self.chars, self.tail = chars, tail
        self.packed = b""
        """ids as requests to engines have them"""
        self.tokens = self.largest = 0
        """how many ids there are, those of the parents among them, and the largest"""
        self.left = _NO_IDS
        """those behind the last full block"""
        self.local = self.sequence = _NO_HASHES
        self.last_hash: int | None = None
        """of the sequence up to there"""

    def add_ids(self, before: "Beginning", ids: Ids, prompt: Prompt, block_size: int) -> None:
        """Its own ids, behind those of its parent, as `prompt` has them hashed."""
        self.packed, largest = pack_tokens(ids)
        self.tokens, self.largest = before.tokens + len(ids), max(before.largest, largest)
        begun, end = before.tokens // block_size, self.tokens // block_size
        behind = np.concatenate((before.left, ids))
        self.left = behind[(end - begun) * block_size :].copy()
        self.local = prompt.local_hashes[begun:end].copy()
        self.sequence = prompt.sequence_hashes[begun:end].copy()
        self.last_hash = int(prompt.sequence_hashes[end - 1]) if end else None

    def __len__(self) -> int:
        """Bytes that it takes, about."""
        numbers = self.local.nbytes + self.sequence.nbytes + self.left.nbytes
        texts = self.tail.__sizeof__() + sum(len(piece.before) for piece in self.pieces)
        each = PIECE_OVERHEAD * len(self.pieces) + MESSAGE_OVERHEAD * len(self.shape)
        return OVERHEAD + len(self.packed) + numbers + texts + each


class _Known(NamedTuple):
    """The first `messages` of a body, in beginnings that each go on from the one before."""

    messages: int
    key: bytes | None
    parts: tuple[Beginning, ...]
    last: Beginning

    @property
    def shape(self) -> Shape:
        return tuple(chain.from_iterable(part.shape for part in self.parts))

    @property
    def pieces(self) -> list[TextPiece]:
        return [piece for part in self.parts for piece in part.pieces]

    @property
    def packed(self) -> tuple[bytes, ...]:
        return tuple(part.packed for part in self.parts)


_NOTHING = _Known(0, None, (), Beginning(None, (), (), 0, ""))


class KnownBeginnings:
    """Of the chats of one model."""

    def __init__(self, text: ModelText, reader: RequestReader) -> None:
        self._text, self._reader = text, reader
        self._block_size = reader.block_size

    async def prompt(
        self, body: bytes, apart: MessagesApart, tenant: Tenant
    ) -> HashedPrompt | None:
        """The prompt of a chat of which only the messages matter. None: they are not plain, or it
        is too long; nothing was done. InvalidRequestError if the template refuses them."""
        known, keys = self._find(body, apart, tenant)
        found = await self._continued(body, apart, tenant, known, keys)
        if found is None and known.messages:  # or the template has what is known at another place
            found = await self._continued(body, apart, tenant, _NOTHING, keys)
        return found

    def _find(
        self, body: bytes, apart: MessagesApart, tenant: Tenant
    ) -> tuple[_Known, Sequence[bytes]]:
        """The most of its messages that are known; and the keys of each number of them."""
        salt = f"{self._text.number} {self._block_size} {tenant.namespace}:"
        hasher, view, begin, keys = blake3(salt.encode()), memoryview(body), apart.begin, []
        for end in apart.ends:
            keys.append(hasher.update(view[begin:end]).digest())
            begin = end
        get = self._text.pieces.get
        for count in range(len(keys), 0, -1):
            part: Beginning | None = get(keys[count - 1])
            parts = []
            while part is not None:
                parts.append(part)
                if part.parent is None:
                    return _Known(count, keys[count - 1], tuple(parts[::-1]), parts[0]), keys
                part = get(part.parent)
        return _NOTHING, keys

    async def _read(self, body: bytes, apart: MessagesApart, known: int) -> Any:
        """The messages behind those, as a template's pieces want them; None: they are not plain."""
        begin = apart.ends[known - 1] if known else apart.begin
        raw = b"[%b]" % body[begin : apart.ends[-1]].lstrip(b" \t\r\n,")
        try:
            if len(raw) <= LONG_BYTES:
                return taken_apart(_decode(raw))
            work, seconds = lambda: taken_apart(_decode(raw)), len(raw) * SECONDS_PER_BYTE
            return await self._reader.off_loop.run(work, size=len(raw), seconds=seconds)
        except BAD_BODY:
            return None

    async def _continued(
        self,
        body: bytes,
        apart: MessagesApart,
        tenant: Tenant,
        known: _Known,
        keys: Sequence[bytes],
    ) -> HashedPrompt | None:
        template, text = self._text.template, self._text
        new = await self._read(body, apart, known.messages)
        if new is None or template is None or template.pieces is None:
            return None
        shape, contents = new
        pieces = template.pieces.of_shape(known.shape + shape, True)
        before, last = known.pieces, len(pieces) - 1  # that has no content
        own = pieces[len(before) : last]
        if pieces[: len(before)] != before or any(piece.nth < known.messages for piece in own):
            return None
        tail, chars = known.last.tail, known.last.chars
        parts = [tail, *written(own, contents, known.messages)]
        end = sum(map(len, parts))  # of what stays the same whatever turn comes next
        whole = "".join((*parts, pieces[last].before))
        encoded = chars - len(tail)
        if self._is_too_long(encoded + len(whole)):
            return None
        cut = text.last_cut(whole, end) if known.messages < len(keys) else 0
        if cut < LEAST_NEW_CHARS:
            cut = 0
        most = self._reader.limits.max_prompt_tokens
        try:
            first, rest = [
                await text.encode(each, tenant, add_special_tokens=False, most=most)
                if each
                else _NO_IDS
                for each in (whole[:cut], whole[cut:])
            ]
        except (InvalidRequestError, OverflowError):
            return None
        text.pieces.found_chars += encoded
        if not 0 < known.last.tokens + len(first) + len(rest) <= most:
            return None
        made = _hashed(known, first, rest, self._block_size)
        if not cut:
            return HashedPrompt(rest, made, known.packed, known.last.largest)
        kept = Beginning(known.key, shape, tuple(own), encoded + end, whole[cut:end])
        kept.add_ids(known.last, first, made, self._block_size)
        text.pieces.put(keys[-1], kept, tenant)
        return HashedPrompt(rest, made, (*known.packed, kept.packed), kept.largest)

    def _is_too_long(self, chars: int) -> bool:
        """Whether a text of so many characters is refused whatever it is."""
        most, characters = self._reader.limits.max_prompt_tokens, self._text.most_characters
        if chars > MAX_RENDERED_CHARS:
            return True
        return characters is not None and -(-chars // characters) > most


def _hashed(known: _Known, first: Ids, rest: Ids, block_size: int) -> Prompt:
    """What is known of a prompt, and then these ids."""
    before = known.last
    ids = np.concatenate((before.left, first, rest))
    local = block_hashes(ids, block_size)
    sequence = sequence_hashes(local, before.last_hash)
    if known.parts:
        local = np.concatenate((*(part.local for part in known.parts), local))
        sequence = np.concatenate((*(part.sequence for part in known.parts), sequence))
    tokens = before.tokens + len(first) + len(rest)
    return Prompt.of_hashes(tokens, block_size, local, sequence)
