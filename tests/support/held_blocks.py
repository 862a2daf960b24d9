"""Chains of blocks as engines name them, and what a tree says is held, read off its structure."""

from collections.abc import Iterable

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.tree._inspect import read_aliases, read_edges

TOP = 2**64 - 1


def chained_hashes(path: Iterable[int], salt: int) -> list[int]:
    """Keys as engines make them: a chained hash, the same for all who share the salt."""
    hashes, external_hash = [], salt
    for local in path:
        external_hash = hash((external_hash, local)) & TOP
        hashes.append(external_hash)
    return hashes


def read_holdings(tree: RadixTree) -> dict[WorkerWithDpRank, dict[int, tuple[int, ...]]]:
    """Each worker's truth: external hash -> path of local hashes."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    aliases = read_aliases(tree)
    found: dict[WorkerWithDpRank, dict[int, tuple[int, ...]]] = {w: {} for w in tree.workers()}
    for edge, parent, start, local_hashes, external_hashes, coverage in read_edges(tree):
        paths[edge] = paths[parent] + tuple(local_hashes)
        depth = len(paths[parent])
        for worker, blocks in coverage:
            for i in range(blocks):
                external_hash = aliases.get((worker, start + i), external_hashes[i])
                found[worker][external_hash] = paths[edge][: depth + i + 1]
    return found
