"""An index in plain Python, with the calls of the index benchmark's adapters."""

from typing import Any

from dynamo_router.bench.workbench.index.workload import Prompt, Removed, Stored


class Dicts:
    """The obvious index in plain Python: a dict of children and a set of workers per block."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}
        self._held: dict[int, dict[int, tuple[dict[int, Any], set[int]]]] = {}

    def ready_store(self, op: Stored) -> Any:
        return op.worker, op.parent, op.sequence_hashes.tolist(), op.local_hashes.tolist()

    def ready_match(self, op: Prompt) -> Any:
        return op.local_hashes.tolist()

    def ready_remove(self, op: Removed) -> Any:
        return op.worker, op.sequence_hashes.tolist()

    def store(self, ready: Any, /) -> None:
        worker, parent, blocks, local_hashes = ready
        held = self._held.setdefault(worker, {})
        children = self._root if parent is None else held[parent][0]
        for block, local_hash in zip(blocks, local_hashes, strict=True):
            node = children.get(local_hash)
            if node is None:
                node = children[local_hash] = ({}, set())
            node[1].add(worker)
            held[block] = node
            children = node[0]

    def match(self, ready: Any, /) -> object:
        scores: dict[int, int] = {}
        active: set[int] | None = None
        children, depth = self._root, 0
        for local_hash in ready:
            node = children.get(local_hash)
            if node is None:
                break
            staying = node[1] if active is None else active & node[1]
            if active is not None and len(staying) < len(active):
                scores.update(dict.fromkeys(active - staying, depth))
            if not staying:
                return scores
            active = set(staying)
            depth += 1
            children = node[0]
        scores.update(dict.fromkeys(active or (), depth))
        return scores

    def remove(self, ready: Any, /) -> None:
        worker, blocks = ready
        held = self._held[worker]
        for block in blocks:
            held.pop(block)[1].discard(worker)

    def remove_worker(self, worker: int, /) -> None:
        for _, holders in self._held.pop(worker, {}).values():
            holders.discard(worker)

    def scores(self, matched: Any) -> dict[int, int]:
        return dict(matched)
