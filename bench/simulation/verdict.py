"""The verdict on a policy in each cell of a grid: its figures beside those of baselines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.table import Table

from ..results import format_number, new_table, save_figure
from .cells import Cell, Figures, Kept
from .comparison import compare_figure


@dataclass(frozen=True)
class CellResult:
    """A cell's verdict. Ratios are the policy's mean over the best mean of any baseline.

    Below 1 is a gain in latencies and engine seconds, above 1 in goodput and capacity; a ratio is
    None where a figure was not measured, or is 0 for every baseline.
    """

    cell: Cell
    seeds: int
    ttft_ms: float
    ttft_spread_ms: float  # half the range over the seeds
    best_ttft_ms: float  # of the baseline that is best at it
    best_scale: str  # its name
    ttft_ratio: float
    ttft_p99_ratio: float
    e2e_ratio: float
    of_pooled: float  # hit rate against one LRU cache for all
    best_of_pooled: float  # the best of any baseline
    balance: float  # most over mean of the prompt tokens per worker
    best_balance: float
    failed: float  # requests rejected or failed
    goodput: Mapping[str, float | None]  # shares by the absolute and the relative objective
    best_goodput: Mapping[str, float | None]  # each of the baseline that is best at it
    goodput_ratio: float | None  # relative objective
    engine_s_ratio: float | None  # for 1000 requests that meet it
    capacity: float | None = None  # requests a second at which 95 % meet it
    capacity_ratio: float | None = None

    @property
    def badness(self) -> float:
        """How far the policy is behind in the figure it is worst at; reports show this first."""
        behind = [self.ttft_ratio, self.e2e_ratio, self.ttft_p99_ratio]
        ahead = [each for each in (self.goodput_ratio, self.capacity_ratio) if each]
        return max(*behind, *(1 / each for each in ahead))


def judge(kept: Kept, policy: str) -> list[CellResult]:
    """A verdict, the worst first, on every cell in which the policy and a baseline have run.

    A baseline counts if it ran with all the seeds that the policy ran with.
    """
    results = []
    for cell in dict.fromkeys(cell for cell, _, _ in kept):
        runs: dict[str, dict[int, Figures]] = {}
        for (where, name, seed), figures in kept.items():
            if where == cell:
                runs.setdefault(name, {})[seed] = figures
        mine = runs.pop(policy, None)
        rivals = {
            name: [by_seed[seed] for seed in mine]
            for name, by_seed in runs.items()
            if mine is not None and mine.keys() <= by_seed.keys()
        }
        if mine is not None and rivals:
            results.append(_judge_cell(cell, list(mine.values()), rivals))
    return sorted(results, key=lambda each: -each.badness)


def _judge_cell(
    cell: Cell, mine: Sequence[Figures], rivals: dict[str, list[Figures]]
) -> CellResult:
    def own(key: str) -> float:
        return mean(run[key] for run in mine)

    def best(key: str) -> float:
        found = compare_figure(key, mine, rivals)
        assert found is not None, key
        return found.best

    def ratio(key: str) -> float | None:
        found = compare_figure(key, mine, rivals)
        return None if found is None else found.ratio

    def shares(value: Callable[[str], float]) -> dict[str, float | None]:
        known = all("goodput_relative" in run for run in mine) and all(
            "goodput_relative" in run for runs in rivals.values() for run in runs
        )
        return {
            name: value(f"goodput_{name}") if known else None for name in ("absolute", "relative")
        }

    ttfts = [run["ttft"] for run in mine]
    best_scale = min(rivals, key=lambda name: mean(run["ttft"] for run in rivals[name]))
    return CellResult(
        cell=cell,
        seeds=len(mine),
        ttft_ms=own("ttft"),
        ttft_spread_ms=(max(ttfts) - min(ttfts)) / 2,
        best_ttft_ms=best("ttft"),
        best_scale=best_scale,
        ttft_ratio=own("ttft") / best("ttft"),
        ttft_p99_ratio=own("ttft_p99") / best("ttft_p99"),
        e2e_ratio=own("e2e") / best("e2e"),
        of_pooled=own("of_pooled"),
        best_of_pooled=best("of_pooled"),
        balance=own("balance"),
        best_balance=best("balance"),
        failed=own("rejected") + own("errors"),
        goodput=shares(own),
        best_goodput=shares(best),
        goodput_ratio=ratio("goodput_relative"),
        engine_s_ratio=ratio("engine_s_per_1000_good"),
        capacity=own("capacity") if all("capacity" in run for run in mine) else None,
        capacity_ratio=ratio("capacity"),
    )


def grid_table(results: Sequence[CellResult], policy: str) -> Table:
    """A row per cell, in the order given; "relative" is the goodput by the relative objective."""
    table = new_table(title=f"{policy} against the best baseline, figure by figure; worst first")
    headings = ("cell", "TTFT ms", "best", "of", "ratio", "p99", "e2e", "relative", "best")
    for heading in (*headings, "capacity", "pooled", "max/mean", "failed", "seeds"):
        table.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    for each in results:
        table.add_row(
            str(each.cell),
            f"{format_number(each.ttft_ms, 1)} ±{format_number(each.ttft_spread_ms, 1)}",
            format_number(each.best_ttft_ms, 1),
            each.best_scale,
            format_number(each.ttft_ratio, 3),
            format_number(each.ttft_p99_ratio, 3),
            format_number(each.e2e_ratio, 3),
            format_number(each.goodput["relative"], 3),
            format_number(each.best_goodput["relative"], 3),
            format_number(each.capacity_ratio, 3),
            format_number(each.of_pooled, 2),
            format_number(each.balance, 2),
            format_number(each.failed, 0),
            str(each.seeds),
        )
    return table


# What a row of the figure shows, and how far from 1 its colours reach.
_MAPS = (
    ("ttft_ratio", "TTFT, mean", 0.12),
    ("ttft_p99_ratio", "TTFT, 99th percentile", 0.12),
    ("e2e_ratio", "End to end, mean", 0.12),
)


def draw_grid(path: str, results: Sequence[CellResult], policy: str) -> Path:
    """Ratios over fleet size, arrivals and caches; blue is the policy's gain. The path written."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    plain = [
        each for each in results if each.cell == each.cell._replace(delay_ms=0, loss=0, error="")
    ]
    sizes = sorted({each.cell.workers for each in plain})
    columns = sorted({(each.cell.cache, each.cell.rate) for each in plain})
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(max(6.0, 1.2 + 0.95 * len(columns)), 2.8 * len(_MAPS)), dpi=120)
        figure.set_layout_engine("constrained")
        for axes, (key, title, reach) in zip(
            figure.subplots(len(_MAPS), 1, squeeze=False)[:, 0], _MAPS, strict=True
        ):
            axes.set_title(f"{title}: {policy} over the best baseline", loc="left")
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(-0.5, len(sizes) - 0.5)
            for each in plain:
                x = columns.index((each.cell.cache, each.cell.rate))
                y = sizes.index(each.cell.workers)
                ratio = getattr(each, key)
                shade = min(1.0, max(0.0, 0.5 + (ratio - 1) / (2 * reach)))
                colour = matplotlib.colormaps["RdBu_r"](shade)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour))
                dark = abs(shade - 0.5) > 0.33
                axes.text(
                    x,
                    y,
                    f"{ratio:.3f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
            axes.set_xticks(
                range(len(columns)),
                [f"cache {cache:g}\nrate {rate:g}" for cache, rate in columns],
            )
            axes.set_yticks(range(len(sizes)), [f"{size} workers" for size in sizes])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        return save_figure(figure, path)
