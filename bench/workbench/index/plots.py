"""Pictures of growth: look-up, store and memory, as blocks and workers get more.

matplotlib comes with the extra `plot`, and is imported where a picture is drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...results import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
PICTURES = ("growth_blocks.png", "growth_workers.png")


def draw_growth(folder: str, growth: Rows) -> list[Path]:
    """Write both pictures into an existing folder; their paths. ConfigError if that fails."""
    import matplotlib
    from matplotlib.figure import Figure

    paths = []
    with matplotlib.rc_context({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
        for name, painter in zip(PICTURES, (_draw_blocks, _draw_workers), strict=True):
            figure = Figure(figsize=(11, 4), dpi=120, layout="constrained")
            painter(figure, growth)
            paths.append(save_figure(figure, Path(folder) / name))
    return paths


def _draw_blocks(figure: "Figure", growth: Rows) -> None:
    rows = [row for row in growth if row["kind"] == "blocks"]
    look_up, store, memory = figure.subplots(1, 3)
    for place, name in enumerate(_names(rows)):
        curve = [row for row in rows if row["contender"] == name]
        _curve(look_up, curve, "blocks", "match_p50_us", f"{name} p50", f"C{place}-o")
        _curve(look_up, curve, "blocks", "match_p99_us", f"{name} p99", f"C{place}--^")
        _curve(store, curve, "blocks", "store_blocks_per_s", name, f"C{place}-o", 1e-6)
        _curve(memory, curve, "blocks", "bytes_per_block", name, f"C{place}-o")
    for axes, title, label in (
        (look_up, "A look-up of 128 blocks", "us, logarithmic"),
        (store, "Storing, while the tree grows to that size", "M blocks/s"),
        (memory, "Resident memory", "bytes a block"),
    ):
        axes.set(title=title, ylabel=label, xlabel="blocks in the tree", xscale="log")
        axes.legend(frameon=False)
        if axes is look_up:
            _log_us(axes)
        else:
            axes.set_ylim(bottom=0)


def _draw_workers(figure: "Figure", growth: Rows) -> None:
    rows = [row for row in growth if row["kind"] == "workers"]
    for axes, held, title in zip(
        figure.subplots(1, 2, sharey=True),
        ("few", "all"),
        ("Eight workers hold a prompt or a part of it", "Every worker holds a part of it"),
        strict=True,
    ):
        for place, name in enumerate(_names(rows)):
            curve = [row for row in rows if (row["contender"], row["held_by"]) == (name, held)]
            _curve(axes, curve, "workers", "match_p50_us", f"{name} p50", f"C{place}-o")
            _curve(axes, curve, "workers", "match_p99_us", f"{name} p99", f"C{place}--^")
        axes.set(title=title, xlabel="workers", ylabel="us of a look-up, logarithmic")
        axes.set(xscale="log", xticks=[row["workers"] for row in rows])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        _log_us(axes)
        axes.legend(frameon=False)


def _log_us(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["contender"] for row in rows))


def _curve(
    axes: "Axes", rows: Rows, x: str, y: str, label: str, style: str, factor: float = 1.0
) -> None:
    axes.plot(
        [row[x] for row in rows],
        [row[y]["median"] * factor for row in rows],
        style,
        label=label,
        linewidth=1.6,
        markersize=4,
    )
