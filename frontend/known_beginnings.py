"""KnownBeginnings: the prompt of a long chat, of which only the messages are read that are new.

A turn of a conversation begins with the bytes of the one before. What was made of those, ids of
tokens as engines get them and hashes of blocks, is kept by a hash of the bytes up to the end of a
message, each turn behind the one that it goes on from; so it is neither read nor made again.
"""

from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ..base.errors import InvalidRequestError
from ..indexer.hashing import block_hashes, sequence_hashes
from ..router.prompt import Content, Hashes, Prompt
from ..server.dispatch import LONG_BYTES, RequestReader, cut_messages
from ..workers.dialects import pack_tokens
from .engine_requests import SECONDS_PER_BYTE, HashedPrompt
from .openai import BAD_BODY, LONG_BODY
from .processor import (
    FEW_MESSAGES,
    MAX_RENDERED_CHARS,
    MOST_MESSAGES,
    ModelText,
    Shape,
    TemplatePieces,
    Tenant,
    TextPiece,
    taken_apart,
    written,
)

MOST_BYTES = 1 << 20
"""Of a body that is read in one turn of the event loop."""
MOST_STEPS = 64 << 10
USUAL_TURN = 2
"""Messages that a turn adds: the answer to the one before, and a question."""
SECONDS_PER_MESSAGE = 1e-5
"""Of rendering a template with marks."""
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
        "_bytes", "chars", "largest", "last_hash", "left", "local", "packed", "parent", "pieces",
        "sequence", "shape", "tail", "tokens",
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
        self._bytes = 0

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
        numbers = self.local.nbytes + self.sequence.nbytes + self.left.nbytes
        texts = self.tail.__sizeof__() + sum(len(piece.before) for piece in self.pieces)
        texts += sum(len(role) for role, _ in self.shape)
        each = PIECE_OVERHEAD * len(self.pieces) + MESSAGE_OVERHEAD * len(self.shape)
        self._bytes = OVERHEAD + len(self.packed) + numbers + texts + each

    def __len__(self) -> int:
        """Bytes that it takes, about: they stay the same once it has its ids."""
        return self._bytes


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
        if tenant.name is not None and len(tenant.name) > self._reader.limits.max_id_bytes:
            return None
        known, key = self._find(body, apart, tenant)
        found = await self._continued(body, apart, tenant, known, key)
        if found is None and known.messages:  # or the template has what is known at another place
            found = await self._continued(body, apart, tenant, _NOTHING, key)
        return found

    def _find(self, body: bytes, apart: MessagesApart, tenant: Tenant) -> tuple[_Known, bytes]:
        """The most of its messages that are known; and the key of all of them."""
        salt = f"{self._text.number} {self._block_size} {tenant.namespace}:".encode()
        view, ends = memoryview(body), apart.ends
        if (usual := len(ends) - USUAL_TURN) > 0:  # to hash in two pieces takes half as long
            hasher, at = blake3(salt), ends[usual - 1]
            key = hasher.update(view[apart.begin : at]).digest()
            if (known := self._kept(usual, key)) is not None:
                return known, hasher.update(view[at : ends[-1]]).digest()
        hasher, begin, keys = blake3(salt), apart.begin, []
        for end in ends:
            keys.append(hasher.update(view[begin:end]).digest())
            begin = end
        for count in range(len(keys), 0, -1):
            if (known := self._kept(count, keys[count - 1])) is not None:
                return known, keys[-1]
        return _NOTHING, keys[-1]

    def _kept(self, count: int, key: bytes) -> _Known | None:
        """What is known of the first `count` messages; None: nothing, or a part of it is gone."""
        get, parts = self._text.pieces.get, []
        part: Beginning | None = get(key)
        while part is not None:
            parts.append(part)
            if part.parent is None:
                return _Known(count, key, tuple(parts[::-1]), parts[0])
            part = get(part.parent)
        if parts:
            self._text.pieces.forget(key)  # it would be in the way of what is made anew
        return None

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
        key: bytes,
    ) -> HashedPrompt | None:
        template, text = self._text.template, self._text
        new = await self._read(body, apart, known.messages)
        if new is None or template is None or template.pieces is None:
            return None
        shape, contents = new
        pieces = await self._pieces(template.pieces, known, shape)
        if pieces is None:
            return None
        own, last = pieces[:-1], pieces[-1]
        if any(piece.nth < known.messages for piece in own):
            return None
        tail, chars = known.last.tail, known.last.chars
        parts = [tail, *written(own, contents, known.messages)]
        end = sum(map(len, parts))  # of what stays the same whatever turn comes next
        whole = "".join((*parts, last.before))
        encoded = chars - len(tail)
        if self._is_too_long(encoded + len(whole)):
            return None
        cut = text.last_cut(whole, end) if known.messages < len(apart.ends) else 0
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
        made = _hashed(known, first, rest, self._block_size, tenant)
        if not cut:
            return HashedPrompt(rest, made, known.packed, known.last.largest)
        kept = Beginning(known.key, shape, tuple(own), encoded + end, whole[cut:end])
        kept.add_ids(known.last, first, made, self._block_size)
        text.pieces.put(key, kept, tenant)
        return HashedPrompt(rest, made, (*known.packed, kept.packed), kept.largest)

    async def _pieces(
        self, template: TemplatePieces, known: _Known, shape: Shape
    ) -> list[TextPiece] | None:
        """Those behind what is known; None: the template writes that in another way now."""
        before = known.shape
        pieces = template.behind(before, shape, True)
        if pieces is not None:
            return pieces
        work = partial(template.of_shape, before + shape, True)
        if (count := len(before) + len(shape)) <= FEW_MESSAGES:
            pieces = work()
        else:
            seconds = count * SECONDS_PER_MESSAGE
            pieces = await self._reader.off_loop.run(work, size=0, seconds=seconds)
        written = known.pieces
        return pieces[len(written) :] if pieces[: len(written)] == written else None

    def _is_too_long(self, chars: int) -> bool:
        """Whether a text with this number of characters is refused whatever it is."""
        most, characters = self._reader.limits.max_prompt_tokens, self._text.most_characters
        if chars > MAX_RENDERED_CHARS:
            return True
        return characters is not None and -(-chars // characters) > most


def _hashed(known: _Known, first: Ids, rest: Ids, block_size: int, tenant: Tenant) -> Prompt:
    """What is known of a prompt, and then these ids."""
    before = known.last
    ids = np.concatenate((before.left, first, rest))
    local = block_hashes(ids, block_size, cache_namespace=tenant.name)
    sequence = sequence_hashes(local, before.last_hash)
    if known.parts:
        local = np.concatenate((*(part.local for part in known.parts), local))
        sequence = np.concatenate((*(part.sequence for part in known.parts), sequence))
    tokens = before.tokens + len(first) + len(rest)
    content = Content(cache_namespace=tenant.name)
    return Prompt.of_hashes(tokens, block_size, local, sequence, content)
