"""What a trace is like: lengths, arrivals, reuse, tree, sessions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..results import percentiles
from .cache_curve import CacheCurve, block_tokens, build_curve, default_sizes
from .columns import TraceColumns
from .prefix_tree import PrefixTree, build_tree
from .turns import Turns, find_turns

TOP_PREFIXES = 10


@dataclass(frozen=True)
class Spread:
    """What some samples are like, in their unit; all None where there are none."""

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p25: float | None = None
    median: float | None = None
    p75: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Arrivals:
    """When requests come. `instants` are different timestamps.

    `interarrival_cv` is the standard deviation over the mean of the times between requests, and
    `dispersion_60s` the variance over the mean of requests a minute: both are 1 for independent
    arrivals (None where there are too few).
    """

    rate_per_s: float | None
    instants: int
    requests_per_instant: Spread
    interarrival_cv: float | None
    dispersion_60s: float | None


@dataclass(frozen=True)
class Blocks:
    """Reuse of blocks. A block counts as reused each time a request has it after the first."""

    total: int
    different: int
    reused_share: float
    reuse_distance_tokens: Spread  # the cache size from which on a reuse is a hit


@dataclass(frozen=True)
class Tree:
    """The prefix tree. Depths in blocks; a branching block has several continuations."""

    prompt_depth: Spread
    shared_depth: Spread  # of the blocks that some other request has too
    shared_blocks: int
    branching_blocks: int
    branches: Spread  # of branching blocks
    stem_blocks: int  # in prompts that outlive any session


@dataclass(frozen=True)
class Sessions:
    """Chains of requests that carry on from one another. `gap_s` is the time since the last.

    `span_s` is the time from first to last of sessions with several requests; `whole_history_share`
    the part of follow-ups that take over all full blocks of the request they follow.
    """

    count: int
    requests: Spread
    span_s: Spread
    follow_up_share: float
    whole_history_share: float | None
    gap_s: Spread


@dataclass(frozen=True)
class TopPrefix:
    """A much visited prefix, up to where its requests part."""

    tokens: int
    requests: int
    share: float
    continuations: int
    last_id: int


@dataclass(frozen=True)
class TraceAnalysis:
    """The result of `analyze`; lengths in tokens. The scripts' contract is in the field names.

    `context_length` are the tokens in blocks that another request of the trace has too, earlier or
    later; `unique_prompt_length` is the rest of the prompt.
    """

    trace: str
    block_size: int
    requests: int
    span_s: float
    input_length: Spread
    output_length: Spread
    context_length: Spread
    unique_prompt_length: Spread
    hit_rate_infinite: float
    hit_rate_curve: Sequence[tuple[int, float]]
    arrivals: Arrivals
    blocks: Blocks
    tree: Tree
    sessions: Sessions
    top_prefixes: Sequence[TopPrefix]


@dataclass(frozen=True, eq=False)
class Samples:
    """The distributions behind an analysis, for comparing and plotting."""

    input_length: NDArray[np.int64]
    output_length: NDArray[np.int64]
    context_length: NDArray[np.int64]
    reuse_distance: NDArray[np.int64]
    session_size: NDArray[np.int64]
    session_span_s: NDArray[np.float64]  # of sessions with more than one request
    history_share: NDArray[np.float64]  # of its parent's full blocks, what a turn takes over
    gap_s: NDArray[np.float64]
    interarrival_s: NDArray[np.float64]
    curve: CacheCurve

    @property
    def unique_prompt_length(self) -> NDArray[np.int64]:
        """Per request: the tokens in blocks that no other request has."""
        return self.input_length - self.context_length

    @property
    def reuse_tokens(self) -> NDArray[np.int64]:
        """Per reuse distance: how many tokens that reuse is worth."""
        return np.diff(self.curve.tokens, prepend=0)


def describe(samples: ArrayLike) -> Spread:
    """The spread of some samples."""
    values = np.asarray(samples, np.float64)
    if values.size == 0:
        return Spread()
    p25, median, p75, p99 = percentiles(values, 25, 50, 75, 99)
    low, high = float(values.min()), float(values.max())
    return Spread(float(values.mean()), float(values.std()), low, p25, median, p75, p99, high)


def analyze(columns: TraceColumns) -> tuple[TraceAnalysis, Samples]:
    """The analysis of a trace, its curve at `default_sizes`, and the samples behind it."""
    tree = build_tree(columns)
    turns = find_turns(tree)
    curve = build_curve(tree)
    samples = _samples(tree, turns, curve)
    times = columns.timestamps_ms
    analysis = TraceAnalysis(
        trace=columns.source,
        block_size=columns.block_size,
        requests=len(columns),
        span_s=float(times[-1] - times[0]) / 1e3,
        input_length=describe(samples.input_length),
        output_length=describe(samples.output_length),
        context_length=describe(samples.context_length),
        unique_prompt_length=describe(samples.unique_prompt_length),
        hit_rate_infinite=curve.hit_rate_infinite,
        hit_rate_curve=curve.curve(default_sizes(int(samples.reuse_distance.max(initial=0)))),
        arrivals=_arrivals(times),
        blocks=Blocks(
            total=len(tree.nodes),
            different=len(tree),
            reused_share=1 - len(tree) / len(tree.nodes),
            reuse_distance_tokens=describe(samples.reuse_distance),
        ),
        tree=_tree(tree),
        sessions=Sessions(
            count=len(samples.session_size),
            requests=describe(samples.session_size),
            span_s=describe(samples.session_span_s),
            follow_up_share=len(samples.gap_s) / len(columns),
            whole_history_share=float((samples.history_share >= 1).mean())
            if len(samples.history_share)
            else None,
            gap_s=describe(samples.gap_s),
        ),
        top_prefixes=_top_prefixes(tree),
    )
    return analysis, samples


def _samples(tree: PrefixTree, turns: Turns, curve: CacheCurve) -> Samples:
    columns = tree.columns
    worth = np.where(tree.shared[tree.nodes], block_tokens(tree), 0)
    return Samples(
        input_length=columns.input_lengths,
        output_length=columns.output_lengths,
        context_length=np.add.reduceat(worth, columns.offsets[:-1]),
        reuse_distance=curve.distances,
        session_size=turns.session_sizes,
        session_span_s=turns.session_spans(columns.timestamps_ms) / 1e3,
        history_share=turns.history_shares(columns.input_lengths // columns.block_size),
        gap_s=turns.gaps(columns.timestamps_ms) / 1e3,
        interarrival_s=np.diff(columns.timestamps_ms) / 1e3,
        curve=curve,
    )


def _arrivals(times_ms: NDArray[np.float64]) -> Arrivals:
    counts = np.unique(times_ms, return_counts=True)[1]
    span_s = float(times_ms[-1] - times_ms[0]) / 1e3
    gaps = np.diff(times_ms)
    minutes = np.bincount(((times_ms - times_ms[0]) // 60_000).astype(np.int64))[:-1]
    return Arrivals(
        rate_per_s=len(times_ms) / span_s if span_s else None,
        instants=len(counts),
        requests_per_instant=describe(counts),
        interarrival_cv=float(gaps.std() / gaps.mean()) if span_s else None,
        # The last minute is not a whole one.
        dispersion_60s=float(minutes.var() / minutes.mean()) if minutes.sum() else None,
    )


def _tree(tree: PrefixTree) -> Tree:
    branching = tree.branches[tree.branches > 1]
    return Tree(
        prompt_depth=describe(tree.columns.blocks),
        shared_depth=describe(tree.depth_within(tree.shared)),
        shared_blocks=int(tree.shared.sum()),
        branching_blocks=len(branching),
        branches=describe(branching),
        stem_blocks=int(tree.stems.sum()),
    )


def _top_prefixes(tree: PrefixTree) -> list[TopPrefix]:
    # A prefix reaches to where its requests part: where a child has fewer visits, or none follows.
    inner = np.flatnonzero(tree.parents >= 0)
    goes_on = np.zeros(len(tree), np.bool_)
    same = tree.visits[inner] == tree.visits[tree.parents[inner]]
    goes_on[tree.parents[inner[same]]] = True
    ends = np.flatnonzero(tree.shared & ~goes_on)
    most = ends[np.argsort(-tree.visits[ends], kind="stable")][:TOP_PREFIXES]
    positions = [int(np.flatnonzero(tree.nodes == node)[0]) for node in most]
    return [
        TopPrefix(
            tokens=int(tree.depths[node]) * tree.columns.block_size,
            requests=int(tree.visits[node]),
            share=float(tree.visits[node] / len(tree.columns)),
            continuations=int(tree.branches[node]),
            last_id=int(tree.columns.ids[position]),
        )
        for node, position in zip(most, positions, strict=True)
    ]
