"""The session model of a trace: turns that carry on from turns, each drawn whole."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..traces import PrefixTree, Turns, find_turns
from .markov import START

CLASSES = 5  # of turns by their number, see turn_class
BEYOND, LEVEL, FRACTION, WHOLE = range(4)  # how a child's shared depth is expressed
MAX_CLIMB = 64  # levels of a session that are looked at


@dataclass(frozen=True, eq=False)
class TurnRecords:
    """What turns of one class were like, a record a turn, in the order of the trace.

    `numbers` count a session's turns from 0. `takes` are the full blocks a turn took over from its
    parent; of an opening turn, the stem it grew from (a chain of stems, or START). `new_tokens`
    follow them.

    The turns that followed record i are rows `child_offsets[i]` to `child_offsets[i + 1]` of
    `gaps_ms`, how long after it, and of `share_values`, how much of its blocks they took over, to
    be read by `share_kinds`: BEYOND, this many more than it took over itself; LEVEL, as many as the
    n-th turn above it in the session took over; FRACTION, this part of what it took over; WHOLE,
    the prompt was the same, its partial last block included.
    """

    numbers: NDArray[np.int64]
    takes: NDArray[np.int64]
    new_tokens: NDArray[np.int64]
    outputs: NDArray[np.int64]
    child_offsets: NDArray[np.int64]
    gaps_ms: NDArray[np.float64]
    share_kinds: NDArray[np.uint8]
    share_values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.takes)


@dataclass(frozen=True, eq=False)
class SessionModel:
    """What sessions are drawn from: the stems they grow from, and their turns by class.

    `opens` says of every request, in their order, whether it opened a session, `taken` how many
    full blocks it took over from others.

    The classes are those of `turn_class`. Turns that repeat the prompt before them are in none of
    them, but in `repeats`. Stems are chains of blocks: `stem_parents` (START at the top) and
    `stem_lengths`.
    """

    requests: int
    opens: NDArray[np.bool_]
    taken: NDArray[np.int64]
    stem_parents: NDArray[np.int64]
    stem_lengths: NDArray[np.int64]
    turns: tuple[TurnRecords, ...]
    repeats: TurnRecords


def turn_class(number: int) -> int:
    """The class of a session's turn: 0 opens it, 1 is the next; then 2 and 3, 4 to 7, all later.

    Sessions go on the more likely the longer they are, so that one class would lose the longest.
    """
    return min(number.bit_length(), CLASSES - 1)


def learn_sessions(tree: PrefixTree) -> SessionModel:
    """The model of a trace."""
    columns = tree.columns
    turns = find_turns(tree)
    opens = turns.parents < 0
    repeats = _repeats(tree, turns)
    # A partial block is its prompt's own, or a repeat's: what else goes on, goes on behind it.
    full = columns.input_lengths // columns.block_size
    shared = np.minimum(turns.shared, full)
    shared[~opens] = np.minimum(shared[~opens], full[turns.parents[~opens]])
    on_stem = opens & (shared > 0)
    grown_from = tree.nodes[(columns.offsets[:-1] + shared - 1)[on_stem]]
    stem_parents, stem_lengths, stem_of = _stems(tree, grown_from)
    takes = shared.copy()
    takes[opens] = START
    takes[on_stem] = stem_of[grown_from]
    new_tokens = columns.input_lengths - shared * columns.block_size

    children = np.flatnonzero(~opens)
    children = children[np.argsort(turns.parents[children], kind="stable")]
    parents = turns.parents[children]
    child_counts = np.bincount(parents, minlength=len(columns))
    child_starts = np.concatenate([[0], np.cumsum(child_counts)])
    gaps_ms = columns.timestamps_ms[children] - columns.timestamps_ms[parents]
    kinds, values = _shares(turns, shared, children)
    kinds[repeats[children]] = WHOLE
    classes = np.array([turn_class(number) for number in turns.numbers.tolist()])

    def records(which: NDArray[np.bool_]) -> TurnRecords:
        chosen = np.flatnonzero(which)
        counts = child_counts[chosen]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(child_starts[chosen] - offsets[:-1], counts) + np.arange(offsets[-1])
        return TurnRecords(
            numbers=turns.numbers[chosen],
            takes=takes[chosen],
            new_tokens=new_tokens[chosen],
            outputs=columns.output_lengths[chosen],
            child_offsets=offsets,
            gaps_ms=gaps_ms[rows],
            share_kinds=kinds[rows],
            share_values=values[rows],
        )

    return SessionModel(
        requests=len(columns),
        opens=opens,
        taken=shared.astype(np.int64),
        stem_parents=stem_parents,
        stem_lengths=stem_lengths,
        turns=tuple(records((classes == each) & ~repeats) for each in range(CLASSES)),
        repeats=records(repeats),
    )


def _repeats(tree: PrefixTree, turns: Turns) -> NDArray[np.bool_]:
    """Per request: whether its prompt is that of the request it follows, to the last token."""
    columns = tree.columns
    lengths = columns.input_lengths
    found: NDArray[np.bool_] = lengths == lengths[turns.parents]
    found &= (tree.known == columns.blocks) & (turns.parents >= 0)
    return found


def _stems(
    tree: PrefixTree, grown_from: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Parents and lengths of the stems, and per node the stem that ends there.

    They are cut at the nodes that sessions grow from, and where they part.
    """
    nodes = np.flatnonzero(tree.stems)
    inner = nodes[tree.parents[nodes] >= 0]
    cut = np.bincount(tree.parents[inner], minlength=len(tree)) != 1
    cut[grown_from] = True
    ends = nodes[cut[nodes]]
    stem_of = np.full(len(tree), -1, np.int64)
    stem_of[ends] = np.arange(len(ends))
    parents, lengths = [], []
    for end in ends.tolist():
        node, length = int(tree.parents[end]), 1
        while node >= 0 and stem_of[node] < 0:
            node, length = int(tree.parents[node]), length + 1
        parents.append(START if node < 0 else int(stem_of[node]))
        lengths.append(length)
    return np.array(parents, np.int64), np.array(lengths, np.int64), stem_of


def _shares(
    turns: Turns, shared: NDArray[np.int64], children: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """How deep each child shares its parent's prompt, expressed so that it fits other parents."""
    beyond = shared[children] - shared[turns.parents[children]]
    kinds = np.full(len(children), BEYOND, np.uint8)
    values = beyond.astype(np.float64)
    # Few go back behind what their parent took over; most of those to where it once forked.
    for row in np.flatnonzero(beyond < 0).tolist():
        child = int(children[row])
        depth, turn = int(shared[child]), int(turns.parents[child])
        level, lowest = 0, int(shared[turn])
        kinds[row], values[row] = FRACTION, depth / lowest
        for _ in range(MAX_CLIMB):
            turn = int(turns.parents[turn])
            if turn < 0:
                break
            if shared[turn] < lowest:
                level, lowest = level + 1, int(shared[turn])
            if lowest <= depth:
                if lowest == depth:
                    kinds[row], values[row] = LEVEL, level
                break
    return kinds, values
