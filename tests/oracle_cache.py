"""The obvious prefix cache: what the mock engine's KV manager is held against."""


class PlainCache:
    """Lists and linear searches only. Blocks are whatever compares equal."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.holds: list[object] = []  # a block once for each holder
        self.unused: list[object] = []  # next to leave first

    @property
    def active(self) -> set[object]:
        return set(self.holds)

    @property
    def cached(self) -> set[object]:
        return {b for b in [*self.holds, *self.unused] if not self.is_partial(b)}

    @staticmethod
    def is_partial(block: object) -> bool:
        return isinstance(block, str)

    def use(self, blocks: list[object]) -> bool:
        if len(self.active | set(blocks)) > self.capacity:
            return False
        new = [b for b in blocks if b not in self.holds and b not in self.unused]
        self.unused = [b for b in self.unused if b not in blocks]
        while len(self.active | set(blocks)) + len(self.unused) > self.capacity and new:
            self.unused.pop(0)
        self.holds += blocks
        return True

    def deref(self, blocks: list[object]) -> None:
        for block in reversed(blocks):
            self.holds.remove(block)
            if block not in self.holds:
                self.unused.append(block)

    def destroy(self, partial: object) -> None:
        self.holds.remove(partial)

    def promote(self, partial: object, block: object) -> None:
        self.holds.remove(partial)
        if block in self.unused:
            self.unused.remove(block)
        self.holds.append(block)
