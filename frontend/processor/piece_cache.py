"""What was made of pieces of texts, as their ids, kept within a number of bytes and shared fairly
among tenants.

A beginning of a conversation is made of pieces, and has their ids: they are found there, and kept
by themselves only where no beginning has them.
"""

from collections import OrderedDict
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from ...workers.dialects import unpack_tokens

OVERHEAD = 400
"""Bytes that a piece takes beside its ids: its key, places in tables, heads of objects."""
PART_OVERHEAD = 150
"""The same of one whose ids are a part of something else."""
KEY_BYTES = 16
"""Of the key of a piece."""
SHARE_OVERHEAD = 2000
"""Bytes that a namespace of an account takes beside its pieces."""


class Tenant(NamedTuple):
    """Whose text it is. Only requests of the same cache namespace find it again; it counts as used
    by the account that brought it."""

    account: str = ""
    namespace: int | None = None

    @property
    def name(self) -> str | None:
        """The namespace's, for hashes of blocks."""
        return None if self.namespace is None else str(self.namespace)


NO_TENANT = Tenant()


class Whole(Protocol):
    """What has ids of pieces. Its length is in bytes."""

    def __len__(self) -> int: ...

    @property
    def part_keys(self) -> bytes:
        """Keys of these pieces, one behind the other."""
        ...

    def part(self, key: bytes) -> bytes:
        """The ids of one of them, as numbers of 32 bits."""
        ...


class _Share:
    """What an account has, or of it a namespace: pieces, or shares of its own. The oldest first.

    `by_size` has a table for each power of two. `used` grows with each use.
    """

    __slots__ = ("by_size", "name", "parent", "parts", "pieces", "size", "used")

    def __init__(self, parent: "_Share | None", name: object) -> None:
        self.parent, self.name = parent, name
        self.size = self.used = 0
        self.parts: dict[object, _Share] = {}
        self.by_size: dict[int, OrderedDict[object, _Share]] = {}
        self.pieces: OrderedDict[bytes, bytes | Whole] = OrderedDict()

    def part(self, name: object) -> "_Share":
        found = self.parts.get(name)
        if found is None:
            found = self.parts[name] = _Share(self, name)
        return found

    def add(self, size: int) -> None:
        """Add `size` bytes, fewer than 0 if they are taken away, here and to all above."""
        before, self.size = self.size, self.size + size
        parent = self.parent
        if parent is None:
            return
        if before:
            parent._forget(self, before.bit_length())
        if self.size:
            same = parent.by_size.setdefault(self.size.bit_length(), OrderedDict())
            same[self.name] = self
            if size < 0:  # it loses more before others of its size do
                same.move_to_end(self.name, last=False)
        else:
            del parent.parts[self.name]
        parent.add(size)

    def use(self, now: int) -> None:
        """It is in use."""
        self.used, parent = now, self.parent
        if parent is not None:
            parent.by_size[self.size.bit_length()].move_to_end(self.name)
            parent.use(now)

    def loser(self) -> "_Share":
        """The share that loses its oldest piece: at each step the part that was not used for
        longest, of those that have more than half of an equal part."""
        share = self
        while share.by_size:
            least = share.size // (2 * len(share.parts))
            oldest = [next(iter(same.values())) for same in share.by_size.values()]
            larger = [each for each in oldest if each.size > least]
            share = min(larger, key=_used) if larger else max(oldest, key=_size)
        return share

    def _forget(self, part: "_Share", power: int) -> None:
        same = self.by_size[power]
        del same[part.name]
        if not same:
            del self.by_size[power]


def _keys(whole: Whole) -> list[bytes]:
    # No generator: CPython 3.13.0 crashes where it has no memory to begin one.
    keys = whole.part_keys
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


_used, _size = attrgetter("used"), attrgetter("size")


class PieceCache:
    """Of all tokenizers of a process, on the event loop. What was not used for longest goes first;
    but half of an equal part is left to each account, and within it to each namespace."""

    def __init__(self, most_bytes: int) -> None:
        """0: nothing is kept."""
        self.most_bytes = most_bytes
        self.found_chars = self.encoded_chars = self.dropped = 0
        """characters whose ids were kept, and were not; pieces dropped to make room"""
        self.checks = {"same": 0, "differs": 0, "unsure": 0}
        """turns of long chats that were written as a whole, too, by what came of it"""
        self._root = _Share(None, None)
        self._shares: dict[bytes, _Share] = {}
        self._wholes: dict[bytes, bytes] = {}
        """of pieces that are parts, the key of what has them: what was kept last"""
        self._last_used: _Share | None = None
        self._uses = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return self._root.size

    def __len__(self) -> int:
        return len(self._shares)

    def get(self, key: bytes) -> Any:
        """What is kept under a key; None: nothing."""
        share = self._shares.get(key)
        if share is None:
            return None
        if share is not self._last_used:
            self._use(share)
        pieces = share.pieces
        pieces.move_to_end(key)
        return pieces[key]

    def ids(self, key: bytes) -> bytes | None:
        """The ids of a piece as numbers of 32 bits, wherever they are; None: they are not kept."""
        if (whole := self._wholes.get(key)) is not None:
            made: bytes = self.get(whole).part(key)
            return made
        packed = self.get(key)
        return None if packed is None else unpack_tokens(packed, 0, len(packed))

    def put_whole(self, key: bytes, whole: Whole, tenant: Tenant) -> None:
        """Keep it, for the account; its parts are then found in it, and go with it."""
        self.put(key, whole, tenant)
        share = self._shares.get(key)
        if share is None or share.pieces[key] is not whole:
            return
        try:
            for part in _keys(whole):
                if self._shares.get(part) is share:
                    self.forget(part)
                self._wholes[part] = key
        except BaseException:  # as in `put`
            self._forget_all()
            raise

    def put(self, key: bytes, ids: bytes | Whole, tenant: Tenant) -> None:
        """Keep the ids of a piece, as engines get them, or what has its bytes as its length, for
        the account."""
        size = len(ids) + OVERHEAD
        if key in self._shares or size + SHARE_OVERHEAD > self.most_bytes:
            return
        try:
            share = self._root.part(tenant.account).part(tenant.namespace)
            if not share.pieces:
                size += SHARE_OVERHEAD
            share.pieces[key] = ids
            self._shares[key] = share
            share.add(size)
            self._use(share)
            while self._root.size > self.most_bytes:
                self._drop()
        except BaseException:  # for want of memory: what is half kept would fail all that follow
            self._forget_all()
            raise

    def _forget_all(self) -> None:
        """Be empty. Takes no memory."""
        root, self._last_used = self._root, None
        root.parts.clear()
        root.by_size.clear()
        root.size = 0
        self._shares.clear()
        self._wholes.clear()

    def forget(self, key: bytes) -> None:
        """What is kept under a key is of no use any more."""
        share = self._shares.pop(key)
        try:
            kept = share.pieces.pop(key)
            size = len(kept) + OVERHEAD
            if not isinstance(kept, bytes):
                for part in _keys(kept):
                    if self._wholes.get(part) == key:
                        del self._wholes[part]
            share.add(-size - (0 if share.pieces else SHARE_OVERHEAD))
        except BaseException:  # as in `put`
            self._forget_all()
            raise
        self._last_used = None  # it lost its place

    def _use(self, share: _Share) -> None:
        self._last_used = share
        self._uses += 1
        share.use(self._uses)

    def _drop(self) -> None:
        self.forget(next(iter(self._root.loser().pieces)))
        self.dropped += 1
