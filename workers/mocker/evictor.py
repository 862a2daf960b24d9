"""LruEvictor: the order in which unused blocks leave the cache. Owned by the KV manager."""

from collections import OrderedDict
from collections.abc import Iterator


class LruEvictor:
    """A set of block ids in strict order: `evict` takes the one that was inserted longest ago."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def insert(self, block: int) -> None:
        """Make `block` the last to leave, whether or not it was here."""
        self._order[block] = None
        self._order.move_to_end(block)

    def push_front(self, block: int) -> None:
        """Make `block` the first to leave, whether or not it was here."""
        self._order[block] = None
        self._order.move_to_end(block, last=False)

    def discard(self, block: int) -> bool:
        """Take `block` out of the order; False if it was not in it."""
        if block not in self._order:
            return False
        del self._order[block]
        return True

    def evict(self) -> int:
        """Take out the block whose turn it is; KeyError if there is none."""
        return self._order.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order

    def __iter__(self) -> Iterator[int]:
        """The blocks, first to leave first."""
        return iter(self._order)
