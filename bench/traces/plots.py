"""Plots of traces, one line per trace, so that a learned one lies beside what was made of it.

matplotlib comes with the extra `plot`.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ...process.settings import bad_setting
from ..results import require_matplotlib
from .analysis import Samples
from .cache_curve import default_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = dict[str, object]  # how to draw one trace
Painter = Callable[["Axes", Samples, Line], None]
# Readable beside one another also without colour.
STYLES = (("#1b1b1b", "-"), ("#0072b2", "--"), ("#d55e00", "-."), ("#009e73", ":"))


def check_plot_target(target: str | None) -> None:
    """ConfigError if `plot_traces` would surely fail: no matplotlib, no folder, no such format."""
    if target is None:
        return
    require_matplotlib()
    if Path(target).suffix not in (".png", ".svg", ".pdf"):
        raise bad_setting("plot", f"{target} must end in .png, .svg or .pdf")
    if not Path(target).absolute().parent.is_dir():
        raise bad_setting("plot", f"cannot write {target}: no such directory")


def plot_traces(traces: Mapping[str, Samples], target: str) -> None:
    """Write the ten plots of some traces, by their label, to the file `target`.

    ConfigError if matplotlib is missing or the file cannot be written.
    """
    check_plot_target(target)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    for ax, (title, unit, draw) in zip(figure.subplots(2, 5).flat, _PANELS, strict=True):
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(unit)
        ax.grid(alpha=0.25)
        for (label, samples), (colour, dash) in zip(traces.items(), cycle(STYLES), strict=False):
            draw(
                ax, samples, {"color": colour, "linestyle": dash, "label": label, "linewidth": 1.6}
            )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    try:
        figure.savefig(target, dpi=70)
    except OSError as error:
        raise bad_setting("plot", f"cannot write {target}: {error.strerror or error}") from error


def _hit_rates(ax: "Axes", samples: Samples, line: Line) -> None:
    sizes = default_sizes(int(samples.reuse_distance.max(initial=0)))
    ax.plot(*zip(*samples.curve.curve(sizes), strict=True), **line)  # type: ignore[arg-type]  # plain keyword arguments
    ax.set(xscale="log", ylabel="share of prompt tokens")
    ax.set_ylim(bottom=0)


def _reuse_distances(ax: "Axes", samples: Samples, line: Line) -> None:
    _share_below(ax, samples.reuse_distance, line, samples.reuse_tokens)


def _interarrivals(ax: "Axes", samples: Samples, line: Line) -> None:
    _share_below(ax, samples.interarrival_s, line)
    ax.set_xscale("symlog", linthresh=1e-3)  # many come at one instant
    ax.set_xlim(left=0)


def _history_shares(ax: "Axes", samples: Samples, line: Line) -> None:
    _share_below(ax, samples.history_share, line)
    ax.set_xscale("linear")


def _session_sizes(ax: "Axes", samples: Samples, line: Line) -> None:
    sizes, counts = np.unique(samples.session_size, return_counts=True)
    reached = np.cumsum(counts[::-1])[::-1] / max(1, counts.sum())
    ax.plot(sizes, reached, **line)  # type: ignore[arg-type]  # as above
    ax.set(xscale="log", yscale="log", ylabel="share at least so long")


def _below(name: str) -> Painter:
    return lambda ax, samples, line: _share_below(ax, getattr(samples, name), line)


def _share_below(
    ax: "Axes", samples: ArrayLike, line: Line, weights: ArrayLike | None = None
) -> None:
    """The cumulative distribution of some samples on a logarithmic axis, thinned to 500 points."""
    values = np.asarray(samples, np.float64)
    if not len(values):
        return
    weight = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    shown = np.unique(np.searchsorted(below, np.linspace(0, below[-1], 500)))
    shown = shown[shown < len(values)]
    ax.plot(values[order][shown], below[shown] / below[-1], **line)  # type: ignore[arg-type]  # as above
    ax.set(xscale="log", ylim=(0, 1), ylabel="share below")


_PANELS: tuple[tuple[str, str, Painter], ...] = (
    ("Input length", "tokens", _below("input_length")),
    ("Shared context", "tokens", _below("context_length")),
    ("Prompt of its own", "tokens", _below("unique_prompt_length")),
    ("Output length", "tokens", _below("output_length")),
    ("Time between requests", "s", _interarrivals),
    ("Hit rate against cache size", "cache, tokens", _hit_rates),
    ("Reuse distance, token-weighted", "tokens between uses", _reuse_distances),
    ("Requests in a session", "requests", _session_sizes),
    ("Time since the prefix was last used", "s", _below("gap_s")),
    ("History that a turn takes over", "share of full blocks", _history_shares),
)
