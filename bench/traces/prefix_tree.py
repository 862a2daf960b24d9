"""The prefix tree of a trace: which blocks follow which, and how often each one is visited."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ._chains import ChainTable
from .columns import TraceColumns
from .trace import two_parents
from .trace_lines import TraceError

STEM_BRANCHES = 16  # continuations that make a stem; in a short trace fewer,
STEM_SHARE = 64  # one for this many requests,
STEM_LEAST = 4  # but at least this many
STEM_LIFE = 0.5


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Nodes are blocks, numbered as they first appear, so a parent's number is below its child's.

    Per position of the trace: `nodes`. Per node: `parents` (-1 at the start of a prompt), `depths`
    (blocks, from 1), `firsts` and `lasts` (the requests that visited it first and last). Per
    request: `known`, the leading blocks an earlier request had too, and `latest`, the last earlier
    request that had the deepest of those (-1: none).
    """

    columns: TraceColumns
    nodes: NDArray[np.uint32]
    parents: NDArray[np.int64]
    depths: NDArray[np.uint32]
    firsts: NDArray[np.uint32]
    lasts: NDArray[np.uint32]
    known: NDArray[np.uint32]
    latest: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def visits(self) -> NDArray[np.int64]:
        """Per node: how many requests have it."""
        return np.bincount(self.nodes, minlength=len(self))

    @cached_property
    def branches(self) -> NDArray[np.int64]:
        """Per node: how many different blocks follow it."""
        inner = self.parents[self.parents >= 0]
        return np.bincount(inner, minlength=len(self))

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Per node: whether more than one request has it. Ancestors of a shared node are shared."""
        return self.visits > 1

    @cached_property
    def stems(self) -> NDArray[np.bool_]:
        """Per node: whether it belongs to a prompt that outlives any session (a system prompt).

        That is a node with many continuations (STEM_BRANCHES) that was in use over STEM_LIFE of the
        trace's requests, or one that leads to such a node.
        """
        life = self.lasts.astype(np.int64) - self.firsts
        long_lived = life >= STEM_LIFE * (len(self.columns) - 1)
        enough = max(STEM_LEAST, min(STEM_BRANCHES, len(self.columns) // STEM_SHARE))
        stems = long_lived & (self.branches >= enough)
        above = np.flatnonzero(stems)
        while len(above):
            above = np.unique(self.parents[above])
            above = above[above >= 0]
            above = above[~stems[above]]
            stems[above] = True
        return stems

    def depth_within(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Per request: how many of its blocks are `chosen` (a prefix, where ancestors are too)."""
        if not len(self.columns):
            return np.empty(0, np.int64)
        of_block = chosen[self.nodes].astype(np.int64)
        return np.add.reduceat(of_block, self.columns.offsets[:-1])


def build_tree(columns: TraceColumns) -> PrefixTree:
    """The prefix tree of a trace. TraceError with the line of an id that has two parents."""
    nodes = np.empty(len(columns.ids), np.uint32)
    known = np.empty(len(columns), np.uint32)
    latest = np.empty(len(columns), np.int64)
    table = ChainTable()
    fault = table.add_all(columns.ids, columns.offsets, nodes, known, latest)
    if fault >= 0:
        raise _two_parents(columns, fault)
    parents, depths, firsts, lasts = table.export()
    return PrefixTree(columns, nodes, parents, depths, firsts, lasts, known, latest)


def _two_parents(columns: TraceColumns, fault: int) -> TraceError:
    request = int(np.searchsorted(columns.offsets, fault, "right")) - 1
    block = columns.ids[fault]
    first = int(np.flatnonzero(columns.ids[: fault + 1] == block)[0])

    def before(place: int) -> int:
        return -1 if place in columns.offsets else int(columns.ids[place - 1])

    reason = two_parents(int(block), before(first), before(fault))
    return TraceError(columns.source, int(columns.lines[request]), reason)
