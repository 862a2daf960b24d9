"""What the index must say, in the plainest form: one node per block, one dict per node."""

from collections.abc import Iterable, Sequence

Worker = tuple[int, int]


class Refused(Exception):
    """An event that contradicts what is held; `code` as in EventError."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Node:
    def __init__(self, parent: "Node | None", local: int) -> None:
        self.parent = parent
        self.local = local
        self.children: dict[int, Node] = {}
        self.keys: dict[Worker, int] = {}  # who holds it, and under which hash

    def path(self) -> tuple[int, ...]:
        return () if self.parent is None else (*self.parent.path(), self.local)

    def is_above(self, other: "Node | None") -> bool:
        while other is not None and other is not self:
            other = other.parent
        return other is self


class OracleTree:
    def __init__(self) -> None:
        self.root = Node(None, 0)
        self.held: dict[Worker, dict[int, Node]] = {}

    def store(
        self, worker: Worker, parent: int | None, exts: Sequence[int], locals_: Sequence[int]
    ) -> None:
        held = self.held.setdefault(worker, {})
        if parent is not None and parent not in held:
            raise Refused("parent_not_found")
        node = self.root if parent is None else held[parent]
        for ext, local in zip(exts, locals_, strict=True):
            elsewhere = held.get(ext)
            if elsewhere is not None and elsewhere.is_above(node):
                raise Refused("invalid_sequence")
            if elsewhere is not None and elsewhere is not node.children.get(local):
                self.drop(worker, ext)
            node = node.children.setdefault(local, Node(node, local))
            if worker in node.keys:
                del held[node.keys[worker]]
            node.keys[worker] = ext
            held[ext] = node

    def remove(self, worker: Worker, exts: Iterable[int]) -> None:
        unknown = False
        for ext in exts:
            if ext in self.held.get(worker, {}):
                self.drop(worker, ext)
            else:
                unknown = True
        if unknown:
            raise Refused("block_not_found")

    def drop(self, worker: Worker, ext: int) -> None:
        node: Node | None = self.held[worker].pop(ext)
        assert node is not None
        del node.keys[worker]
        while node is not None and node.parent and not node.keys and not node.children:
            del node.parent.children[node.local]
            node = node.parent

    def clear(self, worker: Worker) -> None:
        for ext in list(self.held.get(worker, {})):
            self.drop(worker, ext)

    def drop_worker(self, worker: Worker) -> None:
        self.clear(worker)
        self.held.pop(worker, None)

    def match(self, locals_: Sequence[int]) -> dict[Worker, int]:
        """The contiguous prefix of each worker: once out, it stays out."""
        scores: dict[Worker, int] = {}
        node = self.root
        for depth, local in enumerate(locals_):
            if local not in node.children:
                break
            node = node.children[local]
            for worker in node.keys:
                if depth == 0 or scores.get(worker) == depth:
                    scores[worker] = depth + 1
        return scores

    def holdings(self) -> dict[Worker, dict[int, tuple[int, ...]]]:
        """Each worker's truth: external hash -> path of local hashes."""
        return {w: {ext: n.path() for ext, n in held.items()} for w, held in self.held.items()}

    def size(self) -> int:
        """Nodes that are held, or above one that is."""
        queue, n = [self.root], -1
        while queue:
            node = queue.pop()
            queue += node.children.values()
            n += 1
        return n
