"""A tree written down as events that rebuild it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from ...base.identity import WorkerWithDpRank
from ..wire import EventData, Removed, RouterEvent, Stored, StoredBlock
from ._inspect import read_aliases, read_edges
from ._radix import RadixTree

MAX_HASH = 2**64 - 1


@dataclass(frozen=True)
class _Edge:
    parent: int
    start: int
    local_hashes: Sequence[int]
    external_hashes: Sequence[int]
    coverage: dict[WorkerWithDpRank, int]


def dump_events(tree: RadixTree) -> Iterator[RouterEvent]:
    """Events that rebuild what every worker holds, in any tree, with ids from 0 on.

    One stored event per worker and run of blocks, parents first. A run below blocks that its
    worker holds no more is stored together with those, which are then removed again, so such a
    dump has removed events too. Workers that hold nothing are not in it.
    """
    ids = count()
    for worker, data in _Dump(tree).events():
        yield RouterEvent(worker, next(ids), data)


class _Dump:
    def __init__(self, tree: RadixTree) -> None:
        self.aliases = read_aliases(tree)
        self.edges = {
            edge: _Edge(parent, start, local_hashes, external_hashes, dict(coverage))
            for edge, parent, start, local_hashes, external_hashes, coverage in read_edges(tree)
        }
        self._external_hashes: dict[WorkerWithDpRank, set[int]] = {}

    def events(self) -> Iterator[tuple[WorkerWithDpRank, EventData]]:
        for edge in self.edges.values():
            for worker, blocks in edge.coverage.items():
                holes, anchor = self.holes_above(worker, edge)
                invented = self.invent_hashes(worker, [external_hash for external_hash, _ in holes])
                chain = [
                    StoredBlock(external_hash, hole[1])
                    for external_hash, hole in zip(invented, holes, strict=True)
                ]
                chain += [
                    StoredBlock(self.external_hash(worker, edge, i), edge.local_hashes[i])
                    for i in range(blocks)
                ]
                yield worker, Stored(anchor, tuple(chain))
                if holes:
                    yield worker, Removed(tuple(invented))

    def external_hash(self, worker: WorkerWithDpRank, edge: _Edge, i: int) -> int:
        """What the worker calls block i of the edge."""
        return self.aliases.get((worker, edge.start + i), edge.external_hashes[i])

    def holes_above(
        self, worker: WorkerWithDpRank, edge: _Edge
    ) -> tuple[list[tuple[int, int]], int | None]:
        """(external, local) of the blocks between the edge and the next one above that the worker
        holds, from above; and what it calls that one, None if there is none."""
        holes: list[tuple[int, int]] = []
        while edge.parent != 0:
            edge = self.edges[edge.parent]
            held = edge.coverage.get(worker, 0)
            holes[:0] = zip(edge.external_hashes[held:], edge.local_hashes[held:], strict=True)
            if held:
                return holes, self.external_hash(worker, edge, held - 1)
        return holes, None

    def invent_hashes(self, worker: WorkerWithDpRank, wanted: Iterable[int]) -> list[int]:
        """Hashes that the worker has for no block, near the wanted ones."""
        invented: list[int] = []
        for invented_hash in wanted:
            while invented_hash in self.hashes_of(worker) or invented_hash in invented:
                invented_hash = (invented_hash + 1) & MAX_HASH
            invented.append(invented_hash)
        return invented

    def hashes_of(self, worker: WorkerWithDpRank) -> set[int]:
        if worker not in self._external_hashes:
            self._external_hashes[worker] = {
                self.external_hash(worker, edge, i)
                for edge in self.edges.values()
                for i in range(edge.coverage.get(worker, 0))
            }
        return self._external_hashes[worker]
