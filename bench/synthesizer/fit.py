"""Checks a model against the trace it was learned from, and which kind of walk is close to it."""

from typing import NamedTuple

import numpy as np

from ..traces import TraceColumns, build_tree, columns_of
from .sample import ModelKind, synthesize
from .trace_model import TraceModel

TOLERANCE = 0.03
FIT_SEEDS = 2


class Fit(NamedTuple):
    """The kind that was chosen, and how far each that was tried is off, as shares of the learned.

    A deviation is the one of the trial traces that is furthest from the learned trace.
    """

    kind: ModelKind
    hit_rate: dict[ModelKind, float]
    input_mean: dict[ModelKind, float]

    def worst(self, kind: ModelKind) -> float:
        """The larger of a kind's deviations, as a size."""
        return max(abs(self.hit_rate[kind]), abs(self.input_mean[kind]))

    def __str__(self) -> str:
        tried = "; ".join(
            f"{kind}: hit rate {self.hit_rate[kind]:+.1%}, input mean {self.input_mean[kind]:+.1%}"
            for kind in self.hit_rate
        )
        if self.worst(self.kind) > TOLERANCE:
            return f"{tried}: none is within {TOLERANCE:.0%}, {self.kind} is nearest"
        first = next(iter(self.hit_rate))
        if self.kind != first:
            return f"{tried}: {first} is not within {TOLERANCE:.0%}, so {self.kind} is used"
        return f"{tried}: fits"


def check_fit(columns: TraceColumns, model: TraceModel, kind: ModelKind = "sessions") -> Fit:
    """Draw FIT_SEEDS traces of the learned length and compare them with it.

    Of `kind`, and of the other one where that is off by more than TOLERANCE in the hit rate of an
    endless cache or in the mean input length; then the nearer of the two is chosen.
    """
    learned = _figures(columns)
    other: ModelKind = "markov" if kind == "sessions" else "sessions"
    fit = Fit(kind, {}, {})
    for tried in (kind, other):
        off = [_deviations(columns, model, tried, seed, learned) for seed in range(FIT_SEEDS)]
        fit.hit_rate[tried], fit.input_mean[tried] = (
            max(deviations, key=abs) for deviations in zip(*off, strict=True)
        )
        if fit.worst(tried) <= TOLERANCE:
            break
    return fit._replace(kind=min(fit.hit_rate, key=fit.worst))


def _figures(columns: TraceColumns) -> tuple[float, float]:
    """The hit rate of a cache without end, and the mean input length."""
    lengths = columns.input_lengths
    known = build_tree(columns).known.astype(np.int64) * columns.block_size
    return float(np.minimum(known, lengths).sum() / lengths.sum()), float(lengths.mean())


def _deviations(
    columns: TraceColumns,
    model: TraceModel,
    kind: ModelKind,
    seed: int,
    learned: tuple[float, float],
) -> tuple[float, float]:
    made = columns_of(
        synthesize(model, len(columns), seed=seed, kind=kind), trace_block_size=columns.block_size
    )
    hit_rate, mean = (
        now / then - 1 if then else float(now > 0)
        for now, then in zip(_figures(made), learned, strict=True)
    )
    return hit_rate, mean
