"""KnownBeginnings: the prompt of a long chat, of which only the messages are read that are new.

A turn of a conversation begins with the bytes of the one before. What was made of those, ids of
tokens as engines get them and hashes of blocks, is kept by a hash of the bytes up to the end of a
message, each turn behind the one that it goes on from; so it is neither read nor made again.
"""

import itertools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ..base.errors import InvalidRequestError
from ..indexer.hashing import packed_hashes
from ..router.prompt import NO_CONTENT, Content, Prompt
from ..server.dispatch import LONG_BYTES, RequestReader, cut_messages
from ..workers.dialects import pack_tokens
from .engine_requests import FEW, SECONDS_PER_BYTE, Given, HashedPrompt, with_read_arguments
from .openai import BAD_BODY, LONG_BODY, ApiError, check_messages
from .processor import (
    MAX_RENDERED_CHARS,
    ChatTemplate,
    Grown,
    ModelText,
    Point,
    Tenant,
)

MOST_BYTES = 1 << 20
"""Of a body that is read in one turn of the event loop."""
MOST_REST = 128 << 10
"""Of what such a body has beside its messages: an agent's tools."""
MOST_MESSAGES, MOST_STEPS = 1024, 128 << 10
USUAL_TURN = 2
"""Messages that a turn adds: the answer to the one before, and a question."""
SECONDS_PER_MESSAGE = 2e-5
"""Of rendering a template, and for each tool."""
LEAST_NEW_CHARS = 1024
"""Behind a beginning that is kept: what adds less is made again with the next turn."""
OVERHEAD = 1000
"""Bytes that a beginning takes beside its numbers, its text and its point."""
ID_BYTES = 4

Ids = npt.NDArray[np.uint32]
_NO_IDS: Ids = np.empty(0, np.uint32)
_HASH_BYTES = 8

_BETWEEN = b" \t\r\n,"
_numbers = itertools.count(1)
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


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
    if found is None or len(found[0]) > MOST_REST:
        return None
    return MessagesApart(*found)


_NO_MORE = Given()


class Beginning:
    """What was made of the first messages of a conversation, but for what `parent` has of them.

    Ids go as far as the text can be cut, whatever comes behind the last message: `tail` is the text
    from there to where the template can go on, `point`.
    """

    __slots__ = (
        "_bytes", "behind", "chars", "largest", "last_hash", "left", "local", "number", "packed",
        "parent", "point", "sequence", "tail", "tokens",
    )  # fmt: skip

    def __init__(self, parent: bytes | None, point: Point | None, chars: int, tail: str) -> None:
        """`parent` is a key, `chars` the number of characters up to `point`."""
        self.parent, self.point = parent, point
        self.chars, self.tail = chars, tail
        self.number, self.behind = next(_numbers), 0
        """its own, and its parent's: under a key there may be another later, as of another day"""
        self.packed = b""
        """ids as requests to engines have them"""
        self.tokens = self.largest = 0
        """how many ids there are, those of the parents among them, and the largest"""
        self.left = b""
        """those behind the last full block, as numbers of 32 bits"""
        self.local = self.sequence = b""
        """hashes of its full blocks, as the machine has them"""
        self.last_hash: int | None = None
        """of the sequence up to there"""
        self._bytes = 0

    def add_ids(self, before: "Beginning", ids: Ids, prompt: Prompt, block_size: int) -> None:
        """Its own ids, behind those of its parent, as `prompt` has them hashed."""
        self.behind = before.number
        self.packed, largest = pack_tokens(ids)
        self.tokens, self.largest = before.tokens + len(ids), max(before.largest, largest)
        begun, end = before.tokens // block_size, self.tokens // block_size
        behind = b"".join((before.left, ids.data))
        self.left = behind[(end - begun) * block_size * ID_BYTES :]
        own = slice(begun * _HASH_BYTES, end * _HASH_BYTES)
        self.local, self.sequence = (hashes[own] for hashes in prompt.packed_hashes())
        self.last_hash = before.last_hash
        if end > begun:
            self.last_hash = int.from_bytes(self.sequence[-_HASH_BYTES:], sys.byteorder)
        numbers = len(self.local) + len(self.sequence) + len(self.left)
        numbers += len(self.packed) + self.tail.__sizeof__()
        point = self.point
        assert point is not None
        numbers += point.size(
            without_head=before.point is not None and before.point.head is point.head
        )
        self._bytes = OVERHEAD + numbers

    def __len__(self) -> int:
        """Bytes that it takes, about: they stay the same once it has its ids."""
        return self._bytes


class _Known(NamedTuple):
    """The first `messages` of a body, in beginnings that each go on from the one before, and their
    keys."""

    messages: int
    keys: tuple[bytes, ...]
    parts: tuple[Beginning, ...]

    @property
    def last(self) -> Beginning:
        return self.parts[-1] if self.parts else _NOTHING

    @property
    def packed(self) -> tuple[bytes, ...]:
        return tuple([part.packed for part in self.parts])


_NOTHING = Beginning(None, None, 0, "")


class KnownBeginnings:
    """Of the chats of one model."""

    def __init__(self, text: ModelText, reader: RequestReader) -> None:
        self._text, self._reader = text, reader
        self._block_size = reader.block_size

    async def prompt(
        self, body: bytes, apart: MessagesApart, tenant: Tenant, given: Given = _NO_MORE
    ) -> HashedPrompt | None:
        """The prompt of a chat with these messages. None: nothing was done, and they are to be read
        in the way of all others, which answers what is wrong with them, too."""
        template = self._text.template
        if template is None or template.growing is None:
            return None
        if tenant.name is not None and len(tenant.name) > self._reader.limits.max_id_bytes:
            return None
        known, key = self._find(body, apart, tenant, _key(given))
        grown = await self._grown(template, body, apart, known, given)
        return None if grown is None else await self._continued(tenant, known, key, grown)

    def _find(
        self, body: bytes, apart: MessagesApart, tenant: Tenant, given: bytes
    ) -> tuple[_Known, bytes]:
        """The most of its messages that are known; and the key of all of them."""
        salt = f"{self._text.number} {self._block_size} {tenant.namespace}:".encode() + given
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
        return _Known(0, (), ()), keys[-1]

    def _kept(self, count: int, key: bytes) -> _Known | None:
        """What is known of the first `count` messages; None: nothing, or a part of it is gone."""
        get, parts, keys, parent = self._text.pieces.get, [], [], key
        part: Beginning | None = get(key)
        while part is not None:
            parts.append(part)
            keys.append(parent)
            if part.parent is None:
                return _Known(count, tuple(keys[::-1]), tuple(parts[::-1]))
            parent, behind = part.parent, part.behind
            part = get(parent)
            if part is not None and part.number != behind:
                break
        for each in keys:  # they would be in the way of what is made anew
            self._text.pieces.forget(each)
        return None

    async def _grown(
        self,
        template: ChatTemplate,
        body: bytes,
        apart: MessagesApart,
        known: _Known,
        given: Given,
    ) -> Grown | None:
        """What the template writes behind what is known; None: that is not to be had so."""
        ends, view = apart.ends, memoryview(body)
        behind = ends[known.messages - 1] if known.messages else apart.begin
        points = [part.point for part in reversed(known.parts) if part.point is not None]

        def work() -> Grown | None:
            raw = b"[%b]" % bytes(view[behind : ends[-1]]).lstrip(_BETWEEN)
            messages = _checked(_decode(raw))

            def read(number: int) -> Mapping[str, Any]:
                if number >= known.messages:
                    return messages[number - known.messages]
                begin = ends[number - 1] if number else apart.begin
                raw = b"[%b]" % bytes(view[begin : ends[number]]).lstrip(_BETWEEN)
                return _checked(_decode(raw))[0]

            return template.grow(
                len(ends),
                read,
                points,
                add_generation_prompt=given.prompted,
                tools=given.tools,
                variables=given.variables,
            )

        size, count = ends[-1] - behind, len(ends) - known.messages + len(given.tools or ())
        try:
            if size <= LONG_BYTES and count <= FEW:
                return work()
            seconds = size * SECONDS_PER_BYTE + count * SECONDS_PER_MESSAGE
            return await self._reader.off_loop.run(work, size=size, seconds=seconds)
        except (*BAD_BODY, ApiError):
            return None

    async def _continued(
        self, tenant: Tenant, known: _Known, key: bytes, grown: Grown
    ) -> HashedPrompt | None:
        text, used = self._text, 0 if grown.used is None else len(known.parts) - grown.used
        at_point = known._replace(keys=known.keys[:used], parts=known.parts[:used])
        before, point = at_point.last, grown.point
        stays = sum(map(len, grown.text[: grown.stays]), len(before.tail))
        whole = "".join((before.tail, *grown.text))
        encoded = before.chars - len(before.tail)
        if self._is_too_long(encoded + len(whole)):
            return None
        cut = text.last_cut(whole, stays) if point is not None else 0
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
        if not 0 < before.tokens + len(first) + len(rest) <= most:
            return None
        made = _hashed(at_point, first, rest, self._block_size, tenant)
        if not cut or point is None:
            return HashedPrompt(rest, made, at_point.packed, before.largest)
        parent = at_point.keys[-1] if at_point.keys else None
        kept = Beginning(parent, point, encoded + stays, whole[cut:stays])
        kept.add_ids(before, first, made, self._block_size)
        if key in known.keys[used:] and text.pieces.get(key) is not None:
            text.pieces.forget(key)  # it was left in another way
        text.pieces.put(key, kept, tenant)
        return HashedPrompt(rest, made, (*at_point.packed, kept.packed), kept.largest)

    def _is_too_long(self, chars: int) -> bool:
        """Whether a text with this number of characters is refused whatever it is."""
        most, characters = self._reader.limits.max_prompt_tokens, self._text.most_characters
        if chars > MAX_RENDERED_CHARS:
            return True
        return characters is not None and -(-chars // characters) > most


def _key(given: Given) -> bytes:
    """Of what a template gets beside messages, and no other."""
    return b"" if given == _NO_MORE else blake3(msgspec.json.encode(given)).digest()


def _checked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a template gets them. ApiError 400 for what is none."""
    check_messages(messages)
    return with_read_arguments(messages)


def _hashed(known: _Known, first: Ids, rest: Ids, block_size: int, tenant: Tenant) -> Prompt:
    """What is known of a prompt, and then these ids."""
    before = known.last
    ids = b"".join((before.left, first.data, rest.data))
    local, sequence = packed_hashes(ids, block_size, tenant.name, before.last_hash)
    if known.parts:
        local = b"".join((*[part.local for part in known.parts], local))
        sequence = b"".join((*[part.sequence for part in known.parts], sequence))
    tokens = before.tokens + len(first) + len(rest)
    content = NO_CONTENT if tenant.name is None else Content(cache_namespace=tenant.name)
    return Prompt.of_packed(tokens, block_size, (local, sequence), content)
