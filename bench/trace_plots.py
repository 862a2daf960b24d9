"""Plots of traces, one line per trace, so that a learned one lies beside what was made of it.

matplotlib comes with the extra `plot`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..runtime.settings import bad_setting
from .analyzer import Samples
from .cache_curve import default_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Readable beside one another also without colour.
STYLES = (("#1b1b1b", "-"), ("#0072b2", "--"), ("#d55e00", "-."), ("#009e73", ":"))


def check_plot_target(target: str | None) -> None:
    """ConfigError if `plot_traces` would surely fail: no matplotlib, no folder, no such format."""
    if target is None:
        return
    try:
        import matplotlib  # noqa: F401  # only whether it is there
    except ImportError:
        raise bad_setting("plot", "needs matplotlib: pip install 'dynamo-router[plot]'") from None
    if Path(target).suffix not in (".png", ".svg", ".pdf"):
        raise bad_setting("plot", f"{target} must end in .png, .svg or .pdf")
    if not Path(target).absolute().parent.is_dir():
        raise bad_setting("plot", f"cannot write {target}: no such directory")


def plot_traces(traces: Mapping[str, Samples], target: str) -> None:
    """Write the six plots of some traces, by their label, to the file `target`.

    ConfigError if matplotlib is missing or the file cannot be written.
    """
    check_plot_target(target)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flat
    for ax, (title, unit) in zip(
        axes,
        [
            ("Input length", "tokens"),
            ("Output length", "tokens"),
            ("Hit rate against cache size", "cache, tokens"),
            ("Reuse distance, token-weighted", "tokens between uses"),
            ("Requests in a session", "requests"),
            ("Time since the prefix was last used", "s"),
        ],
        strict=True,
    ):
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(unit)
        ax.grid(alpha=0.25)
        for (label, samples), (colour, dash) in zip(
            traces.items(), STYLES * (len(traces) // len(STYLES) + 1), strict=False
        ):
            line = {"color": colour, "linestyle": dash, "label": label, "linewidth": 1.6}
            _draw(ax, title, samples, line)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    try:
        figure.savefig(target, dpi=90)
    except OSError as error:
        raise bad_setting("plot", f"cannot write {target}: {error.strerror or error}") from error


def _draw(ax: "Axes", title: str, samples: Samples, line: dict[str, object]) -> None:
    if title == "Input length":
        _share_below(ax, samples.input_length, line)
    elif title == "Output length":
        _share_below(ax, samples.output_length, line)
    elif title == "Hit rate against cache size":
        sizes = default_sizes(int(samples.reuse_distance.max(initial=0)))
        ax.plot(*zip(*samples.curve.curve(sizes), strict=True), **line)  # type: ignore[arg-type]  # plain keyword arguments
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
    elif title == "Reuse distance, token-weighted":
        weights = np.diff(samples.curve.tokens, prepend=0)
        _share_below(ax, samples.reuse_distance, line, weights)
    elif title == "Requests in a session":
        sizes_seen, counts = np.unique(samples.session_size, return_counts=True)
        reached = np.cumsum(counts[::-1])[::-1] / max(1, counts.sum())
        ax.plot(sizes_seen, reached, **line)  # type: ignore[arg-type]  # as above
        ax.set(xscale="log", yscale="log", ylabel="share at least so long")
    else:
        _share_below(ax, samples.gap_s, line)


def _share_below(
    ax: "Axes", samples: ArrayLike, line: dict[str, object], weights: ArrayLike | None = None
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
