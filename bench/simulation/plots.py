"""Pictures of a comparison: TTFT distribution, hit rate over time, load of each worker.

Needs matplotlib, an extra; imported by compare.py where plots are asked for.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...runtime.settings import bad_setting
from .outcome import SimulatedRun
from .prepared_trace import SimulatedTrace
from .simulation import SERVED, Trail

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter
except ImportError:
    raise bad_setting("plot", "needs matplotlib: pip install 'dynamo-router[plot]'") from None

Drawn = tuple[SimulatedRun, Trail, SimulatedTrace]
WINDOWS = 24  # points of a curve over time: more of them show noise
# Distinct in colour and, for print and for eyes that see few colours, in line style.
_STYLES = ("-", "--", ":", "-.")


def prepare(folder: str) -> None:
    """Make the folder; ConfigError if that fails: before an hour of simulating, not after it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad_setting("plot", f"cannot make {folder}: {error.strerror or error}") from None


def draw(folder: str, drawn: Sequence[Drawn]) -> list[Path]:
    """Write the three pictures into the folder; their paths."""
    painters = {
        "ttft.png": _draw_ttft,
        "hit_rate.png": _draw_hit_rate,
        "worker_load.png": _draw_worker_load,
    }
    paths = []
    with matplotlib.rc_context({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
        for name, painter in painters.items():
            figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
            axes = figure.add_subplot()
            painter(axes, drawn)
            axes.spines[["top", "right"]].set_visible(False)
            figure.legend(loc="outside right upper", frameon=False)
            paths.append(save_figure(figure, Path(folder) / name))
    return paths


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a picture without naming the library, so that equal ones are equal bytes; the path.

    ConfigError if it cannot be written.
    """
    try:
        figure.savefig(path, metadata={"Software": None})
    except OSError as error:
        raise bad_setting("plot", f"cannot write {path}: {error.strerror}") from None
    return path


def _style(place: int) -> dict[str, object]:
    return {"color": f"C{place % 10}", "linestyle": _STYLES[place % 4], "linewidth": 1.6}


def _draw_ttft(axes: Axes, drawn: Sequence[Drawn]) -> None:
    for place, (run, trail, _) in enumerate(drawn):
        ttft = np.sort((trail.first_s - trail.arrival_s)[trail.status == SERVED]) * 1e3
        if len(ttft):
            share = np.arange(1, len(ttft) + 1) / len(ttft)
            axes.plot(ttft, share, label=run.policy, **_style(place))  # type: ignore[arg-type]
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylim(0, 1.01)
    axes.set_title("Time to first token", loc="left")
    axes.set_xlabel("ms, logarithmic")
    axes.set_ylabel("share of requests answered within")


def _draw_hit_rate(axes: Axes, drawn: Sequence[Drawn]) -> None:
    for place, (run, trail, trace) in enumerate(drawn):
        served = trail.status == SERVED
        times = trail.arrival_s[served]
        prompt = np.array([request.input_length for request in trace.requests])[served]
        edges = np.linspace(0, float(trail.arrival_s.max()) or 1.0, WINDOWS + 1)
        total, _ = np.histogram(times, edges, weights=prompt)
        hits, _ = np.histogram(times, edges, weights=trail.cached_tokens[served])
        rate = np.divide(hits, total, out=np.full(WINDOWS, np.nan), where=total > 0)
        middles = (edges[1:] + edges[:-1]) / 2
        axes.plot(middles, rate, label=run.policy, **_style(place))  # type: ignore[arg-type]
    bound = drawn[0][0].hit_rate_pooled_lru
    axes.axhline(bound, color="0.3", linewidth=1, label="one cache for all")
    axes.set_ylim(bottom=0)
    axes.set_title("Prompt tokens found in the cache", loc="left")
    axes.set_xlabel("arrival, s")
    axes.set_ylabel("share of the prompt tokens that arrived then")


def _draw_worker_load(axes: Axes, drawn: Sequence[Drawn]) -> None:
    workers = max(run.workers or 1 for run, _, _ in drawn)
    for place, (run, trail, trace) in enumerate(drawn):
        served = trail.status == SERVED
        prompt = np.array([request.input_length for request in trace.requests])[served]
        load = np.sort(np.bincount(trail.worker[served], prompt, minlength=workers))[::-1]
        if load.sum():
            axes.plot(
                np.arange(1, workers + 1),
                load / load.mean(),
                marker="o" if workers <= 32 else None,
                markersize=3.5,
                label=run.policy,
                **_style(place),  # type: ignore[arg-type]
            )
    axes.axhline(1, color="0.3", linewidth=1, label="the mean")
    axes.set_title("Prompt tokens by engine, busiest first", loc="left")
    axes.set_xlabel("engine")
    axes.set_ylabel("times the mean")
