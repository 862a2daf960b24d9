"""How a router that starts gets the index of one that runs: who asks for what, who answers. Pure.

The one that starts asks all; those that have an index of the same kind offer a copy; it fetches the
largest, a few chunks at a time. Messages may be lost, doubled and reordered: what is missing is
asked for again, and after that another offer is taken, or none.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import xxhash

from ..indexer.event_index import SnapshotHead

CHUNK_BYTES = 256 << 10
WINDOW = 8
"""Chunks that are asked for at a time."""
MAX_INDEX_BYTES = 512 << 20
WANT_S = 0.3
"""How often the others are asked,"""
NO_OFFER_S = 1.0
"""and how long without an offer until there is none."""
CHOOSE_S = 0.15
"""How long after the first offer others may still come."""
RETRY_S = 0.5
"""Between two requests for the same chunks."""
RETRIES = 4
FRESH_S = 2.0
"""A copy is offered again for so long,"""
KEEP_S = 30.0
"""and kept for so long after it was last asked for."""
MAX_ASKERS = 64
MAX_CHUNKS_PER_S = 512


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """To all: who has an index of this kind?"""

    asker: int
    head: SnapshotHead


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """To the asker: a copy of this many bytes."""

    holder: int
    copy: int
    size: int
    checksum: int
    """XXH3-64 of all of it"""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """To the holder: these chunks of a copy."""

    asker: int
    copy: int
    numbers: tuple[int, ...]


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """To the asker: a part of a copy; all but the last are CHUNK_BYTES long."""

    copy: int
    number: int
    data: bytes


Message: TypeAlias = Wanted | Offer | Fetch | Chunk
Outgoing: TypeAlias = tuple[int | None, Message]
"""A message, and the router that it is for; None: all."""


@dataclass(frozen=True, slots=True)
class IndexCopy:
    """A copy of an index with its checksum. To make one takes as long as to read all of it: not for
    an event loop."""

    data: bytes
    checksum: int

    @classmethod
    def of(cls, data: bytes) -> "IndexCopy":
        return cls(data, xxhash.xxh3_64_intdigest(data))


class IndexBorrower:
    """The part of the router that starts. Times are seconds that never go back."""

    def __init__(self, router_id: int, head: SnapshotHead) -> None:
        self._id, self._head = router_id, head
        self._began = self._wanted_at = self._asked_at = float("-inf")
        self._first_offer = float("inf")
        self._offers: dict[int, Offer] = {}  # by holder
        self._taken: Offer | None = None
        self._chunks: dict[int, bytes] = {}
        self._checked = 0  # chunks, from the first on, that are in `_digest`
        self._digest = xxhash.xxh3_64()
        self._asked: set[int] = set()
        self._retries = 0
        self.index: list[bytes] | None = None
        """the copy's chunks in their order, once it is whole"""
        self.failed = False
        """no other router has one, or none could be fetched"""

    @property
    def done(self) -> bool:
        return self.failed or self.index is not None

    def begin(self, now: float) -> list[Outgoing]:
        self._began = now
        return self.tick(now)

    def tick(self, now: float) -> list[Outgoing]:
        """What is to be sent at this time. Due every few hundredths of a second until `done`."""
        if self.done:
            return []
        if self._taken is None:
            return self._look_for_offers(now)
        if now - self._asked_at < RETRY_S:
            return []
        self._retries += 1
        if self._retries > RETRIES:
            return self._take_next(now)
        return self._fetch(now)

    def on_message(self, message: Message, now: float) -> list[Outgoing]:
        """What is to be sent because of it."""
        if self.done:
            return []
        if isinstance(message, Offer):
            if 0 < message.size <= MAX_INDEX_BYTES and len(self._offers) < MAX_ASKERS:
                self._offers.setdefault(message.holder, message)
                self._first_offer = min(self._first_offer, now)
        elif isinstance(message, Chunk) and self._takes(message):
            self._chunks[message.number] = message.data
            self._asked.discard(message.number)
            self._retries = 0
            self._check()
            if len(self._chunks) == _chunks_of(self._size):
                return self._finish(now)
            if not self._asked:
                return self._fetch(now)
        return []

    @property
    def _size(self) -> int:
        assert self._taken is not None
        return self._taken.size

    def _look_for_offers(self, now: float) -> list[Outgoing]:
        if now - self._first_offer >= CHOOSE_S:
            return self._take_next(now)
        if now - self._began >= NO_OFFER_S and not self._offers:
            self.failed = True
        elif now - self._wanted_at >= WANT_S:
            self._wanted_at = now
            return [(None, Wanted(self._id, self._head))]
        return []

    def _take_next(self, now: float) -> list[Outgoing]:
        self._chunks, self._asked, self._retries = {}, set(), 0
        self._digest, self._checked = xxhash.xxh3_64(), 0
        if not self._offers:
            self.failed = True
            return []
        holder = max(self._offers, key=lambda holder: self._offers[holder].size)
        self._taken = self._offers.pop(holder)
        return self._fetch(now)

    def _fetch(self, now: float) -> list[Outgoing]:
        assert self._taken is not None
        missing = (n for n in range(self._checked, _chunks_of(self._size)) if n not in self._chunks)
        numbers = tuple(number for number, _ in zip(missing, range(WINDOW), strict=False))
        self._asked, self._asked_at = set(numbers), now
        return [(self._taken.holder, Fetch(self._id, self._taken.copy, numbers))]

    def _takes(self, chunk: Chunk) -> bool:
        if self._taken is None or chunk.copy != self._taken.copy or chunk.number in self._chunks:
            return False
        return 0 <= chunk.number < _chunks_of(self._size) and len(chunk.data) == min(
            CHUNK_BYTES, self._size - chunk.number * CHUNK_BYTES
        )

    def _check(self) -> None:
        """Take into the checksum what is there from the beginning on: at most the chunks of one
        window at a time."""
        while (chunk := self._chunks.get(self._checked)) is not None:
            self._digest.update(chunk)
            self._checked += 1

    def _finish(self, now: float) -> list[Outgoing]:
        assert self._taken is not None
        if self._digest.intdigest() != self._taken.checksum:
            return self._take_next(now)
        chunks, self._chunks = self._chunks, {}
        self.index = [chunks[number] for number in range(len(chunks))]
        return []


class IndexLender:
    """The part of a router that runs. It has one copy at a time."""

    def __init__(self, router_id: int, head: SnapshotHead) -> None:
        self._id, self._head = router_id, head
        self._copy: IndexCopy | None = None
        self._number = 0
        self._made_at = self._used_at = self._second_began = float("-inf")
        self._sent = 0  # chunks, in this second
        self._askers: set[int] = set()
        self.wants_copy = False
        """whether a copy is to be made, and given to `lend`"""

    def on_message(self, message: Message, now: float) -> list[Outgoing]:
        """What is to be sent because of it."""
        if isinstance(message, Wanted):
            return self._on_wanted(message, now)
        if isinstance(message, Fetch):
            return self._on_fetch(message, now)
        return []

    def lend(self, copy: IndexCopy | None, now: float) -> list[Outgoing]:
        """A copy was made; None: there is nothing to offer."""
        askers, self._askers, self.wants_copy = self._askers, set(), False
        if copy is None or not 0 < len(copy.data) <= MAX_INDEX_BYTES:
            return []
        self._copy, self._made_at, self._used_at = copy, now, now
        self._number += 1
        return self._offers(askers)

    def tick(self, now: float) -> None:
        """Drop a copy that is not asked for any more."""
        if self._copy is not None and now - self._used_at >= KEEP_S:
            self._copy = None

    def _on_wanted(self, wanted: Wanted, now: float) -> list[Outgoing]:
        if wanted.asker == self._id or wanted.head != self._head:
            return []
        if self._copy is not None and now - self._made_at < FRESH_S:
            return self._offers([wanted.asker])
        if len(self._askers) < MAX_ASKERS and not self._is_lent(now):
            self._askers.add(wanted.asker)
            self.wants_copy = True
        return []

    def _is_lent(self, now: float) -> bool:
        """Whether a peer is fetching the present copy, so that it has to stay as it is."""
        return self._copy is not None and now - self._used_at < RETRIES * RETRY_S

    def _offers(self, askers: Collection[int]) -> list[Outgoing]:
        assert self._copy is not None
        offer = Offer(self._id, self._number, len(self._copy.data), self._copy.checksum)
        return [(asker, offer) for asker in sorted(askers)]

    def _on_fetch(self, fetch: Fetch, now: float) -> list[Outgoing]:
        if self._copy is None or fetch.copy != self._number:
            return []
        if now - self._second_began >= 1.0:
            self._second_began, self._sent = now, 0
        self._used_at = now
        chunks: list[Outgoing] = []
        data = self._copy.data
        for number in fetch.numbers[:WINDOW]:
            if 0 <= number < _chunks_of(len(data)) and self._sent < MAX_CHUNKS_PER_S:
                part = data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                chunks.append((fetch.asker, Chunk(self._number, number, part)))
                self._sent += 1
        return chunks


def _chunks_of(size: int) -> int:
    return -(-size // CHUNK_BYTES)
