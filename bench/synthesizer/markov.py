"""The Markov model of a trace: a walk down the shared prefix tree, then an end of one's own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..traces import PrefixTree
from .empirical import Empirical, empirical

START = -1  # source of a walk: before any block
LEAF = -2  # target: the rest of the prompt is no other prompt's ("cache end")
END = -3  # target: the prompt ends here, all of it shared
WINDOW = 128


@dataclass(frozen=True, eq=False)
class MarkovModel:
    """What walks are drawn from; lengths of chains and leaves in blocks.

    A chain is a run of blocks that the same requests visited, all of it shared: `chain_parents`
    (START at the top), `chain_lengths`, `chain_stems` (outlives any session, see PrefixTree.stems),
    `chain_residuals` (tokens in the last block of a prompt that ends there, 0 if none does).

    Transitions are counted per window of requests: rows `window_offsets[w]` to
    `window_offsets[w + 1]` say how often a walk went from `sources` (a chain or START) to
    `targets` (a chain, LEAF or END), ordered by both. One window for the whole trace makes a
    memoryless walk; short ones let prefixes come and go as they did.

    A leaf's length depends on how deep it hangs, coarsely: `leaves` by `depth_class`. Residuals
    (tokens in a leaf's last block) and outputs depend on nothing.
    """

    requests: int
    window: int
    chain_parents: NDArray[np.int64]
    chain_lengths: NDArray[np.int64]
    chain_stems: NDArray[np.bool_]
    chain_residuals: NDArray[np.int64]
    window_offsets: NDArray[np.int64]
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    counts: NDArray[np.int64]
    leaves: tuple[Empirical, ...]
    residuals: Empirical
    outputs: Empirical

    def transition_cdf(self, source: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Where walks go from a chain or START, ascending, and the shares summed up to there.

        Of the whole trace. Both are empty where no walk came by.
        """
        here = self.sources == source
        targets, inverse = np.unique(self.targets[here], return_inverse=True)
        counts = np.bincount(inverse, self.counts[here], minlength=len(targets))
        return targets, np.cumsum(counts) / max(1.0, counts.sum())


def depth_class(depth: int) -> int:
    """Two classes to each doubling of a depth in blocks."""
    return ((depth + 1) * (depth + 1)).bit_length() - 1


def chain_depths(parents: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[int]:
    """Blocks from the start (START) to the end of each chain; a parent has a lower number."""
    depths: list[int] = []
    for parent, length in zip(parents.tolist(), lengths.tolist(), strict=True):
        depths.append(length + (0 if parent == START else depths[parent]))
    return depths


def learn_markov(tree: PrefixTree, window: int = WINDOW) -> MarkovModel:
    """The model of a trace with a set of transitions for every `window` requests (0: only one)."""
    columns = tree.columns
    window = min(window, len(columns)) or len(columns)
    chains = _contract(tree)
    shared_depths = tree.depth_within(tree.shared)
    own_blocks = columns.blocks - shared_depths
    ends = own_blocks == 0
    residuals = columns.input_lengths - (columns.blocks - 1) * columns.block_size

    requests, sources, targets = _transitions(tree, chains, ends)
    # Rows of one window stand together and are counted once per (source, target).
    order = np.lexsort((targets, sources, requests // window))
    keys = np.stack([requests // window, sources, targets])[:, order]
    starts = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    starts = np.concatenate([[0], starts])
    rows = keys[:, starts]
    windows = -(-len(columns) // window)

    classes = np.array([depth_class(depth) for depth in range(int(shared_depths.max()) + 1)])
    of_leaf = np.where(ends, -1, classes[shared_depths])
    return MarkovModel(
        requests=len(columns),
        window=window,
        chain_parents=chains.parents,
        chain_lengths=chains.lengths,
        chain_stems=tree.stems[chains.tails],
        chain_residuals=_end_residuals(tree, chains, ends, residuals),
        window_offsets=np.searchsorted(rows[0], np.arange(windows + 1)),
        sources=rows[1],
        targets=rows[2],
        counts=np.diff(np.concatenate([starts, [len(order)]])),
        leaves=tuple(
            empirical(own_blocks[of_leaf == each]) for each in range(int(of_leaf.max()) + 1)
        ),
        residuals=empirical(residuals[~ends]),
        outputs=empirical(columns.output_lengths),
    )


@dataclass(frozen=True, eq=False)
class _Chains:
    parents: NDArray[np.int64]  # chain before it, START at the top
    lengths: NDArray[np.int64]
    tails: NDArray[np.int64]  # its last node
    of_tail: NDArray[np.int64]  # per node: the chain that ends there, or -1


def _contract(tree: PrefixTree) -> _Chains:
    """The shared nodes, those with one parent and its number of visits joined to it."""
    shared = np.flatnonzero(tree.shared)
    parents = tree.parents[shared]
    joined = np.zeros(len(tree), np.bool_)
    inner = parents >= 0
    joined[shared[inner]] = tree.visits[shared[inner]] == tree.visits[parents[inner]]
    # Every node finds the head of its chain by doubling its jumps.
    heads = np.where(joined, tree.parents, np.arange(len(tree)))
    while True:
        further = heads[heads]
        if np.array_equal(further, heads):
            break
        heads = further
    # A chain's tail is the node that no node is joined to.
    goes_on = np.zeros(len(tree), np.bool_)
    goes_on[tree.parents[joined]] = True
    tails = shared[~goes_on[shared]]
    tails = tails[np.argsort(heads[tails], kind="stable")]
    of_head = np.full(len(tree), -1, np.int64)
    of_head[heads[tails]] = np.arange(len(tails))
    of_tail = np.full(len(tree), -1, np.int64)
    of_tail[tails] = np.arange(len(tails))
    above = tree.parents[heads[tails]]
    return _Chains(
        parents=np.where(above < 0, START, of_tail[above]),
        lengths=np.bincount(of_head[heads[shared]], minlength=len(tails)),
        tails=tails,
        of_tail=of_tail,
    )


def _transitions(
    tree: PrefixTree, chains: _Chains, ends: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(request, source, target) of every step of every walk."""
    columns = tree.columns
    reached = chains.of_tail[tree.nodes]
    places = np.flatnonzero(reached >= 0)
    targets = reached[places]
    requests = np.searchsorted(columns.offsets, places, "right") - 1
    first = np.ones(len(places), np.bool_)
    first[1:] = requests[1:] != requests[:-1]
    sources = np.where(first, START, np.roll(targets, 1))
    last_chain = np.full(len(columns), START, np.int64)
    last_chain[requests] = targets  # the last assignment stays
    return (
        np.concatenate([requests, np.arange(len(columns))]),
        np.concatenate([sources, last_chain]),
        np.concatenate([targets, np.where(ends, END, LEAF)]),
    )


def _end_residuals(
    tree: PrefixTree, chains: _Chains, ends: NDArray[np.bool_], residuals: NDArray[np.int64]
) -> NDArray[np.int64]:
    found = np.zeros(len(chains.tails), np.int64)
    last_nodes = tree.nodes[tree.columns.offsets[1:] - 1]
    found[chains.of_tail[last_nodes[ends]]] = residuals[ends]
    return found
