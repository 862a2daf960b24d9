"""Pictures of a comparison: TTFT distribution, hit rate over time, load of each worker.

matplotlib comes with the extra `plot`, and is imported where a picture is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..results import save_figure
from .experiment import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOWS = 24  # points of a curve over time: more of them show noise
# Distinct in colour and, for print and for eyes that see few colours, in line style.
_STYLES = ("-", "--", ":", "-.")


def draw_comparison(folder: str, results: Sequence[Result]) -> list[Path]:
    """Write three pictures, a curve for each result, into an existing folder; their paths.

    ConfigError if one cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

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
            painter(axes, results)
            axes.spines[["top", "right"]].set_visible(False)
            figure.legend(loc="outside right upper", frameon=False)
            paths.append(save_figure(figure, Path(folder) / name))
    return paths


def _style(place: int) -> dict[str, object]:
    return {"color": f"C{place % 10}", "linestyle": _STYLES[place % 4], "linewidth": 1.6}


def _draw_ttft(axes: "Axes", results: Sequence[Result]) -> None:
    for place, (run, log, _, _) in enumerate(results):
        ttft = np.sort((log.first_s - log.arrival_s)[log.served]) * 1e3
        if len(ttft):
            share = np.arange(1, len(ttft) + 1) / len(ttft)
            axes.plot(ttft, share, label=run.policy, **_style(place))  # type: ignore[arg-type]
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.01)
    axes.set_title("Time to first token", loc="left")
    axes.set_xlabel("ms, logarithmic")
    axes.set_ylabel("share of requests answered within")


def _draw_hit_rate(axes: "Axes", results: Sequence[Result]) -> None:
    for place, (run, log, trace, _) in enumerate(results):
        served = log.served
        times = log.arrival_s[served]
        prompt = np.array([request.input_length for request in trace.requests])[served]
        edges = np.linspace(0, float(log.arrival_s.max()) or 1.0, WINDOWS + 1)
        total, _ = np.histogram(times, edges, weights=prompt)
        hits, _ = np.histogram(times, edges, weights=log.cached_tokens[served])
        rate = np.divide(hits, total, out=np.full(WINDOWS, np.nan), where=total > 0)
        middles = (edges[1:] + edges[:-1]) / 2
        axes.plot(middles, rate, label=run.policy, **_style(place))  # type: ignore[arg-type]
    bound = results[0].run.hit_rate_pooled_lru
    axes.axhline(bound, color="0.3", linewidth=1, label="one cache for all")
    axes.set_ylim(bottom=0)
    axes.set_title("Prompt tokens found in the cache", loc="left")
    axes.set_xlabel("arrival, s")
    axes.set_ylabel("share of the prompt tokens that arrived then")


def _draw_worker_load(axes: "Axes", results: Sequence[Result]) -> None:
    workers = max(each.run.workers or 1 for each in results)
    for place, (run, log, trace, _) in enumerate(results):
        served = log.served
        prompt = np.array([request.input_length for request in trace.requests])[served]
        load = np.sort(np.bincount(log.worker[served], prompt, minlength=workers))[::-1]
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
