"""How many prompt tokens a cache of each size would save: LRU stack distances of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._stack_distance import stack_distances
from .prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class CacheCurve:
    """What one LRU cache in front of the whole trace would hit, for every size at once.

    The cache holds whole blocks, takes a prompt's blocks in when it arrives, and evicts a prefix
    after what follows it. A pool of caches that are routed to perfectly is one cache of their sum.
    `distances` has, ascending, the size in tokens from which on each reused block is hit, and
    `tokens` how many tokens that block then saves, summed up to it.
    """

    distances: NDArray[np.int64]
    tokens: NDArray[np.int64]
    total_tokens: int

    def hit_rate(self, cache_tokens: float) -> float:
        """The share of all prompt tokens that a cache of this size hits."""
        hits = int(np.searchsorted(self.distances, cache_tokens, "right"))
        return int(self.tokens[hits - 1]) / self.total_tokens if hits else 0.0

    @property
    def hit_rate_infinite(self) -> float:
        """The share of tokens in blocks that any earlier request had."""
        return self.hit_rate(np.inf)

    def curve(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """(cache tokens, hit rate) for each size."""
        return [(size, self.hit_rate(size)) for size in sizes]


def build_curve(tree: PrefixTree) -> CacheCurve:
    """The curve of a trace, in O(n log n)."""
    columns = tree.columns
    size = columns.block_size
    blocks = stack_distances(tree.nodes, columns.offsets, len(tree))
    worth = block_tokens(tree)
    reused = np.flatnonzero(blocks > 0)
    order = reused[np.argsort(blocks[reused], kind="stable")]
    return CacheCurve(
        blocks[order] * size, np.cumsum(worth[order]), int(columns.input_lengths.sum())
    )


def block_tokens(tree: PrefixTree) -> NDArray[np.int64]:
    """Per position of the trace: the tokens of that block; only a prompt's last may be partial."""
    columns = tree.columns
    worth = np.full(len(tree.nodes), columns.block_size, np.int64)
    worth[columns.offsets[1:] - 1] -= columns.blocks * columns.block_size - columns.input_lengths
    return worth


def default_sizes(largest_tokens: int) -> list[int]:
    """Cache sizes to report: 125k tokens and its doublings, up to the first that holds it all."""
    sizes = [125_000]
    while sizes[-1] < largest_tokens:
        sizes.append(sizes[-1] * 2)
    return sizes
