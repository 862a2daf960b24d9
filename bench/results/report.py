"""Results of replays, simulations and benchmarks: percentiles, tables, the JSON scripts read."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ...runtime.errors import ConfigError
from .environment import describe_environment


@dataclass(frozen=True)
class Summary:
    """Mean and percentiles of some samples, in their unit; all None where there were none."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


def percentiles(samples: ArrayLike, *wanted: float) -> list[float]:
    """The wanted percentiles of at least one sample.

    Percentile q of n sorted samples stands at rank (n - 1) * q / 100, counted from 0; between two
    samples it is interpolated linearly. This is the only definition of a percentile in the project.
    """
    values = np.asarray(samples, np.float64)
    found: list[float] = np.percentile(values, wanted, method="linear").tolist()
    return found


def summarise(samples: ArrayLike) -> Summary:
    """The mean and the percentiles of `samples`."""
    values = np.asarray(samples, np.float64)
    if values.size == 0:
        return Summary()
    p50, p90, p99 = percentiles(values, 50, 90, 99)
    return Summary(float(values.mean()), p50, p90, p99)


def summarise_weighted(samples: ArrayLike, counts: ArrayLike) -> Summary:
    """As `summarise`, of samples that each occur as often as `counts` says."""
    values, weights = np.asarray(samples, np.float64), np.asarray(counts, np.int64)
    total = int(weights.sum())
    if total == 0:
        return Summary()
    order = np.argsort(values)
    ordered, ends = values[order], np.cumsum(weights[order])
    # Each percentile's rank, and its two neighbours among the samples as if they were spelt out.
    ranks = (total - 1) * np.array([50.0, 90.0, 99.0]) / 100
    below = np.floor(ranks).astype(np.int64)
    low = ordered[np.searchsorted(ends, below, side="right")]
    high = ordered[np.searchsorted(ends, np.ceil(ranks).astype(np.int64), side="right")]
    p50, p90, p99 = (low + (high - low) * (ranks - below)).tolist()
    return Summary(float(values @ weights) / total, p50, p90, p99)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of some rounds of a benchmark, at least one: their median, and how far they lie apart."""
    return {"median": median(values), "min": min(values), "max": max(values)}


@dataclass(frozen=True)
class Run:
    """What one run of a trace gave. Latencies are those of the requests that succeeded.

    `rejected` counts refusals for overload, `errors` every other failure; `cached_token_share` is
    cached over all prompt tokens; `balance_max_over_mean` compares the workers' prompt tokens (1 is
    even; None where the workers are not known); `wall_s` reaches from the first arrival to the last
    answer. What scripts need not rely on is in `details`.
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
    details: Mapping[str, Any] = field(default_factory=dict)


def document(runs: Iterable[Run], *, timeless: bool = False, **extra: Any) -> dict[str, Any]:
    """The object that `--json` writes: `runs`, `environment`, and whatever a command adds.

    `timeless`: without what differs from one moment to the next, for results that do not.
    """
    return {
        "runs": [asdict(run) for run in runs],
        **extra,
        "environment": describe_environment(timeless=timeless),
    }


def merge_documents(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One object with all documents' runs; each run keeps its origin as `environment`'s index.

    Runs measured on different machines or commits stay tellable: `environments` holds every one.
    """
    runs = [
        {**run, "environment": index}
        for index, document in enumerate(documents)
        for run in document["runs"]
    ]
    return {"runs": runs, "environments": [document["environment"] for document in documents]}


def write_json(target: str, content: Mapping[str, Any]) -> None:
    """Write `content`, numbers rounded, to the file `target`, or to stdout if it is "-".

    ConfigError if the file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(_rounded(content)), indent=2).decode() + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}"
        raise ConfigError(message, key="json") from error


def write_benchmark(target: str | None, name: str, content: Mapping[str, Any]) -> None:
    """Write what a benchmark found, with its name and the environment; nothing without a target.

    Raises as `write_json` does.
    """
    if target is not None:
        environment = describe_environment()
        write_json(target, {"benchmark": name, **content, "environment": environment})


def check_json_target(target: str | None) -> None:
    """ConfigError if `write_json` would surely fail: before an hour of measuring, not after it."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir():
        raise ConfigError(f"cannot write {target}: it is a directory", key="json")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {target}: no such directory", key="json")


def table_console(json_target: str | None, width: int = 120) -> Console:
    """Where tables go: stdout, or stderr where stdout carries the JSON. `width` is a file's."""
    console = Console(stderr=json_target == "-", highlight=False)
    if not console.is_terminal:
        console.width = width  # a file has no width; rich would take 80 and break the cells
    return console


def new_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one look that all commands share."""
    return Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")


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
    yield "cached token share", [number(run.cached_token_share, 3) for run in runs]
    for name, summaries in (
        ("TTFT", [run.ttft_ms for run in runs]),
        ("ITL", [run.itl_ms for run in runs]),
        ("end to end", [run.e2e_ms for run in runs]),
    ):
        yield f"{name} mean ms", [number(summary.mean, 1) for summary in summaries]
        yield (
            f"{name} p50 / p90 / p99 ms",
            [
                f"{number(summary.p50, 1)} / {number(summary.p90, 1)} / {number(summary.p99, 1)}"
                for summary in summaries
            ],
        )
    yield "output tokens/s", [number(run.output_tokens_per_s, 0) for run in runs]
    yield "input max/mean per worker", [number(run.balance_max_over_mean, 2) for run in runs]
    yield "wall s", [number(run.wall_s, 1) for run in runs]


def _errors_cell(run: Run) -> str:
    codes = run.details.get("errors_by_code") or {}
    listed = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
    return f"{run.errors} ({listed})" if run.errors and listed else str(run.errors)


def number(value: float | None, digits: int) -> str:
    """`value` for a table: fixed digits, thousands parted; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any of these measurements hold."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
