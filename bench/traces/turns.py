"""Which request of a trace carries on from which: its sessions, seen from the prefixes alone."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class Turns:
    """Per request; requests are named by their index, depths are in blocks.

    A request follows `parents[i]`, the last one before it with the deepest block they share, if
    that block lies below the stems (else -1: it opens a session). `shared` are the leading blocks
    it takes over: from its parent, or from its stem. `numbers`
    counts a session's turns from 0 along the parents, and `sessions` names the opening request.
    """

    parents: NDArray[np.int64]
    shared: NDArray[np.int64]
    numbers: NDArray[np.int64]
    sessions: NDArray[np.int64]

    @cached_property
    def session_sizes(self) -> NDArray[np.int64]:
        """How many requests each session has, by its opening request."""
        return np.unique(self.sessions, return_counts=True)[1]

    def session_spans(self, timestamps_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per session of several requests: the ms from its first to its last."""
        _, first, counts = np.unique(self.sessions, return_index=True, return_counts=True)
        last = len(self.sessions) - 1 - np.unique(self.sessions[::-1], return_index=True)[1]
        several = counts > 1
        found: NDArray[np.float64] = timestamps_ms[last[several]] - timestamps_ms[first[several]]
        return found

    def history_shares(self, full_blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Per request that follows one: the share of that one's full blocks it takes over."""
        follows = self.parents >= 0
        history = np.maximum(1, full_blocks[self.parents[follows]])
        return np.minimum(1.0, self.shared[follows] / history)

    def gaps(self, timestamps_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per request that follows one, in order: the ms since then."""
        follows = self.parents >= 0
        found: NDArray[np.float64] = timestamps_ms[follows] - timestamps_ms[self.parents[follows]]
        return found


def find_turns(tree: PrefixTree) -> Turns:
    """The turns of a trace."""
    stem_depths = tree.depth_within(tree.stems)
    known = tree.known.astype(np.int64)
    follows = known > stem_depths
    parents = np.where(follows, tree.latest, -1)
    numbers = [0] * len(parents)
    sessions = list(range(len(parents)))
    # A parent comes before its children, so one pass in order settles all.
    for request in np.flatnonzero(follows).tolist():
        parent = int(parents[request])
        numbers[request] = numbers[parent] + 1
        sessions[request] = sessions[parent]
    return Turns(
        parents=parents,
        shared=np.where(follows, known, stem_depths),
        numbers=np.array(numbers, np.int64),
        sessions=np.array(sessions, np.int64),
    )
