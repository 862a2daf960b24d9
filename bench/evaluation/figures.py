"""What is kept of a run of a policy, and compared."""

import math
from collections.abc import Callable, Mapping

from ..simulation import SimulatedRun

Figures = dict[str, float]
FIGURES: Mapping[str, Callable[[SimulatedRun], float | None]] = {
    "ttft": lambda run: run.ttft_ms.mean,
    "ttft_p99": lambda run: run.ttft_ms.p99,
    "e2e": lambda run: run.e2e_ms.mean,
    "hit_rate": lambda run: run.cached_token_share,
    "of_pooled": lambda run: run.hit_rate_vs_pooled_lru,
    "balance": lambda run: run.balance_max_over_mean,
    "rejected": lambda run: run.rejected,
    "errors": lambda run: run.errors,
    "goodput_absolute": lambda run: run.goodput.absolute,
    "goodput_relative": lambda run: run.goodput.relative,
    "engine_s_per_1000_good": lambda run: run.engine_s_per_1000_good,
}


def figures_of(run: SimulatedRun) -> Figures:
    """The figures that a report compares; infinite where no request was served."""
    known = {key: value(run) for key, value in FIGURES.items()}
    figures = {key: math.inf if value is None else float(value) for key, value in known.items()}
    return figures if run.capacity is None else {**figures, "capacity": run.capacity}
