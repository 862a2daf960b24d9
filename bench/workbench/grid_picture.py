"""A picture of a grid: the policy's ratios over fleet size, arrivals and caches."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..evaluation import CellVerdict
from ..results import save_figure
from .grid_cells import Cell

# What a row of the figure shows, and how far from 1 its colours reach.
_MAPS = (
    ("ttft", "TTFT, mean", 0.12),
    ("ttft_p99", "TTFT, 99th percentile", 0.12),
    ("e2e", "End to end, mean", 0.12),
)


def draw_grid(path: str, verdicts: Sequence[CellVerdict[Cell]], policy: str) -> Path:
    """Ratios over fleet size, arrivals and caches; blue is the policy's gain. The path written."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    plain = [
        each for each in verdicts if each.cell == each.cell._replace(delay_ms=0, loss=0, error="")
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
                ratio = each.figures[key].ratio or math.inf
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
