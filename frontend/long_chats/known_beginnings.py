"""KnownBeginnings: the prompt of a long chat, of which only the items are read that are new.

A turn of a conversation begins with the bytes of the one before. What was made of those, ids of
tokens as engines get them and hashes of blocks, is kept by a hash of the bytes up to the end of an
item, each turn behind the one that it goes on from; so it is neither read nor made again. Now and
then a turn's text is written as a whole, too: if they differ, the model's chats have no beginnings
any more.
"""

import asyncio
import itertools
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import structlog
from blake3 import blake3

from ...base.errors import CapacityError, InvalidRequestError
from ...indexer.hashing import packed_hashes
from ...router.prompt import NO_CONTENT, Content, Prompt
from ...server.dispatch import LONG_BYTES, RequestReader
from ...transport.http1 import HttpCall
from ...workers.dialects import pack_tokens, unpack_tokens
from ..engine_requests import FEW, SECONDS_PER_BYTE, Given, HashedPrompt, PromptReader
from ..openai import BAD_BODY, ApiError, ChatApart, ChatRequest
from ..origin import tenant_of
from ..processor import (
    KEY_BYTES,
    MAX_RENDERED_CHARS,
    PART_OVERHEAD,
    ChatTemplate,
    EncodedPiece,
    Grown,
    ModelText,
    Point,
    Tenant,
)
from .chat_items import NOTHING_KNOWN, ChatItems, ItemsApart, KnownItems, Messages

SECONDS_PER_MESSAGE = 2e-5
"""Of rendering a template, and for each tool."""
FEW_OBJECTS = 256
"""Of JSON, or braces in texts: an item may make a message of each, of which more are read off the
event loop."""
LEAST_NEW_CHARS = 1024
"""Behind a beginning that is kept: what adds less is made again with the next turn."""
OVERHEAD = 1200
"""Bytes that a beginning takes beside its numbers, its text and its point."""
ID_BYTES = 4

CHECKED_OF = 200
"""Turns that go on from what is kept, of which one is checked, the first one too. To write a text
anew takes some ten times what such a turn takes."""
FAULT = "off: a turn was not what the chat template writes of it"

log = structlog.get_logger(__name__)

Ids = npt.NDArray[np.uint32]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_NO_IDS: Ids = np.empty(0, np.uint32)
_HASH_BYTES = 8

_numbers = itertools.count(1)
_NO_CALLS: frozenset[str] = frozenset()
CALL_BYTES = 100
"""Of the id of a call, beside its characters."""


_NO_MORE = Given()
_NO_LEAD: Messages = []


class Beginning:
    """What was made of the first items of a conversation, but for what `parent` has of them.

    Ids go as far as the text can be cut, whatever comes behind the last message: `tail` is the text
    from there to where the template can go on, `point`.
    """

    __slots__ = (
        "_bytes", "behind", "calls", "chars", "digest", "is_open", "largest", "last_hash", "left",
        "local", "number", "packed", "parent", "part_keys", "places", "point", "sequence",
        "starts", "tail", "tokens",
    )  # fmt: skip

    def __init__(self, parent: bytes | None, point: Point | None, chars: int, tail: str) -> None:
        """`parent` is a key, `chars` the number of characters up to `point`."""
        self.parent, self.point = parent, point
        self.chars, self.tail = chars, tail
        self.number, self.behind = next(_numbers), 0
        """its own, and its parent's: under a key there may be another later, as of another day"""
        self.starts = array("H")
        """by message that is new in it, the item that it begins with"""
        self.calls: frozenset[str] = _NO_CALLS
        """ids of calls in its items"""
        self.is_open = False
        """whether a next item may become part of the last message"""
        self.digest = b""
        """of its own text, by which it is compared"""
        self.packed = b""
        """ids as requests to engines have them"""
        self.part_keys = b""
        """of pieces of its text whose ids these are"""
        self.places = array("I")
        """where those of each begin in `packed`, and end"""
        self.tokens = self.largest = 0
        """how many ids there are, those of the parents among them, and the largest"""
        self.left = b""
        """those behind the last full block, as numbers of 32 bits"""
        self.local = self.sequence = b""
        """hashes of its full blocks, as the machine has them"""
        self.last_hash: int | None = None
        """of the sequence up to there"""
        self._bytes = 0

    def add_ids(
        self,
        before: "Beginning",
        pieces: Sequence[EncodedPiece],
        ids: bytes,
        prompt: Prompt,
        block_size: int,
    ) -> None:
        """Its own ids, those of `pieces`, behind those of its parent; `prompt` has them hashed."""
        self.behind = before.number
        self._pack(pieces, before.largest)
        self.tokens = before.tokens + len(ids) // ID_BYTES
        begun, end = before.tokens // block_size, self.tokens // block_size
        behind = before.left + ids
        self.left = behind[(end - begun) * block_size * ID_BYTES :]
        own = slice(begun * _HASH_BYTES, end * _HASH_BYTES)
        self.local, self.sequence = (hashes[own] for hashes in prompt.packed_hashes())
        self.last_hash = before.last_hash
        if end > begun:
            self.last_hash = int.from_bytes(self.sequence[-_HASH_BYTES:], sys.byteorder)
        numbers = len(self.local) + len(self.sequence) + len(self.left)
        numbers += len(self.packed) + self.tail.__sizeof__() + 2 * len(self.starts)
        numbers += len(self.part_keys) // KEY_BYTES * PART_OVERHEAD
        numbers += sum(map(len, self.calls)) + CALL_BYTES * len(self.calls)
        point = self.point
        assert point is not None
        numbers += point.size(
            without_head=before.point is not None and before.point.head is point.head
        )
        self._bytes = OVERHEAD + numbers

    def _pack(self, pieces: Sequence[EncodedPiece], largest: int) -> None:
        packed, keys, size = [], [], 0
        for ids, key in pieces:
            part, most = pack_tokens(np.frombuffer(ids, np.uint32))
            largest = max(largest, most)
            if key is not None:
                keys.append(key)
                self.places.extend((size, size + len(part)))
            packed.append(part)
            size += len(part)
        self.packed, self.part_keys, self.largest = b"".join(packed), b"".join(keys), largest

    def part(self, key: bytes) -> bytes:
        """The ids of a piece with one of `part_keys`, as numbers of 32 bits."""
        at = self.part_keys.index(key)
        while at % KEY_BYTES:
            at = self.part_keys.index(key, at + 1)
        nth = 2 * at // KEY_BYTES
        return unpack_tokens(self.packed, self.places[nth], self.places[nth + 1])

    def __len__(self) -> int:
        """Bytes that it takes, about: they stay the same once it has its ids."""
        return self._bytes


class _Known(NamedTuple):
    """The first `length` items of a body, in beginnings that each go on from the one before, and
    their keys."""

    length: int
    keys: tuple[bytes, ...]
    parts: tuple[Beginning, ...]

    @property
    def last(self) -> Beginning:
        return self.parts[-1] if self.parts else _NOTHING

    @property
    def starts(self) -> "array[int]":
        found = array("H")
        for part in self.parts:
            found.extend(part.starts)
        return found

    @property
    def items(self) -> KnownItems:
        return KnownItems(self.length, self.starts, _Calls(self.parts), self.last.is_open)

    @property
    def packed(self) -> tuple[bytes, ...]:
        return tuple([part.packed for part in self.parts])


class _Calls:
    """Ids of all calls in some beginnings; that of a result is mostly in the last."""

    def __init__(self, parts: tuple[Beginning, ...]) -> None:
        self._parts = parts
        self._all: frozenset[str] | None = None

    def __contains__(self, call_id: object) -> bool:
        if self._parts and call_id in self._parts[-1].calls:
            return True
        if self._all is None:
            self._all = _NO_CALLS.union(*(part.calls for part in self._parts))
        return call_id in self._all


_NOTHING = Beginning(None, None, 0, "")


class Turn(NamedTuple):
    """One that is checked: what it goes on from, and how it is written behind that."""

    apart: ItemsApart
    lead: Messages
    given: Given
    pieces: Sequence[Beginning]
    grown: Grown
    grow: Callable[[], Grown | None]
    """writes it once more"""


def digest_of(text: str) -> bytes:
    """By which a piece of a text is compared."""
    return blake3(text.encode("utf-8", "surrogatepass")).digest(16)


class TemplateChecks:
    """Of one model."""

    def __init__(self, text: ModelText) -> None:
        self._text, self._turns, self._is_late = text, 0, False

    def is_due(self) -> bool:
        """Whether this turn is to be checked."""
        self._turns += 1
        is_due, self._is_late = self._is_late or self._turns % CHECKED_OF == 1, False
        return is_due

    def put_off(self) -> None:
        """One that was due came to no end: the next turn is to be checked."""
        self._is_late = True

    def compare(self, template: ChatTemplate, turn: Turn) -> str:
        """Whether a turn's text is the whole one's: same, differs, or unsure, where the template
        writes another text each time or a day. Takes no part of the event loop's state."""
        for _ in range(2):  # the second time, if an hour or a day began between them
            whole = _whole(template, turn)
            if whole is not None and _is_text(whole, turn):
                return "same"
            if _whole(template, turn) != whole:
                return "unsure"
            if (grown := turn.grow()) is None or grown.used != turn.grown.used:
                return "unsure"  # with another date it goes on from another beginning
            turn = turn._replace(grown=grown)
        return "differs"

    def note(self, verdict: str) -> bool:
        """Count it; whether the turn can be used."""
        self._text.pieces.checks[verdict] += 1
        if verdict != "differs":
            return True
        self._text.long_chats = FAULT
        log.error(
            "long chats are written as a whole from now on: the text that went on from a kept one"
            " was not what the chat template writes",
            model_path=str(self._text.folder),
        )
        return False


def _whole(template: ChatTemplate, turn: Turn) -> str | None:
    """None: the template, or what reads items, refuses it."""
    given = turn.given
    try:
        return template.render_whole(
            ChatItems(turn.apart, NOTHING_KNOWN, turn.lead).messages,
            tools=given.tools,
            variables=given.variables,
            add_generation_prompt=given.prompted,
        )
    except (*BAD_BODY, ApiError, InvalidRequestError):
        return None


def _is_text(whole: str, turn: Turn) -> bool:
    begin, tail = 0, ""
    for piece in turn.pieces:
        tail = piece.tail
        end = piece.chars - len(tail)
        if digest_of(whole[begin:end]) != piece.digest:
            return False
        begin = end
    return whole[begin:] == "".join((tail, *turn.grown.text))


class KnownBeginnings:
    """Of the chats of one model."""

    def __init__(self, text: ModelText, reader: RequestReader) -> None:
        self._text, self._reader = text, reader
        self._checks = TemplateChecks(text)
        self._block_size = reader.block_size

    async def of_call(
        self,
        call: HttpCall,
        prompts: PromptReader,
        read: Callable[[bytes], T],
        chat_of: Callable[[T], ChatRequest],
    ) -> tuple[T, HashedPrompt] | None:
        """As `read_call`. None: the call is to be read as a whole, as an error in its items comes
        before others."""
        if call.items is None:
            return None
        try:
            found = await prompts.read_by(read, call.items.rest)
            chat = chat_of(found)
            given = prompts.given_to_template(chat)
        except ApiError:
            return None
        if given is None:
            return None
        tenant = tenant_of(call.headers, chat)
        prompt = await self.prompt(call.items, tenant, given, chat.messages)
        return None if prompt is None else (found, prompt)

    async def prompt(
        self, apart: ItemsApart, tenant: Tenant, given: Given = _NO_MORE, lead: Messages = _NO_LEAD
    ) -> HashedPrompt | None:
        """The prompt of a chat with these items behind the messages of `lead`. None: nothing was
        done, and they are to be read in the way of all others, which answers what is wrong with
        them, too."""
        template = self._text.template
        if template is None or self._text.long_chats != "on":
            return None
        if tenant.name is not None and len(tenant.name) > self._reader.limits.max_id_bytes:
            return None
        try:
            salt = _key(given, lead)
        except RecursionError:  # it is nested less deep than may be read, but deeper than written
            return None
        known, key = self._find(apart, tenant, salt)
        made = await self._grown(template, apart, known, given, lead)
        return None if made is None else await self._continued(tenant, known, key, *made)

    def _find(self, apart: ItemsApart, tenant: Tenant, given: bytes) -> tuple[_Known, bytes]:
        """The most of its items that are known; and the key of all of them."""
        form, ends = apart.form, apart.ends
        salt = f"{form.name} {self._text.number} {self._block_size} {tenant.namespace}:".encode()
        salt += given
        view = memoryview(apart.body)
        if (usual := len(ends) - form.usual_turn) > 0:  # two pieces are hashed in half of the time
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
        apart: ItemsApart,
        known: _Known,
        given: Given,
        lead: Messages,
    ) -> tuple[Grown, ChatItems] | None:
        """What the template writes behind what is known; None: that is not to be had so."""
        ends = apart.ends
        behind = ends[known.length - 1] if known.length else apart.begin
        points = [part.point for part in reversed(known.parts) if part.point is not None]

        def grow(items: ChatItems) -> Grown | None:
            return template.grow(
                len(items.starts),
                items.message,
                points,
                settled=items.settled,
                add_generation_prompt=given.prompted,
                tools=given.tools,
                variables=given.variables,
            )

        def work() -> tuple[Grown, ChatItems] | None:
            items = ChatItems(apart, known.items, lead)
            grown = grow(items)
            return None if grown is None else (grown, items)

        size, count = ends[-1] - behind, len(ends) - known.length + len(given.tools or ())
        try:
            if size <= LONG_BYTES and count <= FEW and apart.objects(behind) <= FEW_OBJECTS:
                made = work()
            else:
                made = await self._off(work, size, count)
        except (*BAD_BODY, ApiError):
            return None
        if made is None or made[0].used is None or not self._checks.is_due():
            return made
        grown, items = made
        pieces = known.parts[: len(known.parts) - made[0].used]
        turn = Turn(apart, lead, given, pieces, grown, partial(grow, items))
        check = partial(self._checks.compare, template, turn)
        try:
            verdict = await self._off(check, ends[-1], len(ends) + len(given.tools or ()))
        except (CapacityError, asyncio.CancelledError) as error:
            self._checks.put_off()
            if isinstance(error, CapacityError):  # no turn fails for want of a check
                return made
            raise
        return made if self._checks.note(verdict) else None

    async def _off(self, work: Callable[[], T], size: int, count: int) -> T:
        """Work on this many bytes and messages, off the event loop."""
        seconds = size * SECONDS_PER_BYTE + count * SECONDS_PER_MESSAGE
        return await self._reader.off_loop.run(work, size=size, seconds=seconds)

    async def _continued(
        self, tenant: Tenant, known: _Known, key: bytes, grown: Grown, items: ChatItems
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
        pieces: list[EncodedPiece] = []
        rest = _NO_IDS
        try:
            if cut:
                pieces = await text.encode_pieces(whole[:cut], tenant, most)
            if cut < len(whole):
                rest = await text.encode(whole[cut:], tenant, add_special_tokens=False, most=most)
        except (InvalidRequestError, OverflowError):
            return None
        ids = b"".join([each.ids for each in pieces])
        first = np.frombuffer(ids, np.uint32)
        text.pieces.found_chars += encoded
        if not 0 < before.tokens + len(first) + len(rest) <= most:
            return None
        made = _hashed(at_point, first, rest, self._block_size, tenant)
        if not cut or point is None:
            return HashedPrompt(rest, made, at_point.packed, before.largest)
        parent = at_point.keys[-1] if at_point.keys else None
        kept = Beginning(parent, point, encoded + stays, whole[cut:stays])
        kept.digest = digest_of(whole[:cut])
        kept.starts = array("H", items.starts[len(at_point.starts) :])
        kept.calls = _NO_CALLS.union(items.calls, *(part.calls for part in known.parts[used:]))
        kept.is_open = items.is_open
        kept.add_ids(before, pieces, ids, made, self._block_size)
        if key in known.keys[used:] and text.pieces.get(key) is not None:
            text.pieces.forget(key)  # it was left in another way
        text.pieces.put_whole(key, kept, tenant)
        return HashedPrompt(rest, made, (*at_point.packed, kept.packed), kept.largest)

    def _is_too_long(self, chars: int) -> bool:
        """Whether a text with this number of characters is refused whatever it is."""
        most, characters = self._reader.limits.max_prompt_tokens, self._text.most_characters
        if chars > MAX_RENDERED_CHARS:
            return True
        return characters is not None and -(-chars // characters) > most


class ReadChat(Protocol[T_co]):
    """Reads a body, its chat as a request of this kind."""

    def __call__(self, body: bytes, kind: type[ChatRequest] = ...) -> T_co: ...


async def read_call(
    call: HttpCall,
    prompts: PromptReader,
    beginnings: KnownBeginnings | None,
    read: ReadChat[T],
    chat_of: Callable[[T], ChatRequest],
) -> tuple[T, HashedPrompt | None]:
    """What `read` reads of a call, and its prompt if a beginning of it may be known: then without
    its items. `chat_of` has the chat of that."""
    if beginnings is not None:
        apart = partial(read, kind=ChatApart)
        if (known := await beginnings.of_call(call, prompts, apart, chat_of)) is not None:
            return known
    found = await prompts.read_by(read, call.body)
    chat_of(found)
    return found, None


def _key(given: Given, lead: Messages) -> bytes:
    """Of what a template gets beside the messages of items, and no other."""
    if given == _NO_MORE and not lead:
        return b""
    return blake3(msgspec.json.encode((given, lead))).digest()


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
