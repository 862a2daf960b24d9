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
        self.external_hashes: dict[Worker, int] = {}  # who holds it, and under which hash

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
        self,
        worker: Worker,
        parent: int | None,
        external_hashes: Sequence[int],
        local_hashes: Sequence[int],
    ) -> None:
        held = self.held.setdefault(worker, {})
        if parent is not None and parent not in held:
            raise Refused("parent_not_found")
        node = self.root if parent is None else held[parent]
        for external_hash, local in zip(external_hashes, local_hashes, strict=True):
            elsewhere = held.get(external_hash)
            if elsewhere is not None and elsewhere.is_above(node):
                raise Refused("invalid_sequence")
            if elsewhere is not None and elsewhere is not node.children.get(local):
                self.drop(worker, external_hash)
            node = node.children.setdefault(local, Node(node, local))
            if worker in node.external_hashes:
                del held[node.external_hashes[worker]]
            node.external_hashes[worker] = external_hash
            held[external_hash] = node

    def remove(self, worker: Worker, external_hashes: Iterable[int]) -> None:
        unknown = False
        for external_hash in external_hashes:
            if external_hash in self.held.get(worker, {}):
                self.drop(worker, external_hash)
            else:
                unknown = True
        if unknown:
            raise Refused("block_not_found")

    def drop(self, worker: Worker, external_hash: int) -> None:
        node: Node | None = self.held[worker].pop(external_hash)
        assert node is not None
        del node.external_hashes[worker]
        while node is not None and node.parent and not node.external_hashes and not node.children:
            del node.parent.children[node.local]
            node = node.parent

    def clear(self, worker: Worker) -> None:
        for external_hash in list(self.held.get(worker, {})):
            self.drop(worker, external_hash)

    def drop_worker(self, worker: Worker) -> None:
        self.clear(worker)
        self.held.pop(worker, None)

    def match(self, local_hashes: Sequence[int]) -> dict[Worker, int]:
        """The contiguous prefix of each worker: once out, it stays out."""
        scores: dict[Worker, int] = {}
        node = self.root
        for depth, local in enumerate(local_hashes):
            if local not in node.children:
                break
            node = node.children[local]
            for worker in node.external_hashes:
                if depth == 0 or scores.get(worker) == depth:
                    scores[worker] = depth + 1
        return scores

    def holdings(self) -> dict[Worker, dict[int, tuple[int, ...]]]:
        """Each worker's truth: external hash -> path of local hashes."""
        return {
            w: {external_hash: n.path() for external_hash, n in held.items()}
            for w, held in self.held.items()
        }

    def size(self) -> int:
        """Nodes that are held, or above one that is."""
        queue, n = [self.root], -1
        while queue:
            node = queue.pop()
            queue += node.children.values()
            n += 1
        return n
