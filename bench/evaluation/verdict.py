"""What came of an evaluation: every cell beside its best baselines, and what that comes to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..results import bootstrap_interval, geometric_mean
from .comparison import Comparison, compare_figure, how_far_behind
from .figures import Figures

# Ratios that are reported, in the order of what users buy, and their headings.
COMPARED: Mapping[str, str] = {
    "goodput_relative": "goodput",
    "capacity": "capacity",
    "engine_s_per_1000_good": "engine s",
    "ttft": "TTFT",
    "e2e": "end to end",
    "ttft_p99": "TTFT p99",
}
# By these the worst cell is found: engine seconds are goodput's inverse.
RANKED_BY = ("goodput_relative", "capacity", "ttft", "e2e", "ttft_p99")


class AnyCell(Protocol):
    """Where policies are run beside each other; its text names it."""

    @property
    def content(self) -> dict[str, Any]:
        """For JSON."""
        ...


CellType = TypeVar("CellType", bound=AnyCell)


@dataclass(frozen=True)
class CellVerdict(Generic[CellType]):
    """A cell: the policy beside the best of all variants of the baselines, figure by figure."""

    cell: CellType
    seeds: tuple[int, ...]
    figures: Mapping[str, Comparison]
    failed: float  # requests rejected or failed, mean over the seeds

    @property
    def worst_figure(self) -> str:
        """What the policy is furthest behind in."""
        return max(self._behind, key=lambda key: self._behind[key])

    @property
    def behind(self) -> float:
        """How far it is behind in that, as a ratio; below 1: ahead in everything."""
        return self._behind[self.worst_figure]

    @property
    def _behind(self) -> dict[str, float]:
        ratios = {key: each.ratio for key, each in self.figures.items() if key in RANKED_BY}
        known = {key: how_far_behind(key, each) for key, each in ratios.items() if each is not None}
        return known or {"ttft": math.inf}


def judge_cell(
    cell: CellType, policy: str, runs: Mapping[tuple[str, int], Figures]
) -> CellVerdict[CellType] | None:
    """The verdict on a cell from its runs by policy and seed; None where something is missing.

    A baseline counts if it ran with all the seeds that the policy ran with.
    """
    seeds = tuple(sorted(seed for name, seed in runs if name == policy))
    names = dict.fromkeys(name for name, _ in runs if name != policy)
    rivals = {
        name: [runs[name, seed] for seed in seeds]
        for name in names
        if all((name, seed) in runs for seed in seeds)
    }
    if not seeds or not rivals:
        return None
    mine = [runs[policy, seed] for seed in seeds]
    compared = {key: compare_figure(key, mine, rivals) for key in COMPARED}
    figures = {key: each for key, each in compared.items() if each is not None}
    failed = sum(run["rejected"] + run["errors"] for run in mine) / len(mine)
    return CellVerdict(cell, seeds, figures, failed)


class FigureSummary(NamedTuple):
    """A figure's ratios over many cells. `low`, `high`: of the geometric mean, by bootstrap."""

    cells: int
    worst: float
    worst_cell: AnyCell
    median: float
    best: float
    best_cell: AnyCell
    geometric_mean: float
    low: float
    high: float


def summarise_figure(key: str, verdicts: Sequence[CellVerdict[Any]]) -> FigureSummary | None:
    """Over all cells that have it; None where none has."""
    rows = [(each.cell, each.figures[key]) for each in verdicts if key in each.figures]
    ratios = [(cell, found.ratio) for cell, found in rows if found.ratio]
    if not ratios:
        return None
    ordered = sorted(ratios, key=lambda row: -how_far_behind(key, row[1]))
    samples = [found.by_seed for _, found in rows if found.by_seed]
    low, high = bootstrap_interval(samples) if samples else (math.nan, math.nan)
    return FigureSummary(
        cells=len(ratios),
        worst=ordered[0][1],
        worst_cell=ordered[0][0],
        median=median(ratio for _, ratio in ratios),
        best=ordered[-1][1],
        best_cell=ordered[-1][0],
        geometric_mean=geometric_mean([ratio for _, ratio in ratios]),
        low=low,
        high=high,
    )
