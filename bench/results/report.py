"""Runs of a trace, live or simulated: their figures as data, as JSON and as a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from .objectives import Goodput
from .output import format_number, new_table
from .summary import Summary


@dataclass(frozen=True)
class Run:
    """What one run of a trace gave. Latencies are those of the requests that succeeded.

    `rejected` counts refusals for overload, `errors` every other failure; `cached_token_share` is
    cached over all prompt tokens; `balance_max_over_mean` compares the workers' prompt tokens (1 is
    even; None where the workers are not known); `wall_s` reaches from the first arrival to the last
    answer; `goodput` are the shares of requests that met the objectives. What scripts need not rely
    on is in `details`.
    """

    mode: str
    policy: str
    workers: int | None
    seed: int | None
    requests: int
    errors: int
    rejected: int
    cached_token_share: float | None
    ttft_ms: Summary
    itl_ms: Summary
    e2e_ms: Summary
    output_tokens_per_s: float | None
    balance_max_over_mean: float | None
    wall_s: float
    goodput: Goodput = Goodput()
    details: Mapping[str, Any] = field(default_factory=dict)


def runs_content(runs: Iterable[Run]) -> dict[str, Any]:
    """The runs as the JSON of `replay`, `simulate` and `demo` has them."""
    return {"runs": [asdict(run) for run in runs]}


def runs_table(runs: Sequence[Run]) -> Table:
    """The runs side by side, a column each: every latency beside its errors and rejections."""
    table = new_table("")
    for run in runs:
        label = run.mode if run.policy in ("unknown", run.mode) else f"{run.mode} ({run.policy})"
        table.add_column(label, justify="right")
    for name, cells in _rows(runs):
        table.add_row(name, *cells)
    return table


def _rows(runs: Sequence[Run]) -> Iterable[tuple[str, list[str]]]:
    yield "requests", [str(run.requests) for run in runs]
    yield "errors", [_errors_cell(run) for run in runs]
    yield "rejected", [str(run.rejected) for run in runs]
    yield "cached token share", [format_number(run.cached_token_share, 3) for run in runs]
    for name, summaries in (
        ("TTFT", [run.ttft_ms for run in runs]),
        ("ITL", [run.itl_ms for run in runs]),
        ("end to end", [run.e2e_ms for run in runs]),
    ):
        yield f"{name} mean ms", [format_number(summary.mean, 1) for summary in summaries]
        yield f"{name} p50 / p90 / p99 ms", [_percentiles_cell(summary) for summary in summaries]
    goodput = [run.goodput for run in runs]
    yield "goodput, absolute", [format_number(each.absolute, 3) for each in goodput]
    yield "goodput, relative", [format_number(each.relative, 3) for each in goodput]
    yield "output tokens/s", [format_number(run.output_tokens_per_s, 0) for run in runs]
    yield "input max/mean per worker", [format_number(run.balance_max_over_mean, 2) for run in runs]
    yield "wall s", [format_number(run.wall_s, 1) for run in runs]


def _percentiles_cell(summary: Summary) -> str:
    return " / ".join(format_number(value, 1) for value in (summary.p50, summary.p90, summary.p99))


def _errors_cell(run: Run) -> str:
    codes = run.details.get("errors_by_code") or {}
    listed = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
    return f"{run.errors} ({listed})" if run.errors and listed else str(run.errors)
